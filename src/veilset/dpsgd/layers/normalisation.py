"""GroupNorm, InstanceNorm and LayerNorm: scale and shift per record.

GroupNorm of N records with C channels and G groups is GroupNorm of one record with N*C channels and N*G groups. Run
that way, torch's own backward kernel returns the scale's and shift's gradients for each record, at no extra cost.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from veilset.dpsgd.tape import Tape


class _GroupNorm:
    def __init__(self, tape: Tape, groups: int, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> None:
        self._tape, self._groups, self._epsilon = tape, groups, epsilon
        self._weight, self._bias = (None if value is None else value.detach() for value in (weight, bias))
        self.weight_place, self.bias_place = tape.place_of(weight), tape.place_of(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each record's groups, keeping their means and scales."""
        records, channels = inputs.shape[:2]
        repeated = [None if value is None else value.repeat(records) for value in (self._weight, self._bias)]
        self._repeated_weight = repeated[0]
        self._sizes = (1, records * channels, math.prod(inputs.shape[2:]), records * self._groups)
        output, self._means, self._scales = torch.ops.aten.native_group_norm(
            inputs.contiguous().view(1, records * channels, -1), *repeated, *self._sizes, self._epsilon
        )
        # Not `view`: autograd forbids in-place functions, such as the usual ReLU, on views made in here.
        normalised: Tensor = torch.ops.aten._unsafe_view(output, inputs.shape)
        return normalised

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """Leave both gradients on the tape; return that of the input."""
        records, channels = inputs.shape[:2]
        flat = (1, records * channels, -1)
        wanted = [needs_input, self.weight_place is not None, self.bias_place is not None]
        result = torch.ops.aten.native_group_norm_backward(
            gradient.contiguous().view(flat),
            inputs.contiguous().view(flat),
            self._means,
            self._scales,
            self._repeated_weight,
            *self._sizes,
            wanted,
        )
        for place, rows in ((self.weight_place, result[1]), (self.bias_place, result[2])):
            if place is not None:
                self._tape.add_rows(place, rows.view(records, channels))
        return result[0].view(inputs.shape) if needs_input else None


class _LayerNorm:
    def __init__(
        self, tape: Tape, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
    ) -> None:
        self._tape, self._shape, self._epsilon = tape, tuple(shape), epsilon
        self._weight, self._bias = (None if value is None else value.detach() for value in (weight, bias))
        self.weight_place, self.bias_place = tape.place_of(weight), tape.place_of(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise the last axes, keeping means and scales."""
        output, self._means, self._scales = torch.native_layer_norm(
            inputs, self._shape, self._weight, self._bias, self._epsilon
        )
        return output

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """Leave both gradients on the tape; return that of the input."""
        rows = (self._tape.units, -1, *self._shape)
        if self.weight_place is not None:
            normalised = (inputs - self._means).mul_(self._scales)
            self._tape.add_rows(self.weight_place, normalised.mul_(gradient).reshape(rows).sum(1))
        if self.bias_place is not None:
            self._tape.add_rows(self.bias_place, gradient.reshape(rows).sum(1))
        if not needs_input:
            return None
        result = torch.ops.aten.native_layer_norm_backward(
            gradient,
            inputs,
            self._shape,
            self._means,
            self._scales,
            self._weight,
            self._bias,
            [True, False, False],
        )
        input_gradient: Tensor = result[0]
        return input_gradient


def group_norm(
    tape: Tape,
    inputs: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """The rule for `functional.group_norm`."""
    if not (tape.owns(weight, bias) and tape.rows_per_unit(inputs)):
        return NotImplemented
    layer = _GroupNorm(tape, num_groups, weight, bias, eps)
    return tape.run(layer, inputs, [layer.weight_place, layer.bias_place])


def instance_norm(
    tape: Tape,
    inputs: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Any:
    """The rule for `functional.instance_norm`: GroupNorm with one channel in each group."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        return NotImplemented
    return group_norm(tape, inputs, inputs.shape[1], weight, bias, eps)


def layer_norm(
    tape: Tape,
    inputs: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """The rule for `functional.layer_norm`."""
    applies = tape.owns(weight, bias) and tape.rows_per_unit(inputs)
    if not applies or inputs.ndim <= len(normalized_shape):
        return NotImplemented
    layer = _LayerNorm(tape, normalized_shape, weight, bias, eps)
    return tape.run(layer, inputs, [layer.weight_place, layer.bias_place])
