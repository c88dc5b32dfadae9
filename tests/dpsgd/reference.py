"""Clipped sums the slow way: one backward pass of plain autograd for each unit."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.dpsgd.exact import MARGIN

Loss = Callable[[Tensor, Tensor], Tensor]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.flatten(1)).square().mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def unit_gradients(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, copies: int = 1) -> Tensor:
    """(units, all coordinates)."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    losses = loss(model(inputs), targets).view(-1, copies).mean(1)
    rows = []
    for value in losses:
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        pieces = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
        rows.append(torch.cat([piece.flatten() for piece in pieces]))
    return torch.stack(rows)


def clipped(rows: Tensor, clip_norm: float) -> Tensor:
    """To the clip norm less what the engine leaves for rounding."""
    clip_norm *= 1 - MARGIN
    norms = rows.double().norm(dim=1)
    return ((clip_norm / norms.clamp(min=clip_norm))[:, None] * rows.double()).sum(0)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]).double()


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
