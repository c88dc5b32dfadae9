"""One pass over a micro-batch that leaves per-unit gradients on a tape: by rules, or by vmap over the whole model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from veilset.core.errors import InputError
from veilset.dpsgd.capture import captured
from veilset.dpsgd.tape import Tape

Inputs = tuple[Tensor, ...]
"""What a model is called with: tensors of as many rows each, unit after unit."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs (b, ...) and targets (b, ...) -> one loss for each row (b,)."""


@dataclass(frozen=True)
class Route:
    """How a model's gradients are found: by rules but for the modules `apart`; or, `whole`, by vmap alone."""

    apart: tuple[str, ...] = ()
    whole: bool = False


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each row: what is used where no other loss is given."""
    return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, eq=False)
class FindingsLoss:
    """One loss for each row: the binary cross-entropies of all findings, added up.

    `weights` (2, F) multiply the loss of a finding that an image lacks (first row) or has (second); they are public or
    follow from a noisy count. Whatever they are, a record's gradient over all findings is one vector with one clip.
    """

    weights: Tensor | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(b,) losses of logits (b, F) against zeros and ones (b, F)."""
        wanted = targets.to(outputs)
        losses = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        rows: Tensor = (losses * self._weights_of(wanted)).sum(dim=1)
        return rows

    def errors(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The derivative by the logits, (b, F)."""
        wanted = targets.to(logits)
        errors: Tensor = (torch.sigmoid(logits) - wanted) * self._weights_of(wanted)
        return errors

    def _weights_of(self, wanted: Tensor) -> Tensor:
        if self.weights is None:
            return torch.ones_like(wanted)
        without, having = self.weights.to(wanted)
        chosen: Tensor = wanted * having + (1 - wanted) * without
        return chosen


def row_losses(model: nn.Module, loss: Loss, inputs: Inputs, targets: Tensor) -> Tensor:
    """(b,) the loss of each row; another shape raises."""
    losses = loss(model(*inputs), targets)
    if not isinstance(losses, Tensor) or losses.shape != (len(targets),):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"Expected one loss for each record, shape ({len(targets)},), got {got}: a loss that mixes records cannot "
            "be clipped per record. Use reduction='none' and average over all axes but the first."
        )
    return losses


def run_pass(model: nn.Module, loss: Loss, tape: Tape, inputs: Inputs, targets: Tensor, route: Route) -> Tensor:
    """Fill `tape` with gradients of each unit's mean loss; returns the losses of the rows."""
    if route.whole:
        return _by_vmap(model, loss, tape, inputs, targets)
    with torch.enable_grad():
        with captured(model, tape, route.apart):
            losses = row_losses(model, loss, inputs, targets)
        tape.backward(losses.sum() * (tape.units / len(targets)))
    return losses.detach()


def _by_vmap(model: nn.Module, loss: Loss, tape: Tape, inputs: Inputs, targets: Tensor) -> Tensor:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    values = {names[id(parameter)]: parameter.detach() for parameter in tape.parameters}

    def unit_loss(values: dict[str, Tensor], inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
        losses = loss(torch.func.functional_call(model, values, inputs), targets)
        return losses.mean(), losses.detach()

    by_unit = torch.func.vmap(torch.func.grad(unit_loss, has_aux=True), in_dims=(None, 0, 0), randomness="error")
    # The fused attention kernels know no vmap.
    with sdpa_kernel(SDPBackend.MATH):
        *sides, wanted = (side.reshape(tape.units, -1, *side.shape[1:]) for side in (*inputs, targets))
        rows, losses = by_unit(values, tuple(sides), wanted)
    for parameter, gradients in zip(tape.parameters, _in_order(rows, values), strict=True):
        place = tape.place_of(parameter)
        if place is not None:
            tape.add_rows(place, gradients)
    result: Tensor = losses.flatten()
    return result


def _in_order(rows: dict[str, Tensor], values: dict[str, Tensor]) -> Sequence[Tensor]:
    return [rows[name] for name in values]
