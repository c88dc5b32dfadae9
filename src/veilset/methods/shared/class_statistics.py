"""What each class looks like on average (dfd, dpgan, pate): a noisy sum, and a generator drawn to it (dfd, pate).

The features are those of `models/features/embeddings.py`; matching their class means is the idea of DP-MERF (Harder et
al. 2021). Here it gives the generators of data-free methods the look of the private classes, which a classifier's
gradient alone does not hold.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from veilset.core.randomness import torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_floats
from veilset.methods.shared.class_counts import drowned_classes, sensible_counts
from veilset.methods.shared.facts import require_square
from veilset.models.features.embeddings import ImageEmbedding, working_side
from veilset.privacy.events import Event
from veilset.privacy.rows import PerImage
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts

# Lengths of a record's two parts, its random features and its count of one. Together 1.
_COUNT_PART = 0.1
_FEATURES_PART = math.sqrt(1 - _COUNT_PART**2)
_CODE_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class ClassStatistics:
    """Noisy means of the random features of each class, and noisy shares of the classes."""

    means: Tensor  # (classes, random_features)
    shares: Tensor  # (classes,), adding up to 1
    drowned: tuple[str, ...] = ()
    """A warning for each class that noise hides, by its noisy count."""

    @classmethod
    def from_sums(cls, sums: Tensor, units: int) -> "ClassStatistics":
        """Divide by the noisy counts, which the public number of units keeps within reason."""
        counts = sensible_counts(sums[:, -1] / _COUNT_PART, units)
        return cls(means=(sums[:, :-1] / _FEATURES_PART / counts[:, None]).float(), shares=(counts / units).float())


class SummedFeatures(Protocol):
    """Features that may be summed over private images: fixed in advance, each row from its own image alone."""

    def summed(self, images: Tensor) -> Tensor:
        """Rows (b, d) of length at most 1 of images in [0, 1]."""

    def restored(self, means: Tensor) -> Tensor:
        """Means of the features themselves, from means of `summed` rows."""


def public_embedding(facts: PublicFacts, *, random_features: int, pictures: int, seed: int) -> ImageEmbedding:
    """Features fixed by drawn pictures and the seed; no image of anyone is read."""
    require_square(facts)
    size, _, channels = facts.shape
    return ImageEmbedding(
        "scattering",
        drawn_patterns(pictures, working_side(size), channels, torch_generator(seed, "embedding pictures")),
        code_size=min(_CODE_SIZE, pictures - 1),
        random_features=random_features,
        generator=torch_generator(seed, "embedding"),
    )


def read_statistics(session: Session, features: SummedFeatures, event: Event, *, device: str) -> ClassStatistics:
    """Spend the event on the class sums of the features.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity 1, the length of a unit's row, whichever classes
    it touches; event one Gaussian, un-subsampled; assumes features, and a centre of them, that are fixed by public
    pictures, and that treat every image alone.
    """

    def row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 (the session places rows by class)
        rows = features.summed(as_floats(images, device))
        count = torch.full_like(rows[:, :1], _COUNT_PART)
        return torch.cat([_FEATURES_PART * rows, count], dim=1).cpu()

    sums = session.gaussian_sum(row, event, clip_norm=1.0, by_class=True)
    found = ClassStatistics.from_sums(sums, session.facts.units)
    deviation = event.noise_multiplier / _COUNT_PART
    return ClassStatistics(
        means=features.restored(found.means),
        shares=found.shares,
        drowned=drowned_classes(sums[:, -1] / _COUNT_PART, deviation, session.facts, session.plan.budget),
    )


def code_rows(embedding: ImageEmbedding, device: str) -> PerImage:
    """The codes of 8-bit images, for mechanisms."""

    def row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        return embedding.code(as_floats(images, device)).cpu()

    return row


class MeanMatching:
    """The distance of a generator's class means to the noisy ones, with the images of earlier steps kept in.

    The mean of one batch alone is noisier than what is left to match; the division by 1 - keep gives the batch's own
    images the weight that they would have alone.
    """

    def __init__(self, target: Tensor, memory: float) -> None:
        self.target, self.memory = target, memory
        self.remembered = torch.zeros_like(target)
        self.steps = 0

    def loss(self, features: Tensor, classes: Tensor) -> Tensor:
        """Of features (len(classes) * m, d), m images of each class in turn."""
        keep = min(self.memory, self.steps / (self.steps + 3))
        batch_mean = features.reshape(len(classes), -1, features.shape[1]).mean(dim=1)
        mean = keep * self.remembered[classes] + (1 - keep) * batch_mean
        self.remembered[classes] = mean.detach()
        self.steps += 1
        return (mean - self.target[classes]).square().sum(dim=1).mean() / (1 - keep)
