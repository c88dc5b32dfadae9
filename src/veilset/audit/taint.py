"""The run-time code audit: private tensors that raise when they leave the private call which they belong to.

In a `TaintedSession` a subject gets `Sealed` tensors, and everything computed from them is sealed, too. They work as
tensors inside the call. They raise

- when shown, formatted, logged or put into an exception's text;
- when pickled, saved, deep-copied or turned into NumPy arrays or lists;
- when used in any way once the call is over, and, with `leftovers`, when they are merely still alive then.

What a mechanism returns is not sealed: it has been paid for.

Limits. A single number that a function takes out by `float()`, `item()` or `if` inside a call is not followed (the
clipping code needs that). The networks' own weights and buffers are followed only through tensors. It is for tests
and audits, on toy records; a real run uses plain tensors.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from veilset.core.errors import VeilsetError
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.shard_critics import Critic, Critics, Query
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage, Session


class LeakError(VeilsetError):
    """A private tensor left the call that it belongs to."""


_open_calls = 0
_seen: "list[weakref.ref[Sealed]]" = []

_SHOWING = {
    Tensor.__repr__,
    Tensor.__format__,
    Tensor.numpy,
    Tensor.tolist,
    Tensor.__reduce_ex__,
    Tensor.__deepcopy__,
    Tensor.__array__,
    Tensor.storage,
    Tensor.untyped_storage,
}


class Sealed(Tensor):
    """A tensor that knows it is private."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse what shows or stores values, refuse everything outside a call, and seal what comes out."""
        if func in _SHOWING:
            raise LeakError(f"A private tensor was about to leave by {getattr(func, '__name__', func)}.")
        if _open_calls == 0:
            name = getattr(func, "__name__", func)
            raise LeakError(f"A private tensor was used by {name} after the private call that it belongs to.")
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        _remember(result)
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub hides the name
        raise LeakError("A private tensor was about to be shown.")

    def __format__(self, spec: str) -> NoReturn:
        raise LeakError("A private tensor was about to be formatted into a text.")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise LeakError("A private tensor was about to be pickled.")


def _remember(value: object) -> None:
    if isinstance(value, Sealed):
        _seen.append(weakref.ref(value))
    elif isinstance(value, list | tuple):
        for part in value:
            _remember(part)


def seal(value: Tensor) -> Tensor:
    """The same numbers, private."""
    sealed = value.as_subclass(Sealed)
    _remember(sealed)
    return sealed


def _unsealed(value: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return value.detach().as_subclass(Tensor)


@contextmanager
def private_call() -> Iterator[None]:
    """A mechanism at work: sealed tensors may be used."""
    global _open_calls
    _open_calls += 1
    try:
        yield
    finally:
        _open_calls -= 1


def leftovers() -> list[tuple[int, ...]]:
    """Shapes of private tensors that outlived their call: somebody keeps them. They are named once."""
    gc.collect()
    kept = [part for part in (reference() for reference in _seen) if part is not None]
    _seen.clear()
    return [tuple(_unsealed(part).shape) for part in kept]


class TaintedSession(Session):
    """A session that hands sealed tensors to the functions it is given and checks that none is kept."""

    def gaussian_sum(self, per_image: PerImage, event: Event, **options: Any) -> Tensor:
        """As in a session, with sealed rows."""
        with private_call():
            released = super().gaussian_sum(_sealing(per_image), event, **options)
        _require_nothing_left()
        return released

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> GradientSteps:
        """As in a session, with sealed batches."""
        with private_call():
            real = super().gradient_steps(event, clip_norm=clip_norm, features=features and _sealing(features))
        return _TaintedSteps(real)

    def critics(self, critic: Critic, features: PerImage, events: Sequence[Event], **options: Any) -> Critics:
        """As in a session, with sealed images for `features`; `torch.vmap` cannot carry sealed rows to a critic."""
        with private_call():
            real = super().critics(critic, _sealing(features), events, **options)
        return _TaintedCritics(real)


class _TaintedCritics(Critics):
    def __init__(self, real: Critics) -> None:
        self.__dict__ = real.__dict__

    def step(self, query: Query) -> Tensor:
        """The real step, which may read the shards."""
        with private_call():
            released = super().step(query)
        if self.steps_left == 0:
            _require_nothing_left()
        return released


class _TaintedSteps(GradientSteps):
    def __init__(self, real: GradientSteps) -> None:
        self.__dict__ = real.__dict__

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[Tensor]:
        """The real step, with a sealed batch."""

        def sealing(*batch: Tensor) -> list[Tensor]:
            return [_unsealed(total) for total in clipped_sum(*map(seal, batch))]

        with private_call():
            released = super().step(sealing, draws=draws)
        if self.steps_left == 0:  # looking through all objects at every step would take longer than the training
            _require_nothing_left()
        return released


def _sealing(per_image: PerImage) -> PerImage:
    """The function on sealed images; its result is opened again for the mechanism alone."""

    def sealed(images: Tensor, labels: Tensor) -> Tensor:
        return _unsealed(per_image(seal(images), seal(labels)))

    return sealed


def _require_nothing_left() -> None:
    kept = leftovers()
    if kept:
        raise LeakError(f"Private tensors of the shapes {kept} were kept after the call that they belong to.")
