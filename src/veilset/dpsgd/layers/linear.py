"""Linear layers with any number of axes between batch and features.

One position per unit: the gradient is an outer product and its norm is |input| * |output gradient|.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from veilset.dpsgd.exact import in_double, may_multiply
from veilset.dpsgd.layers.costs import exact_product_cost, ghost_cost, written_cost
from veilset.dpsgd.layers.gram import ghost_squares
from veilset.dpsgd.tape import Product, Tape


class _Linear:
    def __init__(self, tape: Tape, weight: Tensor, bias: Tensor | None) -> None:
        self._tape = tape
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        self.weight_place, self.bias_place = tape.place_of(weight), tape.place_of(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs @ weight.T + bias."""
        return functional.linear(inputs, self._weight, self._bias)

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """Leave both gradients on the tape; return that of the input."""
        tape = self._tape
        values = inputs.reshape(tape.units, -1, inputs.shape[-1])  # (units, positions, in)
        upstream = gradient.reshape(tape.units, -1, gradient.shape[-1])  # (units, positions, out)
        if self.bias_place is not None:
            tape.add_rows(self.bias_place, upstream.sum(1))
        if self.weight_place is not None:
            self._add_weight(self.weight_place, values, upstream)
        return gradient @ self._weight if needs_input else None

    def _add_weight(self, place: int, values: Tensor, upstream: Tensor) -> None:
        tape, positions = self._tape, values.shape[1]
        work = exact_product_cost(tape.units, positions, self._weight.numel())
        written = written_cost(tape.units, positions, self._weight.numel())
        ghost = work + ghost_cost(tape.units, [(positions, values.shape[2]), (positions, upstream.shape[2])])
        if (
            tape.must_write_out(place)
            or not may_multiply(tape.units * positions)
            or (positions > 1 and written < ghost)
        ):
            tape.add_rows(place, torch.bmm(upstream.transpose(1, 2), values))
            return
        if positions == 1:
            squares = values.double().square().sum((1, 2)) * upstream.double().square().sum((1, 2))
            gross = squares
        else:
            squares, gross = ghost_squares(_grams, values, upstream)

        def weighted_sum(factors: Tensor) -> Tensor:
            scaled = in_double(upstream, factors, scale=True)
            return scaled.flatten(0, 1).t() @ in_double(values, factors).flatten(0, 1)

        tape.add_product(place, Product(squares, gross, (values, upstream), weighted_sum))


def _grams(values: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    return torch.bmm(values, values.transpose(1, 2)), torch.bmm(upstream, upstream.transpose(1, 2))


def linear(tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The rule for `functional.linear`."""
    if not (tape.owns(weight, bias) and tape.rows_per_unit(inputs) and inputs.ndim > 1):
        return NotImplemented
    layer = _Linear(tape, weight, bias)
    return tape.run(layer, inputs, [layer.weight_place, layer.bias_place])
