"""Votes of private images for candidates, and what noisy votes leave alive.

Privacy: `Ballot.__call__` is the row function of a Gaussian sum: a function of one image, its label and public numbers.
Everything else here sees noisy votes only.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.data.tensors import as_floats
from veilset.methods.evolve.features import Features
from veilset.privacy.rows import alone
from veilset.privacy.vault import PublicFacts

_AT_ONCE = 128
_SHARE_WITHOUT_SURVIVORS = 0.1


class Ballot:
    """For each image its votes (b, candidates) for the nearest candidates of its class.

    An image with k findings votes among the candidates of each of them, with 1/sqrt(k); one without any among those of
    images without any. Its votes are one vector (b, kinds * candidates) then.

    Args:
        features: the fixed space.
        rows: features of the candidates, (classes, candidates, d).
        votes: how many candidates an image votes for.
        facts: of the vault.
        device: where features are computed.

    Privacy: row i depends on image i, its label and the candidates alone; its length is 1. A last bit decides between
    candidates that are alike, so distances are computed at a batch size at which, on this machine, random images get
    the same bits at every place and in any company.
    """

    def __init__(self, features: Features, rows: Tensor, votes: int, facts: PublicFacts, device: str) -> None:
        self._features, self._device, self._votes = features, device, votes
        self._shape = rows.shape[:2]
        flat = rows.flatten(0, 1).to(device)
        # The nearest row c to a row f is that with the largest f'c - c'c / 2.
        self._directions, self._offsets = flat.T.contiguous(), flat.square().sum(dim=1) / 2
        self._nearness, _ = alone(self._near, facts, _AT_ONCE)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Votes of 8-bit images (b, H, W, C): 1/sqrt(votes) for each candidate that is voted for, 0 elsewhere."""
        near = self._nearness(images, labels).reshape(len(images), *self._shape)
        if labels.ndim == 1:
            return self._cast(near[torch.arange(len(images)), labels])
        kinds = torch.cat([labels, 1 - labels.amax(dim=1, keepdim=True)], dim=1).double()
        weights = kinds / kinds.sum(dim=1, keepdim=True).sqrt()
        return (weights[:, :, None] * self._cast(near)).flatten(1)

    def _cast(self, near: Tensor) -> Tensor:
        """Votes for the nearest of candidates (..., candidates), of length 1."""
        cast = torch.zeros_like(near, dtype=torch.float64)
        for _ in range(self._votes):
            # argmax is of the first of several equal candidates.
            nearest = near.argmax(dim=-1, keepdim=True)
            cast.scatter_(-1, nearest, 1 / math.sqrt(self._votes))
            near = near.scatter(-1, nearest, -math.inf)
        return cast

    def _near(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002 (the form of a mechanism's callback)
        rows = self._features(as_floats(images, self._device))
        return (rows @ self._directions - self._offsets).nan_to_num(nan=0.0).cpu()


@dataclass(frozen=True, kw_only=True)
class Survivors:
    """How often each candidate of a class is to be drawn, and whether votes or chance said so."""

    shares: Tensor  # (candidates,) of float64, adding up to 1
    were_elected: bool

    @classmethod
    def of(cls, votes: Tensor, threshold: float) -> "Survivors":
        """What is left of noisy votes (candidates,) above a threshold; where nothing is, the best few alike."""
        left = (votes.double() - threshold).clamp(min=0)
        if bool(left.sum() > 0):
            return cls(shares=left / left.sum(), were_elected=True)
        count = max(1, int(_SHARE_WITHOUT_SURVIVORS * len(votes)))
        best = votes.argsort(descending=True, stable=True)[:count]
        return cls(shares=torch.zeros_like(left).index_fill(0, best, 1 / count), were_elected=False)

    def best(self, most: int) -> Tensor:
        """The numbers of at most so many survivors, those with the most votes first."""
        order = self.shares.argsort(descending=True, stable=True)[:most]
        return order[self.shares[order] > 0]

    def drawn(self, count: int, coins: torch.Generator) -> Tensor:
        """Numbers of `count` survivors, each as often as its share says, up to one (systematic resampling)."""
        places = (torch.arange(count) + torch.rand((), generator=coins, dtype=torch.float64)) / count
        return torch.searchsorted(self.shares.cumsum(0), places).clamp(max=len(self.shares) - 1)
