"""Runs a network so that every use of a trainable parameter goes through a rule, or is reported.

A torch function mode sees each function the network calls. Working on functions rather than modules means that a
weight used outside its module (tied weights, functional calls, parameters of a user's own module) is never missed: what
no rule covers raises `NoRule`, and the caller falls back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from veilset.dpsgd.layers import RULES
from veilset.dpsgd.tape import Tape


class NoRule(Exception):  # noqa: N818
    """A parameter is used in a way that no rule covers. `module` names the innermost module at work."""

    def __init__(self, function: str, module: str) -> None:
        super().__init__(f"{function} in {module!r}")
        self.module = module


class _Capture(TorchFunctionMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape
        self.paused = False
        self.at_work: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        rule = None if self.paused else RULES.get(func)
        if rule is not None:
            result = rule(self.tape, *args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if not self.paused and self.tape.names_any((*args, *kwargs.values())) and _joins_graph(result):
            raise NoRule(getattr(func, "__name__", repr(func)), self.at_work[-1] if self.at_work else "")
        return result


@contextmanager
def captured(model: nn.Module, tape: Tape, apart: Sequence[str], *, watch: bool = False) -> Iterator[None]:
    """Within this block `model` runs by rules; modules named in `apart` run on their own, gradients by vmap.

    With `watch`, a `NoRule` names the module at work. Every hook is gone and every parameter as it was when the block
    ends, however it ends.
    """
    mode = _Capture(tape)
    hooks: list[Any] = []
    frozen: list[nn.Parameter] = []

    def thaw() -> None:
        while frozen:
            frozen.pop().requires_grad_(True)

    def enter(name: str, module: nn.Module, inputs: Any) -> None:  # noqa: ARG001
        mode.at_work.append(name)
        if name in apart:
            mode.paused = True
            frozen.extend(parameter for parameter in module.parameters() if parameter.requires_grad)
            for parameter in frozen:
                parameter.requires_grad_(False)

    def leave(name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        mode.at_work.pop()
        if name not in apart:
            return None
        mode.paused = False
        thaw()
        return _tap(tape, module, inputs, output)

    try:
        for name, module in model.named_modules():
            if watch or name in apart:
                hooks.append(module.register_forward_pre_hook(_named(enter, name)))
                hooks.append(module.register_forward_hook(_named(leave, name)))
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        thaw()


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda *arguments: function(name, *arguments)


def _joins_graph(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return any(_joins_graph(part) for part in result)
    return isinstance(result, Tensor) and result.grad_fn is not None


class _Apart:
    """The output of a module that has no rule, and the gradients of its parameters by vmap over the units."""

    def __init__(self, tape: Tape, module: nn.Module, places: dict[str, int], output: Tensor) -> None:
        self._tape, self._module, self._places = tape, module, places
        self._output = output

    def forward(self, inputs: Tensor) -> Tensor:  # noqa: ARG002
        """What the module returned."""
        output, self._output = self._output, torch.empty(0)
        alone: Tensor = torch.ops.aten._unsafe_view(output.detach().contiguous(), output.shape)
        return alone

    def backward(self, inputs: Tensor, gradient: Tensor, needs_input: bool) -> Tensor | None:
        """Leave the parameters' gradients on the tape; return that of the input."""
        module, tape = self._module, self._tape
        own = {name: tape.parameters[place].detach() for name, place in self._places.items()}

        def inner_product(values: dict[str, Tensor], row: Tensor, upstream: Tensor) -> Tensor:
            output = torch.func.functional_call(module, values, (row,))
            total: Tensor = (output * upstream).sum()
            return total

        rows = inputs.reshape(tape.units, -1, *inputs.shape[1:])
        upstream = gradient.reshape(tape.units, -1, *gradient.shape[1:])
        by_unit = torch.func.vmap(torch.func.grad(inner_product, argnums=(0, 1)), in_dims=(None, 0, 0))
        gradients, of_input = by_unit(own, rows, upstream)
        for name, place in self._places.items():
            tape.add_rows(place, gradients[name])
        return of_input.flatten(0, 1) if needs_input else None


def _tap(tape: Tape, module: nn.Module, inputs: Any, output: Any) -> Tensor:
    places = {
        name: place for name, parameter in module.named_parameters() if (place := tape.place_of(parameter)) is not None
    }
    return tape.run(_Apart(tape, module, places, output), inputs[0], places.values())


def can_stand_apart(module: nn.Module, inputs: Any, output: Any, units: int) -> bool:
    """Whether a module takes one batch, returns one batch and draws nothing at random."""
    batches = isinstance(inputs, tuple) and len(inputs) == 1 and isinstance(output, Tensor)
    if not batches or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
        return False
    alike = all(value.ndim > 0 and len(value) == units for value in (inputs[0], output))
    return alike and not any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules())
