"""How strong the directions are whose covariance is not estimated: their mean square, in a few bands.

Noise lets a class estimate the covariance of some tens of directions (config.py), and an image has hundreds. Left at
the public strength, the others are noise on every sample wherever private images have less fine detail than public
ones. A few numbers of each image say how much less, and noise hardly moves a few numbers of a class.

Privacy: no release of its own. A row is the mean squares of one image, clipped to length 1; `MomentRows` gives it a
share of the one row that is summed. Bands, bound and public strength come from public images.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_LEAST = 0.02  # of a band, against 1 of the public population


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
        lengths = torch.tensor([end - start for start, end in pairwise(self.edges)])
        return strengths.repeat_interleave(lengths, dim=1)


def _mean_squares(v: Tensor, edges: tuple[int, ...]) -> Tensor:
    """(b, bands) of coordinates (b, d), in float64."""
    return torch.stack([v[:, start:end].double().square().mean(dim=1) for start, end in pairwise(edges)], dim=1)
