"""Rules for per-unit gradients: one kind of layer, one file. `RULES` maps torch's functions to them.

A rule takes the tape and the function's own arguments. It returns NotImplemented where it does not apply: no trainable
parameter among the arguments it knows, or an input whose first axis cannot be that of the units.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from veilset.dpsgd.layers import convolution, elementwise, embedding, linear, normalisation

RULES: dict[Any, Callable[..., Any]] = {
    functional.linear: linear.linear,
    functional.conv1d: convolution.convolve,
    functional.conv2d: convolution.convolve,
    functional.conv3d: convolution.convolve,
    functional.conv_transpose1d: convolution.convolve_transposed,
    functional.conv_transpose2d: convolution.convolve_transposed,
    functional.conv_transpose3d: convolution.convolve_transposed,
    functional.group_norm: normalisation.group_norm,
    functional.layer_norm: normalisation.layer_norm,
    functional.instance_norm: normalisation.instance_norm,
    functional.embedding: embedding.embedding,
    torch.Tensor.expand: elementwise.expand,
}
for _function in (
    torch.add,
    torch.mul,
    torch.Tensor.add,
    torch.Tensor.mul,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__mul__,
    torch.Tensor.__rmul__,
):
    RULES[_function] = elementwise.combine(_function)

__all__ = ["RULES"]
