"""A training that goes on where an earlier part of its run stopped."""

from collections.abc import Mapping
from typing import Any, Protocol


class Training(Protocol):
    """What follows from noisy sums alone: weights, the state of an optimizer, averages."""

    def state(self) -> Mapping[str, Any]:
        """All that a resumed run needs to go on: tensors and plain data."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
