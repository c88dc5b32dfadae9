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

from veilset.dpsgd.exact import row_squares, row_sum


@dataclass(frozen=True)
class Product:
    """A parameter's gradients that were never written out: their squared norms, and their weighted sum on demand."""

    squares: Tensor  # (units,) float64, not below the true ones
    gross: Tensor  # (units,) float64, what the squares would be if no terms cancelled; zero where none are added
    sides: tuple[Tensor, ...]  # what the gradients are made of, units first
    weighted_sum: Callable[[Tensor], Tensor]  # factors (units,) -> float64, the shape of the parameter


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
    """The per-unit gradients of one micro-batch. It holds private activations: use it in `with`, or `clear` it.

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

    def __enter__(self) -> "Tape":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

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

    def add_product(self, place: int, product: Product) -> None:
        """Add gradients of the only use of the parameter at `place`."""
        self._products[place] = product

    def squares(self) -> tuple[Tensor, Tensor]:
        """The squared norms of each parameter's gradients, (parameters, units) in float64; and their gross.

        The gross is what the squares would be if no terms cancelled; zero for gradients that are written out.
        """
        zeros = self._anchor.new_zeros(self.units, dtype=torch.float64)
        squares, gross = [], []
        for product, rows in zip(self._products, self._rows, strict=True):
            if product is not None:
                squares.append(product.squares)
            else:
                squares.append(zeros if rows is None else row_squares(rows.flatten(1)))
            gross.append(zeros if product is None else product.gross)
        return torch.stack(squares), torch.stack(gross)

    def weighted_sums(self, factors: Tensor) -> list[Tensor]:
        """The sums of each parameter's per-unit gradients times their factors, (parameters, units), in float64.

        A factor of zero drops a unit.
        """
        sums = []
        for product, rows, parameter, own in zip(self._products, self._rows, self.parameters, factors, strict=True):
            if product is not None:
                sums.append(product.weighted_sum(own))
            elif rows is None:
                sums.append(torch.zeros_like(parameter, dtype=torch.float64, requires_grad=False))
            else:
                sums.append(row_sum(rows.flatten(1), own).view(parameter.shape))
        return sums

    def contents(self) -> list[Tensor]:
        """All that the units' contributions are made of, units first: what must not depend on place and company."""
        found: list[Tensor] = []
        for product, rows in zip(self._products, self._rows, strict=True):
            if product is not None:
                found += [product.squares, *product.sides]
            elif rows is not None:
                found.append(rows)
        return found

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
        """Forget everything about the units, and be ready for another pass."""
        self._uses = [0] * len(self.parameters)
        self._rows = [None] * len(self.parameters)
        self._products = [None] * len(self.parameters)
