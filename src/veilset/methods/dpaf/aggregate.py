"""The critic of DPAF between steps: aggregates of both sides, and the three losses of its Algorithm 1.

Nothing here reads private rows or adds privacy noise; `methods/dpaf/method.py` does, through its session.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.dpaf.critic import Features, Top

# Length of the coordinate that counts images, against that of an image's features.
_COUNT_PART = 0.1
# So that a clipped row stays below its bound in spite of rounding.
_JUST_BELOW_ONE = 1 - 1e-6


def loss_on_noisy_aggregate(top: Top, real: Tensor, generated: Tensor) -> Tensor:
    """L_BCE: conv3* and FC* tell the noisy aggregate of real images from that of generated ones, block by block."""
    labels = torch.arange(len(real), device=real.device)
    return functional.softplus(-top(real, labels)).mean() + functional.softplus(top(generated, labels)).mean()


def loss_through_noisy_aggregate(features: Tensor, blocks: Tensor, upstream: Tensor) -> Tensor:
    """L'_BCE, as far as one image goes, (b,): its features along the upstream gradient of its block.

    `upstream` (blocks, width) was taken at the noisy aggregate and is public, so each value is its own image's.
    """
    return (features * upstream[blocks]).sum(dim=1)


def loss_of_generated(top: Top, rows: Tensor, blocks: Tensor) -> Tensor:
    """L''_BCE: the generator wants its rows, samples or aggregates, to be taken for real."""
    return functional.softplus(-top(rows, blocks)).mean()


def upstream_gradient(top: Top, real: Tensor) -> tuple[Tensor, float]:
    """The gradient of the real half of L_BCE at the noisy aggregate (blocks, width), and its length per block.

    It is scaled to root mean square length 1 over the blocks, so that one clip norm serves the whole training.
    """
    point = real.detach().requires_grad_()
    with torch.enable_grad():
        labels = torch.arange(len(point), device=point.device)
        (gradient,) = torch.autograd.grad(functional.softplus(-top(point, labels)).sum(), point)
    length = float(gradient.norm()) / math.sqrt(len(gradient))
    return gradient / max(length, 1e-12), length


def class_rows(features: Features, rows: Tensor, labels: Tensor) -> Tensor:
    """Each image's contribution to the aggregate: its features, clipped to R, and a constant to count it by."""
    made = features(rows, labels)
    made = made * (_JUST_BELOW_ONE * features.bound / made.norm(dim=1, keepdim=True).clamp(min=features.bound))
    return torch.cat([made, made.new_full((len(made), 1), _COUNT_PART * features.bound)], dim=1)


def row_bound(features: Features) -> float:
    """The largest length of a row of `class_rows`."""
    return features.bound * math.sqrt(1 + _COUNT_PART**2)


def block_means(features: Tensor, blocks: Tensor, count: int) -> Tensor:
    """(count, width) mean features of each block; zeros for a block without images."""
    sums = features.new_zeros(count, features.shape[1]).index_add(0, blocks, features)
    counts = torch.bincount(blocks, minlength=count).clamp(min=1)
    return sums / counts[:, None]


class NoisyMeans:
    """Means of the blocks from noisy sums, the last `memory` of them averaged; and how much noise is left in them."""

    def __init__(self, blocks: int, width: int, memory: int) -> None:
        self.keep = 1 - 1 / memory
        self.sums = torch.zeros(blocks, width + 1, dtype=torch.float64)
        self.weight = self.squares = 0.0

    def add(self, sums: Tensor) -> None:
        """Take in noisy sums of `class_rows`, (blocks, width + 1)."""
        self.sums = self.keep * self.sums + sums.double().cpu()
        self.weight = self.keep * self.weight + 1
        self.squares = self.keep**2 * self.squares + 1

    def read(self, bound: float, spread: float, expected: float) -> tuple[Tensor, Tensor]:
        """Means (blocks, width), and the deviation of the noise in each one (blocks, 1).

        Counts are kept within a tenth of, and ten times, what `expected` units of a sum would give an even block.
        """
        even = self.weight * expected / len(self.sums)
        counts = (self.sums[:, -1:] / (_COUNT_PART * bound)).clamp(0.1 * even, 10 * even)
        noise = spread * math.sqrt(self.squares) / counts
        return (self.sums[:, :-1] / counts).float(), noise.float()

    def state(self) -> dict[str, Any]:
        """Plain data that `load` takes up."""
        return {"sums": self.sums, "weight": self.weight, "squares": self.squares}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.sums = state["sums"].cpu()
        self.weight, self.squares = float(state["weight"]), float(state["squares"])
