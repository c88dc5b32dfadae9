"""Losses of data-free distillation (dfd and pate). Everything here is post-processing: no private image comes near it.

Decoupled knowledge distillation is Zhao et al. 2022; the step on the student's outputs is Liu et al. 2023 (DPDFD,
Algorithm 1); the generator's three terms are Chen et al. 2019 (DAFL), which that paper takes over.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.methods.shared.data_free_config import Bounding, DataFreeSettings, StudentLoss
from veilset.teachers.teacher import head_of

# Added to a norm before division, as in the paper.
_STABILISER = 1e-4


def decoupled_distillation(
    student: Tensor, teacher: Tensor, *, other_weight: float = 1.0, temperature: float = 1.0
) -> Tensor:
    """The loss of each row of logits (b, K) with the teacher's argmax as target class, (b,).

    The KL divergence of "target or not", plus `other_weight` times that among the other classes. Equal weights are not
    ordinary distillation, which would weigh the second by how unsure the teacher is.
    """
    target = functional.one_hot(teacher.argmax(dim=1), teacher.shape[1]).bool()
    student, teacher = student / temperature, teacher / temperature

    def binary(logits: Tensor) -> Tensor:
        chosen = logits[target]
        rest = logits.masked_fill(target, -torch.inf).logsumexp(dim=1)
        return torch.stack([chosen, rest], dim=1).log_softmax(dim=1)

    def others(logits: Tensor) -> Tensor:
        return logits[~target].view(len(logits), -1).log_softmax(dim=1)

    losses = functional.kl_div(binary(student), binary(teacher), log_target=True, reduction="none").sum(dim=1)
    among = functional.kl_div(others(student), others(teacher), log_target=True, reduction="none").sum(dim=1)
    return (losses + other_weight * among) * temperature**2


def output_gradient(student: Tensor, teacher: Tensor, *, other_weight: float, temperature: float) -> Tensor:
    """The gradient of each row's loss by the student's outputs, (b, K)."""
    outputs = student.detach().requires_grad_()
    with torch.enable_grad():
        loss = decoupled_distillation(outputs, teacher, other_weight=other_weight, temperature=temperature).sum()
    (gradient,) = torch.autograd.grad(loss, outputs)
    return gradient


def bounded_rows(gradient: Tensor, bound: float, bounding: Bounding) -> Tensor:
    """Each row scaled to length `bound`, or shortened to it where it is longer."""
    lengths: Tensor = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient * (bound / (lengths + _STABILISER if bounding == "normalise" else lengths.clamp_min(bound)))


def student_loss(outputs: Tensor, gradient: Tensor, kind: StudentLoss = "distance") -> Tensor:
    """How far outputs are from the shifted ones, y = outputs - gradient, which are a target and do not move.

    Half the squared distance has just `gradient` as its own gradient. The paper takes cross-entropy to softmax(y),
    whose gradient vanishes where a student is wrong and sure of it.
    """
    shifted = outputs.detach() - gradient
    if kind == "cross_entropy":
        return functional.cross_entropy(outputs, shifted.softmax(dim=1))
    return 0.5 * (outputs - shifted).square().sum(dim=1).mean()


def bounded_step(outputs: Tensor, answers: Tensor, settings: DataFreeSettings) -> Tensor:
    """Lines 5 to 7, 10 and 11 of Algorithm 1: L_S of outputs (b, K), given what the teacher answers to their images."""
    gradient = output_gradient(outputs, answers, other_weight=settings.other_weight, temperature=settings.temperature)
    return student_loss(
        outputs, bounded_rows(gradient, settings.output_bound, settings.bounding), settings.student_loss
    )


def one_hot_loss(logits: Tensor) -> Tensor:
    """Small where each image belongs to one class clearly."""
    return functional.cross_entropy(logits, logits.argmax(dim=1))


def balance_loss(logits: Tensor) -> Tensor:
    """Minus the entropy of the batch's mean prediction: small where all classes appear alike often."""
    mean = logits.softmax(dim=1).mean(dim=0)
    return (mean * mean.clamp_min(1e-9).log()).sum()


def activation_loss(features: Tensor) -> Tensor:
    """Minus the mean size of the features before the head: real images excite more of them than noise does.

    The paper prints a plus before its norm; its text, and DAFL, say that real images have the larger activations.
    """
    return -features.abs().mean()


def disagreement(student: Tensor, teacher: Tensor) -> Tensor:
    """How far the student's predictions are from the teacher's: mean absolute difference of the logits' shape."""
    centred = student - student.mean(dim=1, keepdim=True), teacher - teacher.mean(dim=1, keepdim=True)
    return (centred[0] - centred[1]).abs().mean()


class WithFeatures(nn.Module):
    """A classifier that also returns what its last linear layer reads."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (b, K) and features (b, d)."""
        seen: list[Tensor] = []
        # Taken off again: a network that is released or stored must not carry what training held on to.
        hook = head_of(self.network)[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits: Tensor = self.network(images)
        finally:
            hook.remove()
        return logits, seen[0]
