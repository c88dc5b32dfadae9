"""Run the cells of a suite, one process each, and keep what is finished: a line is appended whole or not at all."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilset._version import __version__
from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.methods.versions import versions_of
from veilset.pipeline.compare.suite import Cell, Suite, cells

RESULTS = "results.jsonl"
Line = dict[str, Any]
Runner = Callable[[Cell, Path], Line]


class CellError(Exception):
    """A cell that did not end well; the others go on."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is known of a suite after a run: its lines, and what failed."""

    lines: list[Line]
    failures: list[tuple[str, str]]


def compare(
    suite: Suite,
    out: Path,
    folder: Path,
    *,
    run_missing: bool = True,
    progress: Progress = SILENT,
    runner: Runner | None = None,
) -> Comparison:
    """Run what is missing: finished cells are taken from the results in `out`, failed ones are tried again."""
    runner = runner or run_cell
    todo = cells(suite)
    failures = []
    out.mkdir(parents=True, exist_ok=True)
    with _opened(out / RESULTS) as file, progress.task(f"comparing {suite.name}", len(todo)) as task:
        done = {line["key"]: line for line in read_lines(out / RESULTS)}
        for cell in todo:
            if cell.key not in done and run_missing:
                progress.note(cell.title)
                commit = _commit()  # that the cell starts from: the tree may move on while it runs
                try:
                    line = _line(suite, cell, runner(cell, folder), commit)
                except CellError as error:
                    failures.append((cell.title, str(error)))
                    progress.note(f"{cell.title} failed: {error}")
                else:
                    _append(file, line)
                    done[cell.key] = line
            task.advance()
    wanted = [done[cell.key] for cell in todo if cell.key in done]
    return Comparison(lines=wanted, failures=failures)


def run_cell(cell: Cell, folder: Path) -> Line:
    """One cell in a process of its own."""
    asked = json.dumps({"cell": cell.to_json(), "folder": str(folder)})
    command = [sys.executable, "-m", "veilset.pipeline.compare.worker"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise CellError(reason[0])
    try:
        result: Line = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise CellError("it ended without a result") from error
    return result


def read_lines(path: Path) -> list[Line]:
    """The finished cells; half a last line, of a run that was killed while writing, is left out."""
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = []
    for number, text in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            line = json.loads(text)
            lines.append({**line, "key": str(line["key"])})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"Line {number} of {path} is not a result of veilset compare: {error!r}.") from error
    return lines


def _line(suite: Suite, cell: Cell, result: Line, commit: str) -> Line:
    entrant = cell.entrant
    return {
        "key": cell.key,
        "suite": suite.name,
        "name": entrant.name,
        "method": entrant.method,
        "dataset": cell.dataset.name,
        "epsilon": cell.epsilon,
        "seed": cell.seed,
        **result,
        "student": cell.student,
        "settings": {"preset": entrant.preset, **entrant.settings},
        "cell": cell.to_json(),
        "commit": commit,
        "veilset": __version__,
        "versions": versions_of(entrant.method),
    }


def _commit() -> str:
    """The commit of the code that ran, where it runs from a repository; a changed tree is marked."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The results for appending, by one process at a time; half a last line is cut off."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"Another comparison is writing {path}. Wait for it or choose another --out.") from error
        content = path.read_bytes()
        os.ftruncate(handle, content.rfind(b"\n") + 1)
        yield handle
    finally:
        os.close(handle)


def _append(handle: int, line: Line) -> None:
    data = json.dumps(line, sort_keys=True).encode() + b"\n"
    end = os.fstat(handle).st_size
    if os.write(handle, data) != len(data):
        os.ftruncate(handle, end)
        raise OSError(28, os.strerror(28))
    os.fsync(handle)
