"""Convolutions, plain and transposed, in one to three dimensions, of any stride, padding, dilation and groups."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from veilset.dpsgd.exact import in_double, may_multiply, row_squares, row_sum
from veilset.dpsgd.layers import costs
from veilset.dpsgd.layers.gram import ghost_squares
from veilset.dpsgd.layers.windows import (
    Settings,
    gathered_gradients,
    grouped_gradients,
    row_gradients,
    window_grams,
    windows,
)
from veilset.dpsgd.tape import Product, Tape

_VECTOR = 16  # channels that fill a vector register
_FEW_CHANNELS = 8


class _Convolution:
    def __init__(self, tape: Tape, weight: Tensor, bias: Tensor | None, settings: Settings) -> None:
        self._tape, self._settings = tape, settings
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        self.weight_place, self.bias_place = tape.place_of(weight), tape.place_of(bias)
        self._kernel: tuple[int, ...] = tuple(weight.shape[2:])

    def forward(self, inputs: Tensor) -> Tensor:
        """The convolution."""
        return self._settings.forward(inputs, self._weight, self._bias)

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """Leave both gradients on the tape; return that of the input."""
        gradient = gradient.contiguous()
        if self.bias_place is not None:
            self._tape.add_rows(self.bias_place, gradient.flatten(2).sum(2))
        if self.weight_place is not None:
            self._add_weight(self.weight_place, inputs, gradient)
        if not needs_input:
            return None
        return self._settings.gradient(inputs, gradient, self._weight, of_input=True)

    def _add_weight(self, place: int, inputs: Tensor, gradient: Tensor) -> None:
        tape = self._tape
        way = self._cheapest(inputs, gradient, tape.must_write_out(place))
        if way == "ghost":
            sides = [side.reshape(tape.units, -1, *side.shape[1:]) for side in (inputs, gradient)]
            squares, gross = ghost_squares(partial(window_grams, self._settings, self._kernel), *sides)
            weighted_sum = partial(self._weighted_sum, inputs, gradient)
            tape.add_product(place, Product(squares, gross, tuple(sides), weighted_sum))
        elif way == "gathered":
            tape.add_rows(place, gathered_gradients(self._settings, inputs, gradient, self._kernel))
        elif way == "rows":
            self._add_by_rows(place, row_gradients(self._settings, inputs, gradient, self._kernel))
        else:
            tape.add_rows(place, grouped_gradients(self._settings, inputs, gradient, self._weight))

    def _add_by_rows(self, place: int, rows: Tensor) -> None:
        """Put (kernel rows, records, out, kernel columns * in) on the tape without reordering it, if that will do."""
        tape, (high, records, out, _) = self._tape, rows.shape
        if tape.must_write_out(place) or records != tape.units:
            tape.add_rows(place, rows.view(high, records, out, self._kernel[1], -1).permute(1, 2, 4, 0, 3))
            return
        squares = torch.stack([row_squares(row.flatten(1)) for row in rows]).sum(0)

        def weighted_sum(factors: Tensor) -> Tensor:
            total = torch.stack([row_sum(row.flatten(1), factors) for row in rows])
            return total.view(high, out, self._kernel[1], -1).permute(1, 3, 0, 2).contiguous()

        tape.add_product(place, Product(squares, torch.zeros_like(squares), (rows.transpose(0, 1),), weighted_sum))

    def _weighted_sum(self, inputs: Tensor, gradient: Tensor, factors: Tensor) -> Tensor:
        each = factors.repeat_interleave(len(gradient) // len(factors))
        scaled = in_double(gradient, each, scale=True).flatten(2).transpose(1, 2).flatten(0, 1)  # (windows, out)
        seen = windows(self._settings, in_double(inputs, each), self._kernel, tuple(gradient.shape[2:]))
        total = scaled.t() @ seen
        return total.view(len(total), *self._kernel, -1).permute(0, 3, 1, 2).contiguous()

    def _cheapest(self, inputs: Tensor, gradient: Tensor, must_write_out: bool) -> str:
        settings, weights = self._settings, self._weight.numel()
        # As for 32 units, so that passes of another shape go the same way.
        copies, channels, units = len(inputs) // self._tape.units, inputs.shape[1], 32
        records = units * copies
        spots = inputs if settings.transposed else gradient  # where the kernel is laid down
        positions = math.prod(spots.shape[2:])
        aligned = channels % _VECTOR == 0 and gradient.shape[1] % _VECTOR == 0 and settings.groups == 1
        ways = {"grouped": costs.grouped_cost(records, positions, weights, aligned=aligned)}
        if len(self._kernel) == 2 and settings.groups == 1 and not settings.transposed:
            window = channels * math.prod(self._kernel)
            few = channels < _FEW_CHANNELS
            copied = window if few else window // self._kernel[0] * settings.stride[0]
            ways["gathered" if few else "rows"] = costs.windows_cost(records, positions, copied, weights)
            if not must_write_out and may_multiply(len(inputs) * positions):
                grams = [
                    (copies * math.prod(inputs.shape[2:]), channels),
                    (copies * positions, gradient.shape[1]),
                ]
                ghost = costs.ghost_cost(units, grams, shifts=math.prod(self._kernel))
                ways["ghost"] = ghost + costs.exact_product_cost(records, positions, weights, copied=window)
        return min(ways, key=lambda way: ways[way])


def convolve(
    tape: Tape,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """The rule for `functional.conv1d`, `conv2d` and `conv3d`."""
    axes = weight.ndim - 2
    if not (tape.owns(weight, bias) and tape.rows_per_unit(inputs) and inputs.ndim == weight.ndim):
        return NotImplemented
    spread = _per_axis(dilation, axes)
    if padding == "same":
        inputs, padding = _pad_same(
            inputs, [gap * (size - 1) for gap, size in zip(spread, weight.shape[2:], strict=True)]
        )
    elif isinstance(padding, str):
        padding = 0
    settings = Settings(
        stride=_per_axis(stride, axes),
        padding=_per_axis(padding, axes),
        dilation=spread,
        output_padding=(0,) * axes,
        groups=groups,
    )
    return _run(tape, inputs, weight, bias, settings)


def convolve_transposed(
    tape: Tape,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Any:
    """The rule for `functional.conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d`."""
    axes = weight.ndim - 2
    if not (tape.owns(weight, bias) and tape.rows_per_unit(inputs) and inputs.ndim == weight.ndim):
        return NotImplemented
    settings = Settings(
        stride=_per_axis(stride, axes),
        padding=_per_axis(padding, axes),
        dilation=_per_axis(dilation, axes),
        transposed=True,
        output_padding=_per_axis(output_padding, axes),
        groups=groups,
    )
    return _run(tape, inputs, weight, bias, settings)


def _run(tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> Tensor:
    layer = _Convolution(tape, weight, bias, settings)
    return tape.run(layer, inputs, [layer.weight_place, layer.bias_place])


def _per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * axes if len(numbers) == 1 else numbers


def _pad_same(inputs: Tensor, totals: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """Padding per axis for equal size; what is uneven goes to the far side as explicit zeros, as torch does."""
    extra = [amount for total in reversed(totals) for amount in (0, total % 2)]
    padded = torch.nn.functional.pad(inputs, extra) if any(extra) else inputs
    return padded, tuple(total // 2 for total in totals)
