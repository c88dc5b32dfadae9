"""What Private Evolution leaves: candidates, how often each is drawn, and a classifier that labels. Post-processing."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images, Labels
from veilset.data.tensors import as_bytes
from veilset.methods.base import Fitted, Samples
from veilset.methods.evolve.generators import Checked
from veilset.methods.evolve.voting import Survivors
from veilset.methods.shared.image_health import soft_labels_of
from veilset.methods.shared.starting_images import balanced_choice
from veilset.models.generators.eigen import SHOWS_PUBLIC
from veilset.privacy.vault import PublicFacts

_SURPLUS = 4  # images drawn for each one that is released, where a classifier labels them


@dataclass(frozen=True, kw_only=True)
class FittedEvolve(Fitted):
    """The last candidates, drawn by their noisy votes and varied a little.

    Args:
        candidates: of each class, (classes, candidates, C, H, W).
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
            soft = soft_labels_of(self.teacher, images, self.device)
        chosen = balanced_choice(torch.from_numpy(soft), count, numpy_generator(seed, "evolve choice"))
        soft = soft[chosen]
        return Samples(images=images[chosen], labels=soft.argmax(axis=1).astype(np.int64), soft_labels=soft)

    def _drawn(self, count: int, seed: int) -> tuple[Images, Labels]:
        """Images, and the class that each was evolved for."""
        asked = np.arange(count) % self.facts.classes
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
        lost = [name for name, own in zip(self.facts.class_names, self.survivors, strict=True) if not own.were_elected]
        if lost:
            found.append(
                f"Of {', '.join(lost)} no image got more votes than noise explains; theirs are left to chance."
            )
        return found
