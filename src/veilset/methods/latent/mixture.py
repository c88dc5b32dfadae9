"""Several Gaussians for each class, by expectation-maximisation in noisy sums.

The Gaussian of a class comes first (methods/latent/moments.py). Its draws, cut into K heaps, give the first components.
A round shares each record out between the components of its class and reads counts and means off one noisy sum; the
components of a class have one covariance, that of the class less what the means explain, so a round need not pay for
second moments.

Privacy: unit as in the vault; relation add/remove-one; sensitivity `MeanRows.sensitivity` for the sum of a round: a row
is the outer product of responsibilities r and p = (b, u), so its length is |r| |p|, and |r| <= 1 because r is at least
0 and adds up to 1; event one Gaussian a round; assumes that the components of a round come from earlier releases.
docs/methods/latent.md has the argument.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veilset.methods.latent.moments import positive, symmetric_root
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.tails import clipped, scaled

_DRAWS = 2000
_HEAP_ROUNDS = 20
_FEWEST = 0.5  # of an even share: a component with less is too noisy to have a mean of its own


@dataclass(frozen=True, kw_only=True)
class MeanRows:
    """How coordinates become (b, u), u = clip(v, M) / M with the first `size` coordinates and M = `clip_norm`."""

    size: int
    clip_norm: float
    count_weight: float

    @property
    def sensitivity(self) -> float:
        """The most that one unit moves the whole sum of a round."""
        return math.hypot(1, self.count_weight)

    def __call__(self, v: Tensor) -> Tensor:
        """(n, 1 + k) of clipped coordinates (n, k)."""
        return torch.cat([torch.full_like(v[:, :1], self.count_weight), v / self.clip_norm], dim=1)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """K Gaussians for each class, in float64."""

    shares: Tensor  # (classes, K): of the class
    means: Tensor  # (classes, K, k)
    class_means: Tensor  # (classes, k)
    class_covariances: Tensor  # (classes, k, k)

    @classmethod
    def of(cls, means: Tensor, covariances: Tensor, components: int, coins: torch.Generator) -> "Mixture":
        """The first components, from Gaussians of the classes: means (classes, k), covariances (classes, k, k)."""
        if components == 1:
            one = torch.ones(len(means), 1, dtype=means.dtype)
            return cls(shares=one, means=means[:, None], class_means=means, class_covariances=covariances)
        parts = []
        for mean, covariance in zip(means, covariances, strict=True):
            standard = torch.randn(_DRAWS, len(mean), generator=coins, dtype=mean.dtype)
            parts.append(_heaps(mean + standard @ symmetric_root(positive(covariance)), components, coins))
        shares, centres = (torch.stack(part) for part in zip(*parts, strict=True))
        return cls(shares=shares, means=centres, class_means=means, class_covariances=covariances)

    @property
    def covariances(self) -> Tensor:
        """(classes, k, k): what is left of the covariance of each class within its components."""
        apart = self.means - (self.shares[:, :, None] * self.means).sum(dim=1, keepdim=True)
        between = torch.einsum("cj,cjx,cjy->cxy", self.shares, apart, apart)
        return torch.stack([positive(covariance) for covariance in self.class_covariances - between])

    def responsibilities(self, v: Tensor, labels: Tensor) -> Tensor:
        """(n, K): how likely each component of a record's class made its coordinates (n, k).

        Privacy: row i depends on record i and the components alone; its numbers are at least 0 and add up to 1.
        """
        factors = torch.linalg.cholesky(self.covariances)
        away = (v[:, None, None, :] - self.means).permute(1, 3, 0, 2)  # (classes, k, n, K)
        lengths = torch.linalg.solve_triangular(factors, away.flatten(2), upper=False).square().sum(dim=1)
        scores = self.shares.log()[:, None, :] - lengths.reshape(len(factors), len(v), -1) / 2
        likely: Tensor = scores[labels, torch.arange(len(v))].softmax(dim=1)
        return likely

    def rows(self, rows: MeanRows, found: Tensor, labels: Tensor) -> Tensor:
        """The rows of a round (n, K (1 + k)): the outer products of responsibilities and (b, u)."""
        v = clipped(found[:, : rows.size], rows.clip_norm)
        return (self.responsibilities(v, labels)[:, :, None] * rows(v)[:, None, :]).flatten(1)

    def rows_of(self, rows: MeanRows, search: LatentSearch, images: Tensor, labels: Tensor) -> Tensor:
        """The rows of a round of images, each found alone."""
        return self.rows(rows, search(images), labels)

    def moved(self, sums: Tensor, rows: MeanRows, noise_multiplier: float) -> "Mixture":
        """The next components, as the noisy sums (classes, K (1 + k)) of a round say."""
        classes, count = self.shares.shape
        blocks = sums.reshape(classes, count, -1)
        counts = blocks[:, :, 0] / rows.count_weight
        counts = counts.clamp(min=max(1.0, _FEWEST * float(counts.mean())))
        apart = rows.clip_norm * blocks[:, :, 1:] / counts[:, :, None] - self.class_means[:, None, :]
        # What noise explains of a mean is pulled towards the mean of the class.
        spreads = noise_multiplier * rows.sensitivity * rows.clip_norm / counts
        expected = spreads.square() * rows.size
        shifts = [scaled(d, e) for d, e in zip(apart.flatten(0, 1), expected.flatten().tolist(), strict=True)]
        return replace(
            self,
            shares=counts / counts.sum(dim=1, keepdim=True),
            means=self.class_means[:, None, :] + torch.stack(shifts).reshape(classes, count, -1),
        )


def _heaps(v: Tensor, count: int, coins: torch.Generator) -> tuple[Tensor, Tensor]:
    """Shares (K,) and centres (K, k) of rows cut into heaps by k-means, begun far apart (k-means++)."""
    centres = v[int(torch.randint(len(v), (), generator=coins))][None]
    while len(centres) < count:
        nearest = torch.cdist(v, centres).square().min(dim=1).values
        centres = torch.cat([centres, v[torch.multinomial(nearest + 1e-12, 1, generator=coins)]])
    for _ in range(_HEAP_ROUNDS):
        member = torch.nn.functional.one_hot(torch.cdist(v, centres).argmin(dim=1), count).to(v)
        sizes = member.sum(dim=0).clamp(min=1)
        centres = member.T @ v / sizes[:, None]
    return sizes / sizes.sum(), centres
