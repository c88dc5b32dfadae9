"""From starting images to a release: align them or choose among them, store 8 bits, label what is stored.

Sections 4.2 and 4.3 of DP-ImgSyn. All of it is post-processing of the teacher and the statistic.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilset.core.progress import track
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images
from veilset.data.tensors import as_floats
from veilset.methods.base import Context, Fitted, ReleasedModel, Samples
from veilset.methods.imgsyn.alignment import ANY, KeptBatches, align, turning_point
from veilset.methods.imgsyn.config import AlignSettings, ImgsynPlan
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.methods.shared.choices import Start, Variation
from veilset.methods.shared.findings import as_labels, has_and_lacks
from veilset.methods.shared.starting_images import balanced_choice, starting_images
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.counts import Counts
from veilset.teachers.planning import hidden_below
from veilset.teachers.teacher import Teacher
from veilset.training.augment import MILD, augment
from veilset.training.memory import giving_back

Starts = Callable[[int], Tensor]
"""From the number of a batch to its starting images in [0, 1], (batch, C, H, W); the same number, the same images."""

_AT_ONCE = 100
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class AlignedImages(Fitted):
    """A private teacher, what it should see, and images to show it; without moments, images are chosen only.

    Images start from public ones, noise, drawn patterns, or those of a private generator (`look_alikes`).
    """

    plan: ImgsynPlan
    facts: PublicFacts
    teacher: Teacher
    counts: Counts | None
    moments: LayerMoments | None
    target: Tensor | None
    public: Public | None
    look_alikes: Fitted | None
    context: Context

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Align batch after batch, store 8 bits, and label what is stored."""
        aligned = round(count * self.plan.making.aligned_share) if self.plan.aligns else 0
        chosen, moved = self._chosen(count - aligned, seed), self._aligned(aligned, seed)
        pictures, logits = (torch.cat(parts) for parts in zip(chosen, moved, strict=True))
        # An image and its label keep no place that tells whether it was aligned.
        order = numpy_generator(seed, "imgsyn order").permutation(count)
        stored: Images = np.ascontiguousarray(pictures.permute(0, 2, 3, 1).numpy()[order])
        if self.facts.findings:
            found = logits.sigmoid()[torch.from_numpy(order)]
            return Samples(images=stored, labels=as_labels(found), soft_labels=found.numpy())
        soft_labels = (logits / self.plan.temperature).softmax(dim=1).numpy()[order]
        return Samples(images=stored, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The private teacher."""
        return {"teacher": ReleasedModel(weights=self.teacher.weights(), description=dict(self.teacher.description))}

    def warnings(self) -> list[str]:
        """Classes that noise hides; and that images which start from a private generator resemble the private ones."""
        found = []
        if self.counts is not None:
            found = self.counts.drowned(self.facts.class_names, hidden_below(self.plan.budget))
        if self.look_alikes is None:
            return found
        return [
            *found,
            *self.look_alikes.warnings(),
            "The images start from a private generator and look like the private classes: the guarantee holds, but the "
            "dissimilarity that public images give is traded for accuracy.",
        ]

    def _aligned(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Section 4.2: `count` images moved by Algorithm 1, and mild changes of them, as 8 bits; their logits."""
        if count == 0 or self.moments is None:
            return self._empty()
        config, moments, device = self.plan.settings, self.moments, self.context.device
        copies = config.copies if config.augmentation == "images" else 1
        batches = math.ceil(count / (config.batch * copies))
        starts = self._starts(batches, derive_seed(seed, "aligned"), config.aligned_variation)
        alignment = self._settled(starts, moments)
        kept = KeptBatches(self.context.workspace, f"imgsyn-{count}-{seed}")

        def work(number: int) -> Tensor:
            start = starts(number).to(device)
            moved = align(start, self._aims(number), moments, self.target, alignment).images
            # The teacher labels each copy anew, so a student learns more from it than from changing an image itself.
            coins = torch_generator(seed, f"imgsyn copies {number}", device)
            changed = [augment(moved, MILD, coins) for _ in range(copies - 1)]
            return _as_bytes(torch.cat([moved, *changed]))

        done = self._tracked(kept.each(work, batches), "aligning images", batches)
        pictures = torch.cat(list(done))[:count]
        parts = torch.split(pictures, _AT_ONCE)
        return pictures, torch.cat(list(self._labelled(parts, "labelling images", len(parts))))

    def _chosen(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """`count` of `pool` times as many starting images, so that the teacher favours no class; and its logits."""
        if count == 0:
            return self._empty()
        making, size = self.plan.making, self.plan.settings.batch
        batches = math.ceil(count * making.pool / size)
        starts = self._starts(batches, derive_seed(seed, "chosen"), making.variation)
        candidates = (_as_bytes(starts(number)) for number in range(batches))
        logits = torch.cat(list(self._labelled(candidates, "looking for images of all classes", batches)))
        coins, shares = numpy_generator(seed, "imgsyn choice"), self._shares()
        if self.facts.findings:  # who has a finding and who lacks it are two classes of each
            shares = None if shares is None else torch.cat([shares, 1 - shares])
            rows = balanced_choice(has_and_lacks(logits.sigmoid()), count, coins, shares)
        else:
            rows = balanced_choice(logits.softmax(dim=1), count, coins, shares)
        # Made a second time instead of kept: what is chosen fits into memory, what it is chosen from may not.
        parts = [_as_bytes(starts(int(n)))[rows[rows // size == n] % size] for n in np.unique(rows // size)]
        return torch.cat(parts), logits[torch.from_numpy(rows)]

    def _labelled(self, batches: Iterable[Tensor], what: str, total: int) -> Iterator[Tensor]:
        """Section 4.3: the teacher's logits (b, classes) of 8-bit images."""
        with torch.no_grad():
            for part in self._tracked(batches, what, total):
                yield self.teacher(part.to(self.context.device).float() / 255).cpu()

    def _tracked(self, batches: Iterable[Tensor], what: str, total: int) -> Iterator[Tensor]:
        """The batches of a long loop, which is shown and gives memory back."""
        yield from giving_back(track(batches, self.context.progress, what, total))

    def _starts(self, batches: int, seed: int, variation: Variation) -> Starts:
        """Starting images, by the number of their batch."""
        config, seed = self.plan.settings, derive_seed(seed, "imgsyn start")
        size = config.batch
        if self.look_alikes is not None:
            drawn = self.look_alikes.sample(batches * size, seed).images
            return lambda number: as_floats(torch.from_numpy(drawn[number * size : (number + 1) * size]))
        kind: Start = "drawn" if self.public is None else "public"
        if config.start != "auto" and config.start != "merf" and config.start != "latent":
            kind = config.start
        images = starting_images(kind, self.facts.shape, self.public, variation=variation, blur=config.blur, seed=seed)
        return lambda number: images(number, size)

    def _aims(self, number: int) -> Tensor:
        """Line 2 of Algorithm 1: target labels, all classes in turn, or by their shares, over the whole release.

        Of findings one is asked of each image in turn, to have it or to lack it; the others are free (`ANY`).
        """
        batch, classes, shares = self.plan.settings.batch, self.facts.classes, self._shares()
        places = torch.arange(number * batch, (number + 1) * batch)
        spread = (places.double() * _GOLDEN) % 1  # even over [0, 1), however many places
        if not self.facts.findings:
            asked = places % classes if shares is None else torch.bucketize(spread, shares.cumsum(0)[:-1], right=True)
            return asked.to(self.context.device)
        asked = places % classes
        has = (places // classes) % 2 == 0 if shares is None else spread < shares[asked]
        aims = torch.full((batch, classes), ANY)
        aims[torch.arange(batch), asked] = has.long()
        return aims.to(self.context.device)

    def _shares(self) -> Tensor | None:
        """The proportions of the classes that are released, where they are not even."""
        return None if self.counts is None or self.plan.settings.balance == "even" else self.counts.shares()

    def _settled(self, starts: Starts, moments: LayerMoments) -> AlignSettings:
        """The alignment with the number of its iterations fixed, by the first batch if it is to be found."""
        config = self.plan.settings
        if config.stop == "fixed":
            return config
        first = starts(0).to(self.context.device)
        curve = align(first, self._aims(0), moments, self.target, config).variations
        return config.changed(iterations=turning_point(curve))

    def _empty(self) -> tuple[Tensor, Tensor]:
        height, width, channels = self.facts.shape
        return torch.empty(0, channels, height, width, dtype=torch.uint8), torch.empty(0, self.facts.classes)


def _as_bytes(images: Tensor) -> Tensor:
    """8-bit images that keep their channels first."""
    return (images * 255).round().to(torch.uint8).cpu()
