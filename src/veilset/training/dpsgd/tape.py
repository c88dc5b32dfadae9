"""What one backward pass leaves behind for each parameter: per-unit norms, and how to sum with weights.

Book-keeping (Bu et al. 2022, "Differentially private optimization on large model at small cost"): the norm of a unit's
gradient follows from a layer's input and output gradient, and once the clipping factors are known one weighted product
per layer gives the clipped sum. No second pass through the network is needed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

# A clipped row must stay below the clip norm in spite of single-precision rounding of its norm and of the product.
_ROUNDING = 2e-6


@dataclass(frozen=True)
class Product:
    """A parameter's gradients that were never written out: their squared norms, and their weighted sum on demand."""

    squares: Tensor  # (units,)
    weighted_sum: Callable[[Tensor], Tensor]  # factors (units,) -> the shape of the parameter


class Layer(Protocol):
    """One call of a function that reads parameters. `backward` leaves their gradients on the tape."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The output; runs without autograd."""

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """The gradient of the input, if needed, from that of the output."""


class _Tapped(torch.autograd.Function):
    # The anchor requires a gradient, so that layers whose input needs none (the first) are reached all the same.
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,  # noqa: ARG004
        inputs: Tensor,
        layer: Layer,
    ) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(inputs)
        return layer.forward(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (inputs,) = ctx.saved_tensors
        return None, ctx.layer.backward(inputs, gradients[0], ctx.needs_input_grad[1]), None


class Tape:
    """The per-unit gradients of one micro-batch. `clear` it when done: it holds private activations.

    Args:
        parameters: the trainable parameters, in the order of the result.
        units: how many units the batch holds; a tensor of units * m rows has m rows for each, unit after unit.
        write_out: keep every per-unit gradient in full, as gradient compression needs.
    """

    def __init__(self, parameters: Sequence[Tensor], units: int, *, write_out: bool = False) -> None:
        self.parameters = parameters
        self.units = units
        self._write_out = write_out
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._uses = [0] * len(parameters)
        self._rows: list[Tensor | None] = [None] * len(parameters)
        self._products: list[Product | None] = [None] * len(parameters)
        self._anchor = torch.zeros((), device=parameters[0].device, requires_grad=True)
        self.bytes_seen = 0

    def place_of(self, value: object) -> int | None:
        """Which trainable parameter this is, if it is one."""
        return self._place.get(id(value))

    def names_any(self, values: Iterable[object]) -> bool:
        """Whether a trainable parameter is among these values or in a list or tuple among them."""
        return any(
            self.names_any(value) if isinstance(value, list | tuple) else id(value) in self._place for value in values
        )

    def owns(self, *values: Tensor | None) -> bool:
        """Whether a gradient is asked for, and of trainable parameters only, not of something computed from them."""
        places = [self.place_of(value) for value in values if value is not None and value.requires_grad]
        return bool(places) and None not in places

    def rows_per_unit(self, inputs: object) -> int:
        """How many rows of `inputs` belong to each unit; 0 if its first axis cannot be that of the units."""
        if not isinstance(inputs, Tensor) or inputs.ndim == 0 or len(inputs) == 0 or len(inputs) % self.units:
            return 0
        return len(inputs) // self.units

    def run(self, layer: Layer, inputs: Tensor, places: Iterable[int | None]) -> Tensor:
        """The output of `layer`, which will put gradients of the parameters at `places` on this tape."""
        for place in places:
            if place is not None:
                self._uses[place] += 1
        output: Tensor = _Tapped.apply(self._anchor, inputs, layer)  # type: ignore[no-untyped-call]
        self.bytes_seen += inputs.nbytes + output.nbytes
        return output

    def backward(self, total: Tensor) -> None:
        """Run the backward pass of `total`; no tensor's `grad` is touched."""
        if total.requires_grad:
            torch.autograd.grad(total, [self._anchor], allow_unused=True)

    def must_write_out(self, place: int) -> bool:
        """Whether only full per-unit gradients will do: a parameter used twice has cross terms in its norm."""
        return self._write_out or self._uses[place] > 1

    def add_rows(self, place: int, gradients: Tensor) -> None:
        """Add (units * m, *shape) gradients of the parameter at `place`; the m of a unit are summed."""
        if len(gradients) != self.units:
            gradients = gradients.reshape(self.units, -1, *gradients.shape[1:]).sum(1)
        before = self._rows[place]
        if before is None:
            self.bytes_seen += gradients.nbytes
        self._rows[place] = gradients if before is None else before + gradients

    def add_product(self, place: int, squares: Tensor, weighted_sum: Callable[[Tensor], Tensor]) -> None:
        """Add gradients of the only use of the parameter at `place`, in two halves."""
        self._products[place] = Product(squares, weighted_sum)

    def squares(self, place: int) -> Tensor:
        """(units,) squared norms of the gradients of one parameter, in double precision."""
        product, rows = self._products[place], self._rows[place]
        if product is not None:
            return product.squares.double()
        if rows is None:
            return self._anchor.new_zeros(self.units, dtype=torch.float64)
        lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
        return lengths.double().square()

    def weighted_sum(self, place: int, factors: Tensor) -> Tensor:
        """The sum of one parameter's per-unit gradients, each times its factor."""
        product, rows, parameter = self._products[place], self._rows[place], self.parameters[place]
        factors = factors.to(parameter.dtype)
        if product is not None:
            return product.weighted_sum(factors)
        if rows is None:
            return torch.zeros_like(parameter, requires_grad=False)
        return (factors @ rows.flatten(1)).view(parameter.shape)

    def written_out(self) -> Tensor:
        """(units, all coordinates) the gradients of every unit in full; the tape keeps none."""
        rows = [
            parameter.new_zeros(self.units, parameter.numel()) if row is None else row.flatten(1)
            for row, parameter in zip(self._rows, self.parameters, strict=True)
        ]
        self.clear()
        return torch.cat([row.detach() for row in rows], dim=1)

    def put_back(self, rows: Tensor) -> None:
        """Take (units, all coordinates) back after `written_out`."""
        pieces = torch.split(rows, [parameter.numel() for parameter in self.parameters], dim=1)
        self._rows = list(pieces)

    def clear(self) -> None:
        """Forget everything about the units."""
        self._rows = [None] * len(self.parameters)
        self._products = [None] * len(self.parameters)


def clip_factors(norms: Tensor, clip_norm: float, *, automatic: bool, stabiliser: float) -> Tensor:
    """What each unit's gradient is multiplied by, given its norm; a norm that is not finite gives zero.

    Automatic clipping gives C / (|g| + stabiliser) (Bu et al. 2022, "Automatic clipping"), else C / max(|g|, C).
    """
    enlarged = norms * (1 + _ROUNDING)
    factors = clip_norm / (enlarged + stabiliser) if automatic else clip_norm / enlarged.clamp(min=clip_norm)
    return torch.where(torch.isfinite(norms), factors, 0.0)
