"""How the critic of one shard learns and what it says: a Wasserstein critic with gradient penalty, as one function.

WGAN-GP (Gulrajani et al. 2017). The critic sees the images themselves, or their fixed codes
(models/features/embeddings.py). Everything here is written for one shard; `privacy/mechanisms/shard_critics.py` runs it
over all shards at once and lets out clipped, noised sums. The penalty keeps the critic's slope near 1 but bounds
nothing: the clipping there does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional
from torch.utils._pytree import tree_map

from veilset.privacy.mechanisms.shard_critics import Query, State

Weights = dict[str, Tensor]
Score = Callable[[Weights, Tensor, Tensor], Tensor]
"""Weights, points (b, ...) and classes (b,) -> one score each; high means real."""

_BETAS = (0.5, 0.9)
_ADAM_FLOOR = 1e-8


class CodeCritic(nn.Module):
    """Codes (b, d) and classes (b,) to scores (b,).

    One hidden layer, whose maps meet a vector of the class (the projection of Miyato and Koyama 2018), or, without
    hidden units, one linear map for each class. The lookups are products, which `torch.vmap` can run for many critics.
    """

    def __init__(self, width: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.classes = classes
        self.first = nn.Linear(width, hidden) if hidden else None
        self.of_class = nn.Linear(hidden or width, classes)

    def forward(self, codes: Tensor, classes: Tensor) -> Tensor:
        """One score for each row."""
        inner = codes if self.first is None else functional.leaky_relu(self.first(codes), 0.2)
        chosen = classes[:, None] == torch.arange(self.classes, device=classes.device)
        scores: Tensor = (self.of_class(inner) * chosen).sum(dim=1)
        return scores


@dataclass(frozen=True, kw_only=True)
class CriticTraining:
    """The training of one critic.

    Args:
        critic: what every critic starts as.
        shape: of one point that it scores; feature rows are flat.
        learning_rate: of Adam.
        penalty: weight of the gradient penalty.
    """

    critic: nn.Module
    shape: tuple[int, ...]
    learning_rate: float
    penalty: float

    def start(self) -> State:
        """The state of a critic that has seen nothing."""
        weights = {name: value.detach() for name, value in self.critic.named_parameters()}
        zeros = tree_map(torch.zeros_like, weights)
        return {"weights": weights, "first": zeros, "second": zeros, "updates": torch.zeros(())}

    def learn(self, state: State, rows: Tensor, known: Tensor, coins: Tensor, fakes: Tensor, labels: Tensor) -> State:
        """An update with one generated batch, `coins` saying where between a real and a generated point it looks.

        Every generated point is set against a real one of its class, so that a class which is rare in the shard is
        heard like any other; of a class that the shard lacks, the critic learns nothing.
        """
        now: dict[str, Any] = dict(state)
        real, mix = rows.view(-1, *self.shape), coins.view(-1, *(1 for _ in self.shape))
        gradient = grad(self._loss)(now["weights"], real, fakes, mix * real + (1 - mix) * fakes, labels, known)
        return self._adam(now, gradient)

    def answer(self, state: State, held: Tensor, query: Query) -> Tensor:
        """The gradient of the scores at the "points" of a query, zero for "labels" that the shard lacks."""

        def total(points: Tensor) -> Tensor:
            return self._score(state["weights"], points, query["labels"]).sum()

        answer: Tensor = grad(total)(query["points"]) * held[query["labels"]].view(-1, *(1 for _ in self.shape))
        return answer

    def _score(self, weights: Weights, points: Tensor, labels: Tensor) -> Tensor:
        scores: Tensor = functional_call(self.critic, weights, (points, labels))
        return scores

    def _loss(
        self, weights: Weights, real: Tensor, fakes: Tensor, between: Tensor, classes: Tensor, known: Tensor
    ) -> Tensor:
        """Equation 3.5 of the thesis over the known pairs: fake minus real, and the penalty at points between them."""

        def total(points: Tensor) -> Tensor:
            return self._score(weights, points, classes).sum()

        slope = grad(total)(between).flatten(1).square().sum(dim=1).add(1e-12).sqrt()
        distance = self._score(weights, fakes, classes) - self._score(weights, real, classes)
        loss: Tensor = (known * (distance + self.penalty * (slope - 1).square())).mean()
        return loss

    def _adam(self, state: dict[str, Any], gradient: Weights) -> dict[str, Any]:
        """Adam (Kingma and Ba 2015) without anything that changes in place, so that it runs under `torch.vmap`."""
        updates = state["updates"] + 1
        first = {n: _BETAS[0] * m + (1 - _BETAS[0]) * gradient[n] for n, m in state["first"].items()}
        second = {n: _BETAS[1] * v + (1 - _BETAS[1]) * gradient[n].square() for n, v in state["second"].items()}
        scale = self.learning_rate * (1 - _BETAS[1] ** updates).sqrt() / (1 - _BETAS[0] ** updates)
        weights = {n: w - scale * first[n] / (second[n].sqrt() + _ADAM_FLOOR) for n, w in state["weights"].items()}
        return {"weights": weights, "first": first, "second": second, "updates": updates}
