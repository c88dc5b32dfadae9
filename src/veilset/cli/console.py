"""What people see: results on stdout, progress and errors on stderr, `--json` as one object, and exit codes."""

import errno
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from veilset.cli.pulse import PULSE
from veilset.core.errors import INTERRUPTED_EXIT_CODE, VeilsetError, flags_spoken

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 30

F = TypeVar("F", bound=Callable[..., Any])


def guarded(command: F) -> F:
    """Turn what may go wrong into one clear line and the right exit code; never a traceback for the user's input."""

    @functools.wraps(command)
    @flags_spoken()
    def call(**arguments: Any) -> None:
        try:
            with PULSE.beating():
                command(**arguments)
        except VeilsetError as error:
            _fail(str(error), error.exit_code, as_json=bool(arguments.get("as_json")))
        except KeyboardInterrupt:
            _fail("Interrupted.", INTERRUPTED_EXIT_CODE, as_json=bool(arguments.get("as_json")))
        except BrokenPipeError:
            raise typer.Exit(1) from None
        except OSError as error:
            advice = " Free some space and try again." if error.errno == errno.ENOSPC else ""
            name = f"{error.filename}: " if error.filename else ""
            _fail(f"{name}{error.strerror or error}.{advice}", 1, as_json=bool(arguments.get("as_json")))
        except MemoryError:
            _fail("Out of memory. Use --limit, a smaller --size or a smaller preset.", 1, as_json=False)

    return call  # type: ignore[return-value]  # the wrapper keeps the signature that typer reads


def _fail(message: str, code: int, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"error": message, "exit_code": code}))
    typer.secho(f"Error: {message}" if code != INTERRUPTED_EXIT_CODE else message, err=True, fg="red")
    raise typer.Exit(code)


def epsilon_text(epsilon: float | None) -> str:
    """An epsilon with four decimals, or with four digits where those would say too little."""
    if epsilon is None:
        return "none"
    return f"{epsilon:.4f}" if epsilon == 0 or epsilon >= 0.01 else f"{epsilon:.4g}"


class Console:
    """One command's output. In JSON mode stdout carries the result alone."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def say(self, text: str = "") -> None:
        """A line for a person."""
        PULSE.heard()
        typer.echo(text, err=self.as_json)

    def warn(self, text: str) -> None:
        """A line that should not be missed."""
        PULSE.heard()
        typer.secho(f"Warning: {text}", err=True, fg="yellow")

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """A table for a person."""
        from rich.console import Console as RichConsole
        from rich.table import Column, Table

        first = Column(columns[0], no_wrap=True)
        table = Table(first, *columns[1:], title=title, title_justify="left", title_style="bold")
        for row in rows:
            table.add_row(*row)
        PULSE.heard()
        RichConsole(stderr=self.as_json).print(table)

    def result(self, content: Mapping[str, Any]) -> None:
        """The one JSON object of `--json`."""
        if self.as_json:
            PULSE.heard()
            typer.echo(json.dumps(content))


class _Bar:
    def __init__(self, bars: "Bars", task: "TaskID") -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: int = 1) -> None:
        """Move the bar."""
        self._bars.advance(self._task, amount)


class _Lines:
    """Away from a terminal: a line about the work every half minute."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done, self._said = label, total, 0, time.monotonic()

    def advance(self, amount: int = 1) -> None:
        """Count, and say how far it is when the last line is old."""
        self._done += amount
        now = time.monotonic()
        if now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            PULSE.heard(self._label)
            sys.stderr.write(f"{self._label}: {self._done} of {self._total}\n")


class RichProgress:
    """Bars on stderr with what is done, the rate and the time that remains."""

    @contextmanager
    def task(self, label: str, total: int) -> Iterator["_Bar | _Lines"]:
        """Draw a bar until the block ends. Away from a terminal, say the label, and how far it is now and then."""
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Task as RichTask
        from rich.text import Text

        class RateColumn(ProgressColumn):
            """Work per second."""

            def render(self, task: RichTask) -> Text:
                """The rate, once it is known."""
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")

        console = RichConsole(stderr=True)
        if not console.is_terminal:
            self.note(label)
            yield _Lines(label, total)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TimeRemainingColumn(),
        )
        PULSE.heard(label)
        with PULSE.paused(), Progress(*columns, console=console) as bars:
            yield _Bar(bars, bars.add_task(label, total=total))

    def note(self, text: str) -> None:
        """Say one line."""
        PULSE.heard(text)
        sys.stderr.write(f"{text}\n")
