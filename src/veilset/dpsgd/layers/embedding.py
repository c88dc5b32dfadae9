"""Embedding: a unit's gradient is the sum of output gradients over the positions that looked up each row."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.dpsgd.exact import in_double, may_multiply
from veilset.dpsgd.tape import Product, Tape


class _Embedding:
    def __init__(self, tape: Tape, weight: Tensor, place: int, padding: int | None) -> None:
        self._tape, self._weight, self._place, self._padding = tape, weight.detach(), place, padding

    def forward(self, inputs: Tensor) -> Tensor:
        """Look up."""
        return functional.embedding(inputs, self._weight, self._padding)

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> None:  # noqa: ARG002
        """Leave the gradients of the table on the tape; indices have none."""
        tape, (rows, width) = self._tape, self._weight.shape
        index = inputs.reshape(tape.units, -1)  # (units, positions)
        gradient = gradient.reshape(tape.units, -1, width)
        if self._padding is not None:
            gradient = gradient.masked_fill((index == self._padding)[..., None], 0.0)
        if tape.must_write_out(self._place) or not may_multiply(index.numel()):
            table = gradient.new_zeros(tape.units, rows, width)
            table.scatter_add_(1, index[..., None].expand_as(gradient), gradient)
            tape.add_rows(self._place, table)
            return
        # Positions with the same index add up; double precision keeps cancelling terms apart.
        exact = gradient.double()
        same = index[:, :, None] == index[:, None, :]
        squares = (torch.bmm(exact, exact.transpose(1, 2)) * same).sum(dim=(1, 2)).clamp(min=0)
        gross = exact.square().sum(2).sqrt().sum(1).square()
        squares = squares + 2.0**-52 * (index.shape[1] ** 2 + width) * gross

        def weighted_sum(factors: Tensor) -> Tensor:
            scaled = in_double(gradient, factors, scale=True).flatten(0, 1)
            return torch.zeros_like(self._weight, dtype=torch.float64).index_add_(0, index.flatten(), scaled)

        tape.add_product(self._place, Product(squares, gross, (index, gradient), weighted_sum))


def embedding(
    tape: Tape,
    indices: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Any:
    """The rule for `functional.embedding`."""
    place = tape.place_of(weight)
    if place is None or not tape.rows_per_unit(indices):
        return NotImplemented
    if max_norm is not None or scale_grad_by_freq:
        raise InputError(
            "Expected an Embedding without max_norm and scale_grad_by_freq: both let records change each other's "
            "gradients. Leave them out."
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += len(weight)
    return tape.run(_Embedding(tape, weight, place, padding_idx), indices, [place])
