"""Variant B of dfd: what a teacher answers, which queries come next, and what noisy gradients say. No session here."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.shared.queries import Queries
from veilset.methods.shared.shard_teachers import Head, scores

# Fixed-point rounds for the length of a joint gradient; it moves by less than a hundredth after the second.
_LENGTH_ROUNDS = 3


def output_odds(head: Head, codes: Tensor) -> Tensor:
    """What the student says of the codes, (b, K), at which the teachers' gradients are taken."""
    return scores(head, codes).softmax(dim=1).double()


def gradient_at(codes: Tensor, odds: Tensor) -> Callable[[Head], Tensor]:
    """A teacher's answer: the gradient (b, K) of its loss by the outputs whose softmax is `odds`."""

    def gradient(teacher: Head) -> Tensor:
        return odds - functional.one_hot(scores(teacher, codes).argmax(dim=1), odds.shape[1])

    return gradient


def least_sure(pool: Queries, left: Tensor, head: Head, count: int, coins: torch.Generator) -> Tensor:
    """Of twice as many random queries that were not asked yet, those of which the head is least sure."""
    candidates = torch.nonzero(left).flatten()
    candidates = candidates[torch.randperm(len(candidates), generator=coins)[: 2 * count]]
    best = scores(head, pool.codes[candidates]).softmax(dim=1).topk(2, dim=1).values
    return candidates[(best[:, 0] - best[:, 1]).argsort()[:count]]


def labels_by_gradient(noisy: Tensor, odds: Tensor, teachers: int) -> Tensor:
    """The classes (b,) that the teachers want: a full step along the sum, whose length is found on the way."""
    labels = odds.argmax(dim=1)
    for _ in range(_LENGTH_ROUNDS):
        length = float((odds - functional.one_hot(labels, odds.shape[1])).norm())
        labels = (odds - noisy * (length / teachers)).argmax(dim=1)
    return labels
