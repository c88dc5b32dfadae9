"""What labels released images: a private classifier of latents, or a discriminant of the fitted Gaussians.

A Gaussian knows of its class what the noisy moments say. A classifier is trained to tell the classes apart and nothing
else, so it is right more often, also about images that were drawn for one class and turned out as another.

Privacy: post-processing; `fit` trains the classifier.
"""

import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.methods.latent.moments import positive

_MATCHINGS = 100


class Labels(Protocol):
    """What tells the class of an image by its coordinates."""

    @property
    def findings(self) -> bool:
        """Whether an image may have several."""

    def probabilities(self, v: Tensor) -> Tensor:
        """(b, classes) for coordinates (b, d); of findings, of each by itself, (b, F)."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A linear classifier of coordinates along the first directions, times the roots of their deviations.

    So directions of little public variance count less than others, and more than they do in pixels, as in
    models/features/code.py.
    """

    linear: nn.Linear
    stretch: Tensor
    findings: bool

    @classmethod
    def untrained(cls, deviations: Tensor, classes: int, *, findings: bool) -> "Head":
        """One that starts from even odds, along the directions of these deviations (directions,)."""
        linear = nn.Linear(len(deviations), classes)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return cls(linear=linear, stretch=deviations.sqrt().float().cpu(), findings=findings)

    def code(self, v: Tensor) -> Tensor:
        """What it reads: rows (b, directions) of length 1, each of its own coordinates (b, d)."""
        return functional.normalize(v[:, : len(self.stretch)].float() * self.stretch, dim=1)

    @torch.no_grad()
    def probabilities(self, v: Tensor) -> Tensor:
        """As `Labels` says."""
        logits = self._logits(v)
        return logits.sigmoid() if self.findings else logits.softmax(dim=1)

    def offset(self, logits: Tensor) -> "Head":
        """The same with these (classes,) added to its logits."""
        linear = copy.deepcopy(self.linear)
        linear.bias.data.add_(logits)
        return replace(self, linear=linear)

    @torch.no_grad()
    def with_shares(self, v: Tensor, shares: Tensor) -> "Head":
        """The same with classes that have these shares (classes,) of coordinates (b, d), on average."""
        logits, offsets = self._logits(v).double(), torch.zeros(len(shares), dtype=torch.float64)
        for _ in range(_MATCHINGS):
            offsets += (shares / (logits + offsets).softmax(dim=1).mean(dim=0).clamp(min=1e-12)).log()
        return self.offset(offsets)

    def _logits(self, v: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.code(v))
        return logits


@dataclass(frozen=True, kw_only=True)
class Discriminant:
    """Class probabilities by linear discriminant analysis on what the search finds."""

    weight: Tensor  # (k, classes), or with the means of a tail (k + l, classes)
    bias: Tensor  # (classes,)
    components: int = 1
    """Gaussians of each class, one after the other, whose probabilities add up."""
    findings: bool = False

    @classmethod
    def of(
        cls,
        shares: Tensor,
        means: Tensor,
        covariances: Tensor,
        tail_means: Tensor | None = None,
        tail_variances: Tensor | None = None,
        *,
        components: int = 1,
        findings: bool = False,
    ) -> "Discriminant":
        """From the shares that classes will have, noisy means and repaired covariances, which are pooled.

        Coordinates of the tail, (classes, l) of each, are taken for independent.
        """
        pooled = positive(torch.einsum("c,cij->ij", shares, covariances))
        weight = torch.linalg.solve(pooled, means.T)
        if tail_means is not None and tail_variances is not None:
            means = torch.cat([means, tail_means], dim=1)
            weight = torch.cat([weight, (tail_means / (shares @ tail_variances)).T])
        bias = shares.log() - 0.5 * (means.T * weight).sum(dim=0)
        return cls(weight=weight, bias=bias, components=components, findings=findings)

    def probabilities(self, v: Tensor) -> Tensor:
        """As `Labels` says."""
        logits = v[:, : len(self.weight)].double() @ self.weight + self.bias
        if not self.findings:
            return logits.softmax(dim=1).reshape(len(v), -1, self.components).sum(dim=2)
        has, lacks = logits.chunk(2, dim=1)
        return (has - lacks).sigmoid()
