"""Noised answers of sites to one sum: which can be right, and what they say together.

Everything here is post-processing of what was noised at the sites.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from veilset.pipeline.federated.agreement import Agreement, Member
from veilset.pipeline.federated.questions import Question

_SIGMAS = 6.0
_MOST_DRIFT = 0.05


def answer_problem(agreement: Agreement, member: Member, question: Question, answer: Tensor, probe: Tensor) -> str:
    """What is wrong with an answer; nothing where it can be what an honest site says.

    One unit adds at most the sensitivity, and noise of deviation s in d numbers has the length s (sqrt(d) + 6) or
    less. The true number of a site's units, or of those in a sample, may be six standard deviations above what the
    site declared. (Noise at 6 sigma is passed once in 10^9 answers.)
    """
    if tuple(answer.shape) != question.shape:
        return f"its answer has the shape {tuple(answer.shape)}, and {question.shape} was asked for"
    if not answer.is_floating_point() or not bool(torch.isfinite(answer).all()):
        return "its answer is not of finite numbers"
    units = member.units * question.event.sampling_rate + _SIGMAS * math.sqrt(member.units)
    noise = question.event.noise_multiplier / agreement.joint_noise * member.noise
    longest = question.sensitivity * (units + noise * (math.sqrt(answer.numel()) + _SIGMAS))
    if float(answer.double().norm()) > longest:
        return "its answer is longer than its units and its noise can make it"
    if question.drift(probe) > _MOST_DRIFT:
        return "it computes other numbers than the server on the same pictures: compare versions and public images"
    return ""


def combined(agreement: Agreement, answers: Sequence[tuple[Member, Tensor]]) -> Tensor:
    """The sum over all agreed units, estimated from the answers of some sites; a late answer may be one more.

    A site's answer counts by its number of units over the variance of its noise, which gives the mean over units the
    least noise. Weights are scaled so that the units of those who answered stand for all.
    """
    weights = [agreement.weight(member) for member, _ in answers]
    scale = agreement.facts.units / sum(w * member.units for w, (member, _) in zip(weights, answers, strict=True))
    total = torch.zeros(answers[0][1].shape, dtype=torch.float64)
    for weight, (_, answer) in zip(weights, answers, strict=True):
        total += scale * weight * answer.double()
    return total.float()
