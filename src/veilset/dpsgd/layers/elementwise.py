"""A parameter that is added to a batch, multiplies it, or is expanded to its length: positions, tokens, scales.

The parameter is replaced by a view with one row per unit; autograd's own broadcasting then leaves in the gradient of
that view what belongs to each unit.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from veilset.dpsgd.tape import Tape


class _RowsOf:
    """One row per row of the batch, all views of one parameter."""

    def __init__(self, tape: Tape, place: int, rows: int) -> None:
        self._tape, self._place, self._rows = tape, place, rows

    def forward(self, inputs: Tensor) -> Tensor:
        """(1, ...) -> (rows, ...)."""
        return inputs.expand(self._rows, *inputs.shape[1:])

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> None:  # noqa: ARG002
        """Leave each row's gradient on the tape."""
        shape = self._tape.parameters[self._place].shape
        self._tape.add_rows(self._place, gradient.reshape(len(gradient), *shape))


def combine(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule for a function of two operands of which one is a parameter and the other a batch."""

    def rule(tape: Tape, first: Any, second: Any, **options: Any) -> Any:
        operands = [first, second]
        places = [tape.place_of(operand) for operand in operands]
        if (places[0] is None) == (places[1] is None):
            return NotImplemented
        mine = 0 if places[0] is not None else 1
        place, parameter, batch = places[mine], operands[mine], operands[1 - mine]
        missing = batch.ndim - parameter.ndim if isinstance(batch, Tensor) else -1
        if place is None or missing < 0 or not tape.rows_per_unit(batch) or (missing == 0 and parameter.shape[0] != 1):
            return NotImplemented
        aligned = parameter.detach().view((1,) * missing + parameter.shape)
        operands[mine] = tape.run(_RowsOf(tape, place, len(batch)), aligned, [place])
        return function(*operands, **options)

    return rule


def expand(tape: Tape, parameter: Any, *sizes: Any) -> Any:
    """The rule for `parameter.expand(batch, ...)` of a parameter whose first axis has length 1."""
    place = tape.place_of(parameter)
    wanted = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else list(sizes)
    if place is None or parameter.ndim != len(wanted) or parameter.ndim == 0 or parameter.shape[0] != 1:
        return NotImplemented
    if wanted[0] < 1 or wanted[0] % tape.units:
        return NotImplemented
    rows = tape.run(_RowsOf(tape, place, wanted[0]), parameter.detach(), [place])
    return rows.expand(wanted)
