"""A training that goes on where an earlier part of its run stopped."""

from collections.abc import Mapping
from typing import Any, Protocol

from veilset.core.errors import VeilsetError


class Training(Protocol):
    """What follows from noisy sums alone: weights, the state of an optimizer, averages."""

    def state(self) -> Mapping[str, Any]:
        """All that a resumed run needs to go on: tensors and plain data."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""


def resumed(state: dict[str, Any] | None, training: Training) -> bool:
    """Let `training` go on from what was kept, if anything was."""
    if state is None:
        return False
    training.load(state)
    return True


def taken(steps: int, label: str) -> None:
    """Refuse a loop whose body took another number of steps than the one that it was given."""
    if steps != 1:
        raise VeilsetError(f"Expected one step of {label!r} in each turn of its loop, got {steps}. Report this.")
