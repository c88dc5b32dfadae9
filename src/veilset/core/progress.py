"""Progress of work, never of private losses or accuracies.

Layers report to a `Progress`; the command line draws it and a library call stays silent by default.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

T = TypeVar("T")


class Task(Protocol):
    """One running piece of work."""

    def advance(self, amount: int = 1) -> None:
        """Report that `amount` more units of work are done."""


class Progress(Protocol):
    """Where work is reported."""

    def task(self, label: str, total: int) -> AbstractContextManager[Task]:
        """Open a bar called `label` with `total` units of work."""

    def note(self, text: str) -> None:
        """Say one line to the person who waits."""


class _SilentTask:
    def advance(self, amount: int = 1) -> None:
        """Do nothing."""


class Silent:
    """The default: reports nothing."""

    def task(self, label: str, total: int) -> AbstractContextManager[Task]:  # noqa: ARG002
        """Return a task that reports nothing."""
        return nullcontext(_SilentTask())

    def note(self, text: str) -> None:
        """Say nothing."""


SILENT: Progress = Silent()


def track(items: Iterable[T], progress: Progress, label: str, total: int) -> Iterator[T]:
    """Iterate over `items` and advance a bar by one for each."""
    with progress.task(label, total) as task:
        for item in items:
            yield item
            task.advance()
