"""Many teachers, one for each shard of the vault, and what can be learned from their noisy answers.

A teacher is a linear head on the fixed code of an image (models/features/embeddings.py), fitted to its own shard
without noise. It never leaves the session: `Session.ensemble` holds it and gives out noisy sums. From those sums a
single head is fitted, which is post-processing, and that head then guides generator and student.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import torch_generator
from veilset.models.features.embeddings import ImageEmbedding
from veilset.privacy.mechanisms.shard_votes import Ensemble
from veilset.privacy.vault import PublicFacts

Head = tuple[Tensor, Tensor]
"""Weight (d, K) and bias (K,)."""

# As in PATE on MNIST: 250 teachers with 240 images each.
_UNITS_PER_TEACHER = 240
_MOST_TEACHERS = 250
_FEWEST_UNITS_PER_TEACHER = 5
# Codes have length 1, so logits need weights of some length before a fit can be sure of anything.
_LOGIT_SCALE = 10.0
_FIT_STEPS = 60
# Fixed-point rounds for the length of a joint gradient; it moves by less than a hundredth after the second.
_LENGTH_ROUNDS = 3
# Few labels, some of them wrong, need a stronger pull to zero than a whole shard does.
_DECAY_ON_ANSWERS = 3e-3
# An answer counts as much as this many images of which only the class is known that they were made for.
_ANSWER_WEIGHT = 3.0
# Enough images that know their class for a linear head; the teachers are asked about some of them.
FEWEST_QUERIES_MADE = 2000
# More answers than this teach a linear head nothing new.
MOST_QUERIES = 4000


def teachers_for(facts: PublicFacts, wanted: int) -> int:
    """The number of teachers: as wanted, or by the rule; too many for the units raises."""
    teachers = wanted or min(_MOST_TEACHERS, max(2, facts.units // _UNITS_PER_TEACHER))
    most = facts.units // _FEWEST_UNITS_PER_TEACHER
    if teachers < 2 or teachers > most:
        raise InputError(
            f"Expected 2 to {most} teachers for {facts.units} {facts.unit}s (at least {_FEWEST_UNITS_PER_TEACHER} for "
            f"each), got {teachers}. Set teachers, or take a method with one teacher."
        )
    return teachers


def fit_head(codes: Tensor, targets: Tensor, *, decay: float = 1e-3) -> Head:
    """Multinomial regression of target probabilities (m, K) on codes (m, d), full-batch, the same every time."""
    weight = torch.zeros(codes.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    inputs = codes.float() * _LOGIT_SCALE
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_FIT_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(inputs @ weight + bias, targets.float()) + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach() * _LOGIT_SCALE, bias.detach()


def shard_trainer(classes: int) -> Callable[[Tensor, Tensor], Head]:
    """The training callback of one shard; a class that the shard lacks gets few votes and is no error."""

    def train(codes: Tensor, labels: Tensor) -> Head:
        return fit_head(codes, functional.one_hot(labels, classes))

    return train


def scores(head: Head, codes: Tensor) -> Tensor:
    """Logits (m, K) of codes (m, d)."""
    return codes.float() @ head[0] + head[1]


class CodeClassifier(nn.Module):
    """Images to logits: the fixed code, then a head."""

    def __init__(self, embedding: ImageEmbedding, head: Head) -> None:
        super().__init__()
        self.embedding = embedding
        self.register_buffer("weight", head[0])
        self.register_buffer("bias", head[1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b, K) of images in [0, 1], (b, C, H, W)."""
        return self.embedding.code(images) @ self.get_buffer("weight") + self.get_buffer("bias")


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Codes (m, d) that may be asked, and the class (m,) that their images were made for, if any."""

    codes: Tensor
    asked_for: Tensor | None = None

    def head(self, asked: Tensor, found: Tensor, classes: int) -> Head:
        """A head fitted to the answers `found` for codes `asked`, and to the classes that images were made for.

        The latter are what the class statistics say: no answer is needed for it, and the fewer there are, the more it
        counts. Without such classes the answers stand alone.
        """
        targets = _ANSWER_WEIGHT * functional.one_hot(found, classes)
        if self.asked_for is None:
            return fit_head(asked, targets / _ANSWER_WEIGHT, decay=_DECAY_ON_ANSWERS)
        known = functional.one_hot(self.asked_for[:FEWEST_QUERIES_MADE], classes)
        codes = torch.cat([self.codes[:FEWEST_QUERIES_MADE], asked])
        return fit_head(codes, torch.cat([known, targets]), decay=_DECAY_ON_ANSWERS)

    def spread(self, count: int, coins: torch.Generator) -> Tensor:
        """`count` row numbers, from all asked classes in turn where they are known."""
        order = torch.randperm(len(self.codes), generator=coins)
        if self.asked_for is not None:
            own = self.asked_for[order]
            place = torch.zeros_like(own)
            for label in set(own.tolist()):
                place[own == label] = torch.arange(int((own == label).sum()))
            order = order[place.argsort(stable=True)]
        return order[:count]


@dataclass(frozen=True, kw_only=True)
class GradientRounds:
    """How variant B of dfd asks its teachers: few rounds, as many queries as the noise can bear.

    With n teachers, B queries a round, T rounds and s the multiplier of one release that would cost all of the budget,
    a row on which all teachers agree has length n / sqrt(B) against noise of 2 s sqrt(T): their ratio is `signal`, and
    B T = (n / (2 s signal))^2 follows.
    """

    teachers: int
    rounds: int
    batch: int
    signs: bool

    @classmethod
    def fitting(
        cls, facts: PublicFacts, *, alone: float, teachers: int, rounds: int, signal: float, signs: bool
    ) -> "GradientRounds":
        """Rounds and batch for the noise multiplier `alone` of a single release; every class is asked for at least."""
        count = teachers_for(facts, teachers)
        queries = max(facts.classes, int((count / (2 * signal * alone)) ** 2))
        rounds = max(1, min(rounds, queries // facts.classes))
        return cls(teachers=count, rounds=rounds, batch=min(MOST_QUERIES, queries) // rounds, signs=signs)

    def ask(
        self,
        ensemble: Ensemble,
        pool: Queries,
        *,
        classes: int,
        label: str,
        noise_multiplier: float,
        seed: int,
    ) -> Head:
        """Spend all rounds on queries of the pool, which know their classes, and return what they add up to.

        Privacy: as `Ensemble.gradient` or `Ensemble.signs`, one event for each round. Which queries are asked depends
        on earlier answers, the pool and the seed; the noise of every round is fixed in advance.
        """
        coins = torch_generator(seed, "queries of the teachers")
        left = torch.ones(len(pool.codes), dtype=torch.bool)
        asked, found = [pool.codes[:0]], [torch.zeros(0, dtype=torch.int64)]
        head = pool.head(asked[0], found[0], classes)
        for step in range(self.rounds):
            chosen = pool.spread(self.batch, coins) if step == 0 else self._unsure(pool, left, head, coins)
            left[chosen] = False
            codes = pool.codes[chosen]
            odds = scores(head, codes).softmax(dim=1).double()
            if self.signs:
                # A sign says nothing of size: where head and teachers agree, it would be noise alone.
                odds = torch.full_like(odds, 1 / classes)
            answer = self._answer(ensemble, codes, odds, label, noise_multiplier)
            asked.append(codes)
            found.append(self._labels(answer, odds))
            # Answered queries are paid for: every round learns from all of them again.
            head = pool.head(torch.cat(asked), torch.cat(found), classes)
        return head

    def _unsure(self, pool: Queries, left: Tensor, head: Head, coins: torch.Generator) -> Tensor:
        """Of twice as many random queries that were not asked yet, those of which the head is least sure."""
        candidates = torch.nonzero(left).flatten()
        candidates = candidates[torch.randperm(len(candidates), generator=coins)[: 2 * self.batch]]
        best = scores(head, pool.codes[candidates]).softmax(dim=1).topk(2, dim=1).values
        return candidates[(best[:, 0] - best[:, 1]).argsort()[: self.batch]]

    def _answer(self, ensemble: Ensemble, codes: Tensor, odds: Tensor, label: str, noise_multiplier: float) -> Tensor:
        """The noisy sum of the gradients of each teacher's loss by the outputs whose softmax is `odds`."""
        shape = (odds.shape[0], odds.shape[1])

        def gradient(model: Head) -> Tensor:
            return odds - functional.one_hot(scores(model, codes).argmax(dim=1), odds.shape[1])

        if self.signs:
            return ensemble.signs(
                gradient, shape=shape, keep=len(codes), label=label, noise_multiplier=noise_multiplier
            )
        return ensemble.gradient(gradient, shape=shape, norm_bound=1.0, label=label, noise_multiplier=noise_multiplier)

    def _labels(self, answer: Tensor, odds: Tensor) -> Tensor:
        """The classes (b,) that the teachers want: a full step along the answer, whose length is found on the way."""
        if self.signs:
            return answer.argmin(dim=1)
        labels = odds.argmax(dim=1)
        for _ in range(_LENGTH_ROUNDS):
            length = float((odds - functional.one_hot(labels, odds.shape[1])).norm())
            labels = (odds - answer * (length / self.teachers)).argmax(dim=1)
        return labels


def require_all_classes(labels: Tensor, names: tuple[str, ...]) -> None:
    """Refuse answers among which a class is missing: nothing could be learned of it."""
    missing = [name for number, name in enumerate(names) if not bool((labels == number).any())]
    if missing:
        raise VeilsetError(
            f"The teachers' noisy answers to {len(labels)} queries never name {', '.join(missing)}, so no student can "
            "learn it. What was spent stays spent. Set other teachers, more queries or a larger epsilon."
        )
