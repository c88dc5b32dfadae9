"""The tail: directions whose covariance is not estimated. Their class means, and their mean square in a few bands.

Noise lets a class estimate the covariance of some tens of directions (config.py), and an image has hundreds. Left at
the public mean and strength, the others say nothing of the class, and are noise on every sample wherever private images
have less fine detail than public ones. A mean has one number for each direction where a covariance has as many as there
are directions, so noise lets a class estimate the means of hundreds. Of the strength a few numbers do.

Privacy: no release of its own. A row is the clipped coordinates of one image, or its mean squares, of length at most 1;
`MomentRows` gives each a share of the one row that is summed. Bands, bounds and public values come from public images.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.latent.choices import Repair, Restore

_LEAST = 0.02  # of a band, against 1 of the public population
_USUAL = 0.5  # the quantile of public lengths that clips: lengths of many coordinates hardly differ
LEAST_SEEN = 0.3
"""A direction that the inversion sees worse than this is not amplified any further."""


def clipped(v: Tensor, clip_norm: float) -> Tensor:
    """Coordinates (b, k) no longer than `clip_norm`, in float64."""
    shorter: Tensor = clip_norm / v.double().norm(dim=1, keepdim=True).clamp(min=clip_norm)
    return v * shorter


def scaled(deviation: Tensor, expected: float) -> Tensor:
    """`deviation`, whose square noise makes `expected` larger, scaled by the share that noise does not explain."""
    return deviation * max(0.0, 1 - expected / max(float(deviation.square().sum()), 1e-300))


@dataclass(frozen=True, kw_only=True)
class TailMeans:
    """How coordinates become rows whose sum says the class means of the tail, and what the noisy sum says."""

    first: int
    last: int
    clip_norm: float
    public: Tensor  # (last - first,): means of public images, clipped as private ones are
    variances: Tensor  # (last - first,): and their variances
    left: int  # directions after the last

    @classmethod
    def of(cls, found: Tensor, first: int, last: int) -> "TailMeans | None":
        """Of the coordinates from `first` to `last`, by those (b, d) found for public images; None where none are."""
        last = min(last, found.shape[1])
        if last <= first:
            return None
        lengths = found[:, first:last].double().norm(dim=1)
        clip_norm = max(float(lengths.quantile(_USUAL)), torch.finfo(torch.float32).tiny)
        v = clipped(found[:, first:last], clip_norm)
        left = found.shape[1] - last
        return cls(first=first, last=last, clip_norm=clip_norm, public=v.mean(dim=0), variances=v.var(dim=0), left=left)

    @property
    def size(self) -> int:
        """How many numbers of a row these are."""
        return self.last - self.first

    def __call__(self, v: Tensor) -> Tensor:
        """Rows (b, size) of coordinates (b, d), no longer than 1, in float64."""
        return clipped(v[:, self.first : self.last], self.clip_norm) / self.clip_norm

    def shifts(self, rows: Tensor, noises: Tensor, counts: Tensor, repair: Repair) -> Tensor:
        """Means less the public ones, (classes, size), from noisy mean rows (classes, size).

        `noises` and `counts` (classes,) are the deviation of a number of these, and what the classes count. Early
        directions say most, so the share that noise does not explain is taken in bands, each twice as long as the one
        before.
        """
        shifts = self.clip_norm * rows - self.public
        if repair == "replace":
            return shifts
        expected = (noises * self.clip_norm).square()[:, None] + self.variances / counts[:, None]
        places = [self.first * 2**number - self.first for number in range(self.size.bit_length() + 1)]
        edges = [place for place in places if place < self.size] + [self.size]
        return torch.stack(
            [
                torch.cat([scaled(shift[a:b], float(noise[a:b].sum())) for a, b in pairwise(edges)])
                for shift, noise in zip(shifts, expected, strict=True)
            ]
        )

    def undone(self, shifts: Tensor, restore: Restore) -> Tensor:
        """The shifts of the populations behind what the search shows, as `Seen.undone` has them."""
        return shifts / self.variances.clamp(min=LEAST_SEEN) if restore in ("mean", "shift") else shifts


@dataclass(frozen=True, kw_only=True)
class TailRows:
    """How coordinates become mean squares of bands, and what the noisy means of these say."""

    edges: tuple[int, ...]  # the first coordinate of each band, and the end
    bound: float
    public: Tensor  # (bands,): mean squares of public images, clipped as private ones are

    @classmethod
    def of(cls, found: Tensor, first: int, bands: int, quantile: float) -> "TailRows | None":
        """After the `first` coordinates, by those (b, d) found for public images; None where nothing is left."""
        last = found.shape[1]
        if last <= first or bands == 0:
            return None
        # Each band is as many times as long as the one before; early directions differ most.
        places = [round(first * (last / first) ** (number / bands)) for number in range(bands + 1)]
        edges = tuple(sorted(set(places)))
        squares = _mean_squares(found, edges)
        lengths = squares.norm(dim=1)
        bound = max(float(lengths.quantile(quantile)), torch.finfo(torch.float32).tiny)
        shorter = (bound / lengths.clamp(min=bound))[:, None]
        public = (squares * shorter).mean(dim=0).clamp(min=torch.finfo(torch.float32).tiny)
        return cls(edges=edges, bound=bound, public=public)

    @property
    def bands(self) -> int:
        """How many numbers of a row these are."""
        return len(self.edges) - 1

    def __call__(self, v: Tensor) -> Tensor:
        """Rows (b, bands) of coordinates (b, d), no longer than 1, in float64."""
        squares = _mean_squares(v, self.edges)
        lengths: Tensor = squares.norm(dim=1, keepdim=True)
        return squares / lengths.clamp(min=self.bound)

    def scales(self, means: Tensor, noises: Tensor) -> Tensor:
        """By how much each class (classes, d - k) stretches public coordinates, from noisy mean rows (classes, bands).

        `noises` (classes,) is the deviation of a number of these. What noise explains is taken back, as of covariances.
        """
        deviations = self.bound * means / self.public - 1
        expected = (noises * self.bound).square() * self.public.reciprocal().square().sum()
        kept = (1 - expected / deviations.square().sum(dim=1).clamp(min=1e-300)).clamp(min=0)
        strengths = (1 + kept[:, None] * deviations).clamp(min=_LEAST).sqrt()
        return strengths.repeat_interleave(self._lengths, dim=1)

    def around(self, scales: Tensor, means: Tensor) -> Tensor:
        """The scales (classes, d - k) of what is left when the means (classes, at most d - k) explain their part."""
        whole = functional.pad(means, (0, scales.shape[1] - means.shape[1])).square()
        explained = torch.stack([part.mean(dim=1) for part in torch.split(whole, self._lengths.tolist(), dim=1)], dim=1)
        left = scales.square() - explained.repeat_interleave(self._lengths, dim=1)
        return left.clamp(min=_LEAST).sqrt()

    @property
    def _lengths(self) -> Tensor:
        return torch.tensor([end - start for start, end in pairwise(self.edges)])


def _mean_squares(v: Tensor, edges: tuple[int, ...]) -> Tensor:
    """(b, bands) of coordinates (b, d), in float64."""
    return torch.stack([v[:, start:end].double().square().mean(dim=1) for start, end in pairwise(edges)], dim=1)
