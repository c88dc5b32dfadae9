"""From the generator's own latents to those of the private population: prefer what fits, then move it.

The generator's own latents are not normal, and what is not normal about them makes its images good. So a sample starts
from one of them. Those likelier under the private Gaussian than under the public one are kept more often (rejection
sampling, tempered so that half of the draws still count), and an affine map of least movement brings what is kept to
the fitted mean and covariance. The better the choice, the less is left to move, and stretched latents are what spoils
images.

Privacy: post-processing of the noisy moments (latent_fit.py), with the generator and public coins.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.methods.latent.moments import positive, symmetric_root

_STILL_COUNT = 0.5  # of the draws, by their effective number
_MOST_WEIGHT = 4.0  # of a draw, against the usual one
_HALVINGS = 30


@dataclass(frozen=True, kw_only=True)
class ClassLatents:
    """A Gaussian of the first k coordinates for each class, or several side by side, and how draws come to it."""

    shares: Tensor  # (gaussians,)
    means: Tensor  # (gaussians, k)
    slopes: Tensor  # (gaussians, k): a draw v is kept with probability exp(slope v - v' curve v / 2 - offset)
    curves: Tensor  # (gaussians, k, k)
    offsets: Tensor  # (gaussians,)
    middles: Tensor  # (gaussians, k): the mean of what is kept
    maps: Tensor  # (gaussians, k, k): from their covariance to the fitted one

    @classmethod
    def of(
        cls, shares: Tensor, means: Tensor, covariances: Tensor, draws: Tensor | None = None, *, prefer: bool = False
    ) -> "ClassLatents":
        """With `draws` (n, d) of the source that will be moved; without, the source is standard normal."""
        one = torch.eye(means.shape[1], dtype=means.dtype)
        parts = []
        for mean, covariance in zip(means, map(positive, covariances), strict=True):
            slope, curve, offset = torch.zeros_like(mean), torch.zeros_like(one), torch.zeros_like(mean[0])
            middle, spread = torch.zeros_like(mean), one
            if draws is not None:
                v = draws[:, : len(mean)].to(means.dtype)
                if prefer:
                    precision = torch.linalg.inv(covariance)
                    strength, offset = _tempered(_preference(v, precision @ mean, precision - one))
                    slope, curve = strength * precision @ mean, strength * (precision - one)
                weights = _kept_share(_preference(v, slope, curve) - offset)
                weights = weights / weights.sum()
                middle = weights @ v
                spread = positive((v - middle).T * weights @ (v - middle))
            parts.append((mean, slope, curve, offset, middle, _least_movement(spread, covariance)))
        names = ("means", "slopes", "curves", "offsets", "middles", "maps")
        stacked = {name: torch.stack(part).float() for name, part in zip(names, zip(*parts, strict=True), strict=True)}
        return cls(shares=shares.float(), **stacked)

    @property
    def size(self) -> int:
        """k: the coordinates after these keep the public distribution."""
        return self.means.shape[1]

    def draw(
        self, source: Callable[[int], Tensor], chosen: Tensor, coins: torch.Generator, truncation: float = 1.0
    ) -> Tensor:
        """Coordinates (b, d) of the Gaussians `chosen` (b,) from the draws (n, d) that `source` makes."""
        counts = chosen.bincount(minlength=len(self.shares)).tolist()
        parts = [
            self.moved(self._kept(source, number, count, coins), number, truncation)
            for number, count in enumerate(counts)
            if count
        ]
        return torch.cat(parts)[chosen.argsort(stable=True).argsort()]

    def _kept(self, source: Callable[[int], Tensor], number: int, count: int, coins: torch.Generator) -> Tensor:
        """Draws that stand the choice of one Gaussian."""
        kept: list[Tensor] = []
        while count:
            pool = source(int(_MOST_WEIGHT) * count)
            wanted = _preference(pool[:, : self.size], self.slopes[number], self.curves[number])
            share = _kept_share(wanted - self.offsets[number])
            kept.append(pool[torch.rand(len(pool), generator=coins) < share][:count])
            count -= len(kept[-1])
        return torch.cat(kept)

    def moved(self, v: Tensor, number: int, truncation: float = 1.0) -> Tensor:
        """Kept draws (b, d) brought to the Gaussian; truncation pulls all coordinates in."""
        first = (v[:, : self.size] - self.middles[number]) @ self.maps[number].T
        return torch.cat([self.means[number] + truncation * first, truncation * v[:, self.size :]], dim=1)


def _preference(v: Tensor, slope: Tensor, curve: Tensor) -> Tensor:
    """Logarithms (b,) of how much rows v are preferred."""
    return v @ slope - 0.5 * (v @ curve * v).sum(dim=1)


def _kept_share(logarithms: Tensor) -> Tensor:
    """With which probabilities draws are kept."""
    return logarithms.clamp(max=0).exp()


def _tempered(preference: Tensor) -> tuple[float, Tensor]:
    """The largest power up to 1 with which so many of the draws still count, and the offset to it."""
    low, high = 0.0, 1.0

    def offset(power: float) -> Tensor:
        return (power * preference).logsumexp(dim=0) + math.log(_MOST_WEIGHT / len(preference))

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = _kept_share(middle * preference - offset(middle))
        count = float(weights.sum().square() / weights.square().sum())
        low, high = (middle, high) if count > _STILL_COUNT * len(preference) else (low, middle)
    return low, offset(low)


def _least_movement(before: Tensor, after: Tensor) -> Tensor:
    """The symmetric map between centred normals of these covariances: optimal transport (Olkin and Pukelsheim 1982)."""
    root = symmetric_root(before)
    inverse = torch.linalg.inv(root)
    movement: Tensor = inverse @ symmetric_root(root @ after @ root) @ inverse
    return movement
