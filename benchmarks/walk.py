"""How far a reader walks through the code of one run: hops between files, calls that go up, and files read again.

    PYTHONPATH=src python benchmarks/walk.py [--json] [--show]

A small `veilset synthesize --method imgsyn` runs in this process under a profiler, and each walk below is counted.

- A hop is a distinct pair of functions of two files, one of which calls the other. Closures, lambdas and comprehensions
  belong to the function around them; a generator is entered by whoever consumes it. Only direct calls count: what
  torch, dataclasses or contextlib call for us, functions under their decorators among it, has no caller of ours.
  Import time does not count.
- Left out are the shared helpers (core/, data/, cli/console.py), the rules of single layers (dpsgd/layers, of which a
  reader needs one), and callees that do not look like calls where they are used: properties and `__methods__`.
- An up-call is a hop into a room above the caller's: a callback.
- A re-entry is a hop into a file that was entered before and left: it is neither on the stack of calls nor where the
  hop before ended. Hops are in the order in which they first occurred.

The walks: `synthesize` is what happens inside of the pipeline's `run`; `command` is all of the command, whatever part
of the work `run` does; `step` is the second `GradientSteps.step` of a small convnet's training, with its callback, so
that no set-up is in it. `everything` repeats a count with nothing left out.

How this way of counting was chosen: of the code before methods had folders, an earlier count said 156 hops, 14 up-calls
and 83 re-entries for synthesize; 24, 2 and 7 for a step; and 299, 25 and 177 in 58 files with nothing left out. How it
counted is not known. Of the hundreds of ways that were tried, this one comes near: 165, 14 and 86; 23, 2 and 11; and,
for everything of the command, 298, 25 and 179 in 64 files. A choice among so many fits in part by chance, and the step
comes near only without the rules of layers (76, 2 and 32 with them). So compare counts of this file with each other,
not with the earlier ones.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

# From the bottom; rooms of one line are on one level. A file outside of rooms is above all of them.
ROOMS = (
    ("core",),
    ("privacy",),
    ("models", "data"),
    ("training",),
    ("dpsgd",),
    ("teachers",),
    ("release",),
    ("evaluate", "methods"),
    ("report", "audit"),
    ("pipeline",),
    ("cli",),
)
LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
HELPERS = ("core/", "data/", "cli/console.py", "dpsgd/layers/", "training/dpsgd/layers/")
SETTINGS = ("iterations=2", "batch=20")
NETWORK = ("teacher=network", "network=convnet")
RECORDS, SIDE, SAMPLES = 400, 16, 40


class Place(NamedTuple):
    """A function, by its file inside of the package."""

    file: str
    function: str

    @property
    def room(self) -> str:
        """The folder that it is in."""
        return self.file.partition("/")[0] if "/" in self.file else ""

    @property
    def level(self) -> int:
        """How high its room is."""
        return LEVELS.get(self.room, len(ROOMS))

    @property
    def is_helper(self) -> bool:
        """Whether a reader knows it without going there."""
        return self.file.startswith(HELPERS)


@dataclass(frozen=True)
class Call:
    """A direct call between two files, when it first occurred; `silent` ones do not look like calls."""

    caller: Place
    callee: Place
    silent: bool
    open_files: frozenset[str]


class StepTakenError(BaseException):
    """Ends a run whose step was seen. Not an `Exception`, so that nothing on the way takes it for a failure."""


class Walk:
    """Records the calls below the `number`-th call of one function."""

    def __init__(self, package: Path, files: Sequence[str], function: str, *, number: int = 1, ends: bool = False):
        self._package, self._files, self._function = f"{package}{os.sep}", files, function
        self._number, self._ends = number, ends
        self._root: FrameType | None = None
        self._seen: set[tuple[CodeType, CodeType]] = set()
        self.calls: list[Call] = []

    def profile(self, frame: FrameType, event: str) -> None:
        """One event of the profiler."""
        if event == "call" and self._root is not None:
            self._called(frame, self._root)
        elif event == "call" and self._number > 0 and self._starts(frame.f_code):
            self._number -= 1
            self._root = frame if self._number == 0 else None
        elif event == "return" and frame is self._root:
            self._root = None
            if self._ends:
                raise StepTakenError

    def _starts(self, code: CodeType) -> bool:
        return code.co_qualname == self._function and self._file(code).startswith(tuple(self._files))

    def _file(self, code: CodeType) -> str:
        """Empty outside of the package."""
        return code.co_filename[len(self._package) :] if code.co_filename.startswith(self._package) else ""

    def _called(self, frame: FrameType, root: FrameType) -> None:
        callee, back = frame.f_code, frame.f_back
        if back is None or (back.f_code, callee) in self._seen:
            return
        caller = back.f_code
        inside, outside = self._file(callee), self._file(caller)
        if not inside or not outside or inside == outside or not callee.co_flags & caller.co_flags & CO_OPTIMIZED:
            return
        frames = list(_frames_to(root, back))
        if any(self._file(each.f_code) and each.f_code.co_name == "<module>" for each in frames):
            return
        self._seen.add((caller, callee))
        silent = callee.co_name.startswith("__") or callee.co_firstlineno in properties_of(callee.co_filename)
        open_files = frozenset(self._file(each.f_code) for each in frames)
        self.calls.append(Call(_place(outside, caller), _place(inside, callee), silent, open_files))


def _frames_to(root: FrameType, frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        if frame is root:
            return
        frame = frame.f_back


def _place(file: str, code: CodeType) -> Place:
    return Place(file, code.co_qualname.split(".<locals>")[0])


@cache
def properties_of(path: str) -> frozenset[int]:
    """The first lines of a file's properties; a decorated function begins with its decorators."""
    functions = [node for node in ast.walk(ast.parse(Path(path).read_bytes())) if isinstance(node, ast.FunctionDef)]
    return frozenset(
        node.decorator_list[0].lineno
        for node in functions
        if any("property" in ast.unparse(each) for each in node.decorator_list)
    )


def hops_of(calls: Sequence[Call], *, everything: bool = False) -> list[Call]:
    """The first call of each pair of functions, without what is left out."""
    pairs: dict[tuple[Place, Place], Call] = {}
    for call in calls:
        if everything or not (call.silent or call.caller.is_helper or call.callee.is_helper):
            pairs.setdefault((call.caller, call.callee), call)
    return list(pairs.values())


def is_up(hop: Call) -> bool:
    """Whether the hop goes to a room above."""
    return hop.callee.level > hop.caller.level


def re_entries(hops: Sequence[Call]) -> list[bool]:
    """For each hop, whether it goes into a file that was entered before and left."""
    entered: set[str] = set()
    last, found = "", []
    for hop in hops:
        file = hop.callee.file
        found.append(file in entered and file != last and file not in hop.open_files)
        entered.add(file)
        last = file
    return found


def numbers(hops: Sequence[Call]) -> dict[str, int]:
    """What is counted of a walk."""
    return {
        "hops": len(hops),
        "up_calls": sum(map(is_up, hops)),
        "re_entries": sum(re_entries(hops)),
        "files": len({place.file for hop in hops for place in (hop.caller, hop.callee)}),
    }


def crossings(hops: Sequence[Call]) -> dict[str, int]:
    """How many hops go from one room to another, the most first."""
    rooms = Counter((hop.caller.room, hop.callee.room) for hop in hops)
    return {f"{start} > {end}": count for (start, end), count in rooms.most_common() if start != end}


def synthesize(folder: Path, settings: Sequence[str], walks: Sequence[Walk]) -> None:
    """Run the command on small random images while `walks` are recorded."""
    from veilset.cli.main import app

    folder.mkdir()
    labels = np.arange(RECORDS) % 2
    images = np.random.default_rng(0).integers(0, 120, (RECORDS, SIDE, SIDE, 1)) + 120 * labels[:, None, None, None]
    np.savez(folder / "private.npz", images=images.astype(np.uint8), labels=labels)
    arguments = ["synthesize", str(folder / "private.npz"), "--method", "imgsyn", "--preset", "fast", "--epsilon", "8"]
    arguments += [
        "--samples",
        str(SAMPLES),
        "--account",
        str(folder / "account"),
        "--out",
        str(folder / "out"),
        "--yes",
    ]
    arguments += [part for setting in settings for part in ("--set", setting)]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return"):  # of Python; there are many more of C
            for walk in walks:
                walk.profile(frame, event)

    said = io.StringIO()
    code = None
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(StepTakenError):
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            code = app(arguments, standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if code:
        raise SystemExit(f"The run failed:\n{said.getvalue()}")


def measure() -> dict[str, list[Call]]:
    """The calls of every walk, by its name."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Nothing of the user's is read or charged. With one thread, all batches are worked on where they are asked for.
        os.environ |= {"HOME": temporary, "XDG_STATE_HOME": temporary, "VEILSET_STATE": str(folder / "state")}
        os.environ["OMP_NUM_THREADS"] = "1"
        import veilset

        package = Path(veilset.__file__).parent
        command = Walk(package, ["cli/synthesize.py"], "synthesize")
        run = Walk(package, ["pipeline/run.py", "pipeline/synthesize.py"], "run")
        step = Walk(package, ["privacy/"], "GradientSteps.step", number=2, ends=True)
        synthesize(folder / "run", SETTINGS, [command, run])
        synthesize(folder / "step", (*SETTINGS, *NETWORK), [step])
    walks = {"synthesize": run, "command": command, "step": step}
    for name, walk in walks.items():
        if not walk.calls:
            raise SystemExit(f"Saw nothing of {name!r}: has the function where it starts another name?")
    return {name: walk.calls for name, walk in walks.items()}


def show(hops: Sequence[Call]) -> None:
    """One hop a line, in order."""
    for hop, again in zip(hops, re_entries(hops), strict=True):
        marks = ("up" if is_up(hop) else "  ") + (" again" if again else "      ")
        print(f"  {marks}  {hop.caller.file}:{hop.caller.function} > {hop.callee.file}:{hop.callee.function}")


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description="How far a reader walks through the code of one run.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--show", action="store_true", help="the hops in order, one a line")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for name, calls in measure().items():
        hops = hops_of(calls)
        everything = numbers(hops_of(calls, everything=True))
        results[name] = numbers(hops) | {"rooms": crossings(hops), "everything": everything}
        if options.show and not options.json:
            print(f"{name}:")
            show(hops)
        if options.json and options.show:
            results[name]["walk"] = [[*hop.caller, *hop.callee] for hop in hops]
    if options.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        for title, counted in ((name, result), ("  everything", result["everything"])):
            print(
                f"{title:<12} {counted['hops']:>4} hops {counted['up_calls']:>3} up-calls "
                f"{counted['re_entries']:>4} re-entries {counted['files']:>3} files"
            )
        print("  rooms:", ", ".join(f"{pair} {count}" for pair, count in result["rooms"].items()))


if __name__ == "__main__":
    main()
