"""What Private Evolution leaves: candidates, how often each is drawn, and a classifier that labels. Post-processing."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images, Labels
from veilset.data.tensors import as_bytes
from veilset.methods.base import Fitted, Samples
from veilset.methods.evolve.generators import Checked
from veilset.methods.evolve.voting import Survivors
from veilset.methods.shared.findings import as_labels, has_and_lacks
from veilset.methods.shared.image_health import soft_labels_of
from veilset.methods.shared.starting_images import balanced_choice
from veilset.models.generators.eigen import SHOWS_PUBLIC
from veilset.privacy.vault import PublicFacts

_SURPLUS = 4  # images drawn for each one that is released, where a classifier labels them


@dataclass(frozen=True, kw_only=True)
class FittedEvolve(Fitted):
    """The last candidates, drawn by their noisy votes and varied a little.

    Args:
        candidates: of each class, (classes, candidates, C, H, W); of findings, for each and for images without any.
        survivors: how often each is drawn, for each class.
        generator: that varies them.
        degree: how far.
        teacher: the private classifier that labels; without one, an image has the class that it was evolved for.
        facts: of the private images.
        device: where the teacher lives.
        shows_public: whether images are public images, changed.
        own_generator: the name of the user's own generator.
    """

    candidates: Tensor
    survivors: tuple[Survivors, ...]
    generator: Checked
    degree: float
    teacher: nn.Module | None
    facts: PublicFacts
    device: str
    shows_public: bool
    own_generator: str | None

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw survivors of each class alike often, vary them, and label what is stored.

        A classifier may see one class nearly everywhere, so of more images than are wanted those are taken that make
        its classes even.
        """
        if self.teacher is None:
            images, asked = self._drawn(count, seed)
            soft = np.eye(self.facts.classes, dtype=np.float32)[asked]
            return Samples(images=images, labels=asked, soft_labels=soft)
        images, _ = self._drawn(_SURPLUS * count, seed)
        with torch.no_grad():
            soft = soft_labels_of(self.teacher, images, self.device, findings=self.facts.findings)
        coins, found = numpy_generator(seed, "evolve choice"), torch.from_numpy(soft)
        if self.facts.findings:
            chosen = balanced_choice(has_and_lacks(found), count, coins)
            return Samples(images=images[chosen], labels=as_labels(found[chosen]), soft_labels=soft[chosen])
        chosen = balanced_choice(found, count, coins)
        soft = soft[chosen]
        return Samples(images=images[chosen], labels=soft.argmax(axis=1).astype(np.int64), soft_labels=soft)

    def unvoted(self, seed: int) -> "FittedEvolve":
        """The same generator, variations and classifier with random candidates that nobody voted on: a control."""
        count, each = self.candidates.shape[:2]
        first = self.generator.random(torch.arange(count).repeat_interleave(each) % self.facts.classes, seed)
        even = Survivors(shares=torch.full((each,), 1 / each, dtype=torch.float64), were_elected=False)
        return replace(self, candidates=first.reshape(self.candidates.shape), survivors=(even,) * count)

    def _drawn(self, count: int, seed: int) -> tuple[Images, Labels]:
        """Images, and the class that each was evolved for."""
        asked = np.arange(count) % len(self.candidates)
        images = np.zeros((count, *self.facts.shape), dtype=np.uint8)
        for label, (own, alive) in enumerate(zip(self.candidates, self.survivors, strict=True)):
            places = np.flatnonzero(asked == label)
            coins = derive_seed(seed, f"evolve samples {label}")
            parents = alive.drawn(len(places), torch_generator(coins, "evolve parents"))
            order = torch.randperm(len(parents), generator=torch_generator(coins, "evolve order"))
            images[places] = as_bytes(self.generator.vary(own[parents[order]], self.degree, coins)).numpy()
        return images, asked.astype(np.int64)

    def warnings(self) -> list[str]:
        """That public images are shown, that nobody compared those of the user's generator, that votes were few."""
        found = [SHOWS_PUBLIC.replace(", and the generator,", "")] if self.shows_public else []
        if self.own_generator is not None:
            found.append(
                f"The images are made by {self.own_generator}, which was not compared with the private images: that it "
                "knows none of them is the word of who ran this."
            )
        names = (*self.facts.class_names, *(["images without a finding"] if self.facts.findings else []))
        lost = [name for name, own in zip(names, self.survivors, strict=True) if not own.were_elected]
        if lost:
            found.append(
                f"Of {', '.join(lost)} no image got more votes than noise explains; theirs are left to chance."
            )
        return found
