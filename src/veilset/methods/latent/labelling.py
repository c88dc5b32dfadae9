"""What labels released images: a private classifier of latents, or a discriminant of the fitted Gaussians.

A Gaussian knows of its class what the noisy moments say. A classifier is trained to tell the classes apart and nothing
else, so it is right more often, also about images that were drawn for one class and turned out as another.

Privacy: the classifier spends its event through the session (`train_head`); the rest is post-processing.
"""

import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.dpsgd import FindingsLoss, train_private
from veilset.dpsgd.trainer import GradientSession
from veilset.methods.base import Context
from veilset.methods.latent.moments import positive
from veilset.methods.latent.search import LatentSearch
from veilset.teachers.config import TeacherPlan
from veilset.teachers.fitting import training_of

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
        logits: Tensor = self.linear(code_of(v, self.stretch))
        return logits


def code_of(v: Tensor, stretch: Tensor) -> Tensor:
    """What the classifier reads: rows (b, directions) of length 1 of coordinates (b, d)."""
    return functional.normalize(v[:, : len(stretch)].float() * stretch, dim=1)


def train_head(session: GradientSession, plan: TeacherPlan, search: LatentSearch, context: Context) -> Head:
    """DP-SGD on a head that reads what the search finds. The same seeds give the same head.

    Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one;
    sensitivity `plan.recipe.clip_norm`; event `plan.event`; assumes that a code depends on its own image alone, as the
    search does, which is tried on random images first.
    """
    facts, space = session.facts, search.space
    stretch = space.deviations[: plan.recipe.directions].sqrt().float().cpu()
    linear = nn.Linear(len(stretch), facts.classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    train_private(
        session,
        linear,
        plan.event,
        training_of(plan.recipe),
        loss=FindingsLoss() if facts.findings else None,
        features=lambda images, labels: code_of(search(images), stretch),  # noqa: ARG005
        seed=context.seed,
        progress=context.progress,
    )
    return Head(linear=linear.eval().requires_grad_(False), stretch=stretch, findings=facts.findings)


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
