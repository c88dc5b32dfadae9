"""Images from which kernel ridge regression predicts the private labels (KIP), led by two moments of fixed features.

Nguyen, Chen and Lee, "Dataset meta-learning from kernel ridge regression" (ICLR 2021). Theirs is the kernel of an
infinitely wide network, and they read private images at every step. Here the kernel is the product of scattering codes
c(x) of length 1, so that regression on the images has d x K weights W, and its squared error over all private records,

    sum |y - W' c|^2 = sum |y|^2 - 2 tr(W' sum c y') + tr(W' (sum c c') W),

needs two sums of them and nothing else. They are released once; every move of the images is post-processing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.core.errors import VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_floats
from veilset.methods.pldk.trajectories import image_optimizer, to_logits
from veilset.methods.shared.facts import require_square
from veilset.models.features.embeddings import ImageEmbedding, working_side
from veilset.privacy.vault import PublicFacts

CLASS_PART, SECOND_PART = 0.8, 0.6
"""Lengths of a row's two parts: its code in the block of its class, and the code's second moments. Together 1."""

_PICTURES = 1000  # drawn ones, that fix the directions of the code
_FEWEST_RANDOM_FEATURES = 4  # of the embedding; they are not used here
_AT_ONCE = 100


def public_code(facts: PublicFacts, size: int, seed: int) -> ImageEmbedding:
    """Codes fixed by drawn pictures and the seed; no image of anyone is read."""
    require_square(facts)
    side, channels = working_side(facts.shape[0]), facts.shape[2]
    return ImageEmbedding(
        "scattering",
        drawn_patterns(_PICTURES, side, channels, torch_generator(seed, "kernel pictures")),
        code_size=size,
        random_features=_FEWEST_RANDOM_FEATURES,
        generator=torch_generator(seed, "kernel code"),
    )


class MomentRows:
    """Rows (b, K d + d (d + 1) / 2) of images: a code in the block of its class, and the half of its second moments.

    Privacy: a row depends on its own image and label and on what is public. Its squared length is .8^2 |c|^2 + .6^2
    |c c'|^2 = .64 + .36 = 1 for a code of length 1, because entries off the diagonal, of which one of two equals is
    kept, count sqrt 2 times.
    """

    def __init__(self, embedding: ImageEmbedding, classes: int, device: str) -> None:
        self.embedding, self.classes, self.device = embedding, classes, device
        self.size = embedding.code_size
        self._upper = torch.triu_indices(self.size, self.size)
        self._weight = torch.where(self._upper[0] == self._upper[1], 1.0, math.sqrt(2))

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """The rows, on the CPU."""
        code = self.embedding.code(as_floats(images, self.device)).cpu()
        blocks = torch.zeros(len(code), self.classes, self.size)
        blocks[torch.arange(len(code)), labels] = CLASS_PART * code
        second = SECOND_PART * code[:, self._upper[0]] * code[:, self._upper[1]] * self._weight
        return torch.cat([blocks.flatten(1), second], dim=1)

    def read(self, total: Tensor, units: int) -> "KernelMoments":
        """The moments of a sum of rows, noisy or not: a mean over `units`, brought to what moments can be."""
        first, second = total[: self.classes * self.size], total[self.classes * self.size :]
        half = torch.zeros(self.size, self.size, dtype=torch.float64)
        half[self._upper[0], self._upper[1]] = second.double() / SECOND_PART / self._weight / units
        values, vectors = torch.linalg.eigh(half + half.triu(1).T)
        # A direction of negative noise would let the error fall without end.
        whole = vectors * values.clamp_min(0) @ vectors.T
        by_class = first.double().reshape(self.classes, self.size) / CLASS_PART / units
        return KernelMoments(second=whole.float(), by_class=by_class.float())


@dataclass(frozen=True, kw_only=True)
class KernelMoments:
    """The mean of c c' and, for each class, the mean over all records of c where it has that class."""

    second: Tensor  # (d, d), positive semi-definite
    by_class: Tensor  # (classes, d)

    @property
    def with_labels(self) -> Tensor:
        """The mean (d, classes) of c y', with labels around their middle: y = one-hot - 1/K."""
        return (self.by_class - self.by_class.mean(dim=0)).T


def kernel_error(moments: KernelMoments, codes: Tensor, labels: Tensor, ridge: float) -> Tensor:
    """What ridge regression on codes (n, d) leaves of the private labels, less a constant.

    The weights are W = C' (C C' + ridge)^-1 Y: those of kernel ridge regression.
    """
    classes = len(moments.by_class)
    wanted = torch.nn.functional.one_hot(labels, classes).to(codes) - 1 / classes
    kernel = codes @ codes.T + ridge * torch.eye(len(codes), dtype=codes.dtype)
    weights = codes.T @ torch.linalg.solve(kernel, wanted)
    error: Tensor = (weights * (moments.second @ weights)).sum() - 2 * (weights * moments.with_labels).sum()
    return error


def match_kernel(
    moments: KernelMoments,
    embedding: ImageEmbedding,
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    rate: float,
    ridge: float,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Tensor:
    """Images (n, C, H, W) in [0, 1] moved until regression on them predicts best. Privacy: post-processing."""
    logits = to_logits(images)
    optimizer = image_optimizer([{"params": [logits], "lr": rate}])
    with progress.task("matching the kernel", steps) as task:
        for _ in range(steps):
            codes = embedding.code(torch.sigmoid(logits).to(device)).cpu()
            loss = kernel_error(moments, codes, labels, ridge)
            if not bool(torch.isfinite(loss)):
                raise VeilsetError("Matching the kernel diverged. Lower condensing_rate or raise ridge.")
            (logits.grad,) = torch.autograd.grad(loss, logits)
            optimizer.step()
            task.advance()
    return torch.sigmoid(logits).detach()


def plain_moments(rows: MomentRows, images: Tensor, labels: Tensor) -> KernelMoments:
    """The moments without noise, as published. Privacy: none."""
    parts = zip(torch.split(images, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True)
    with torch.no_grad():
        total = torch.stack([rows(*part).sum(dim=0) for part in parts]).sum(dim=0)
    return rows.read(total, len(labels))
