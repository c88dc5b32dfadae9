"""From starting images to a release: align them or choose among them, store 8 bits, label what is stored.

Sections 4.2 and 4.3 of DP-ImgSyn. All of it is post-processing of the teacher and the statistic.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilset.core.progress import track
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images
from veilset.methods.base import Context, Fitted, ReleasedModel, Samples
from veilset.methods.imgsyn.alignment import KeptBatches, align, turning_point
from veilset.methods.imgsyn.config import AlignSettings, ImgsynPlan
from veilset.methods.imgsyn.starting_points import StartingPoints
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.methods.shared.starting_images import Batch, balanced_choice
from veilset.privacy.vault import PublicFacts
from veilset.teachers.teacher import Teacher
from veilset.training.augment import MILD, augment
from veilset.training.memory import giving_back

_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class AlignedImages(Fitted):
    """A private teacher, what it should see, and images to show it; without moments, images are chosen only."""

    plan: ImgsynPlan
    facts: PublicFacts
    teacher: Teacher
    moments: LayerMoments | None
    target: Tensor | None
    starts: StartingPoints
    context: Context

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Align batch after batch, store 8 bits, and label what is stored."""
        config = self.plan.settings
        aligned = round(count * config.aligned_share) if config.aligns else 0
        chosen, moved = self._chosen(count - aligned, seed), self._aligned(aligned, seed)
        pictures, logits = (torch.cat(parts) for parts in zip(chosen, moved, strict=True))
        # An image and its label keep no place that tells whether it was aligned.
        order = numpy_generator(seed, "imgsyn order").permutation(count)
        soft_labels = (logits / self.plan.temperature).softmax(dim=1).numpy()[order]
        stored: Images = np.ascontiguousarray(pictures.permute(0, 2, 3, 1).numpy()[order])
        return Samples(images=stored, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The private teacher."""
        return {"teacher": ReleasedModel(weights=self.teacher.weights(), description=dict(self.teacher.description))}

    def warnings(self) -> list[str]:
        """That images which start from merf's resemble the private ones, unlike those from public images."""
        if self.starts.look_alikes is None:
            return []
        return [
            "The images start from a private generator and look like the private classes: the guarantee holds, but the "
            "dissimilarity that public images give is traded for accuracy."
        ]

    def _aligned(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Section 4.2: `count` images moved by Algorithm 1, and mild changes of them, as 8 bits; their logits."""
        if count == 0 or self.moments is None:
            return self._empty()
        config, moments, device = self.plan.settings, self.moments, self.context.device
        copies = config.copies if config.augmentation == "images" else 1
        batches = math.ceil(count / (config.batch * copies))
        starts = self.starts.batches(
            batches * config.batch, derive_seed(seed, "aligned"), variation=config.aligned_variation
        )
        alignment = self._settled(starts, moments)
        kept = KeptBatches(self.context.workspace, f"imgsyn-{count}-{seed}")

        def work(number: int) -> Tensor:
            start = starts(number, config.batch).to(device)
            moved = align(start, self._aims(number), moments, self.target, alignment).images
            # The teacher labels each copy anew, so a student learns more from it than from changing an image itself.
            coins = torch_generator(seed, f"imgsyn copies {number}", device)
            changed = [augment(moved, MILD, coins) for _ in range(copies - 1)]
            return _as_bytes(torch.cat([moved, *changed]))

        done = giving_back(track(kept.each(work, batches), self.context.progress, "aligning images", batches))
        pictures = torch.cat(list(done))[:count]
        parts = torch.split(pictures, _AT_ONCE)
        return pictures, torch.cat(list(self._labelled(parts, "labelling images", len(parts))))

    def _chosen(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """`count` of `pool` times as many starting images, so that the teacher favours no class; and its logits."""
        if count == 0:
            return self._empty()
        config, size = self.plan.settings, self.plan.settings.batch
        batches = math.ceil(count * config.pool / size)
        starts = self.starts.batches(batches * size, derive_seed(seed, "chosen"), variation=config.variation)
        candidates = (_as_bytes(starts(number, size)) for number in range(batches))
        logits = torch.cat(list(self._labelled(candidates, "looking for images of all classes", batches)))
        rows = balanced_choice(logits.softmax(dim=1), count, numpy_generator(seed, "imgsyn choice"))
        # Made a second time instead of kept: what is chosen fits into memory, what it is chosen from may not.
        parts = [_as_bytes(starts(int(n), size))[rows[rows // size == n] % size] for n in np.unique(rows // size)]
        return torch.cat(parts), logits[torch.from_numpy(rows)]

    def _labelled(self, batches: Iterable[Tensor], what: str, total: int) -> Iterator[Tensor]:
        """Section 4.3: the teacher's logits (b, classes) of 8-bit images."""
        with torch.no_grad():
            for part in giving_back(track(batches, self.context.progress, what, total)):
                yield self.teacher(part.to(self.context.device).float() / 255).cpu()

    def _aims(self, number: int) -> Tensor:
        """Line 2 of Algorithm 1: target labels, all classes in turn over the whole release."""
        batch = self.plan.settings.batch
        return (torch.arange(number * batch, (number + 1) * batch) % self.facts.classes).to(self.context.device)

    def _settled(self, starts: Batch, moments: LayerMoments) -> AlignSettings:
        """The alignment with the number of its iterations fixed, by the first batch if it is to be found."""
        config = self.plan.settings
        if config.stop == "fixed":
            return config
        first = starts(0, config.batch).to(self.context.device)
        curve = align(first, self._aims(0), moments, self.target, config).variations
        return config.changed(iterations=turning_point(curve))

    def _empty(self) -> tuple[Tensor, Tensor]:
        height, width, channels = self.facts.shape
        return torch.empty(0, channels, height, width, dtype=torch.uint8), torch.empty(0, self.facts.classes)


def _as_bytes(images: Tensor) -> Tensor:
    """8-bit images that keep their channels first."""
    return (images * 255).round().to(torch.uint8).cpu()
