"""What a table of a paper is made of here: cells, each a run with the paper's number beside ours."""

import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import papers
from versions import Line, versions_of

RESULTS = Path(__file__).resolve().parents[1] / "results" / "papers"
Holds = Literal["yes", "no", "unchecked", "none claimed"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table: what is run here, and what the paper reports.

    `name` tells it apart within its table. `units` keeps about so many of the private ones. `measure` is
    "module:function" for cells that are not the accuracy of students; it takes a cell, a seed and whether to score on
    a held-out part of train, and returns fields of the line, `value` among them. `options` are for such a measure, and
    `method` is then what the line is of: a method, or "engine".
    """

    table: str
    name: str
    method: str
    private: str
    epsilon: float | None
    public: str | None = None
    units: int | None = None
    preset: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    as_published: bool = False
    samples: int | None = None
    students: tuple[str, ...] = ("convnet",)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    metric: Literal["accuracy", "balanced_accuracy"] = "accuracy"  # of students
    measure: str = "papers.utility:measure"
    options: Mapping[str, str] = field(default_factory=dict)
    paper: float | None = None
    holds: Holds | None = None
    differs: str = ""
    minutes: float = 5.0
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: its tables as cells, whether its epsilon holds, and what differs here from all of it."""

    title: str
    holds: Holds
    differs: str
    tables: Mapping[str, str]
    """What each table is about, by its name, in the order of the paper."""
    cells: Sequence[Cell]


def paper_named(name: str) -> Paper:
    """The paper of the module papers/NAME.py; an unknown table of a cell, or a name given twice, is refused."""
    if name not in names():
        raise SystemExit(f"No paper is called {name!r}; there are {', '.join(names())}.")
    paper: Paper = importlib.import_module(f"papers.{name}").PAPER
    found = [(cell.table, cell.name) for cell in paper.cells]
    if twice := {key for key in found if found.count(key) > 1}:
        raise SystemExit(f"papers/{name}.py has two cells {sorted(twice)[0]}.")
    if unknown := {cell.table for cell in paper.cells} - set(paper.tables):
        raise SystemExit(f"papers/{name}.py says nothing of the tables {sorted(unknown)}.")
    return paper


def names() -> list[str]:
    """Every paper: the modules of this package that define `PAPER`."""
    modules = [module.name for module in pkgutil.iter_modules(papers.__path__)]
    folder = Path(__file__).parent
    return [name for name in modules if "\nPAPER = " in (folder / f"{name}.py").read_text(encoding="utf-8")]


def results_of(name: str, *, validate: bool = False) -> Path:
    """Where the lines of a paper go; trials have a file of their own."""
    return RESULTS / f"{name}{'_trials' if validate else ''}.jsonl"


def lines_in(place: Path) -> list[Line]:
    """All lines of a file, oldest first."""
    text = place.read_text(encoding="utf-8") if place.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def described(cell: Cell) -> dict[str, Any]:
    """The fields of a line that follow from its cell; a line whose fields differ is of another cell."""
    return {
        "table": cell.table,
        "cell": cell.name,
        "method": cell.method,
        "private": cell.private,
        "public": cell.public,
        "units": cell.units,
        "epsilon": None if cell.as_published else cell.epsilon,
        "preset": cell.preset,
        "settings": dict(cell.settings),
        "as_published": cell.as_published,
        "samples_asked": cell.samples,
        "asked_of": list(cell.students),
        "recipe": json.loads(json.dumps(dict(cell.recipe))),
        **({"options": dict(cell.options)} if cell.options else {}),
    }


def is_measured(cell: Cell, seed: int, lines: Sequence[Line]) -> bool:
    """Whether a line of today's code has this cell and seed; one that says it was refused counts."""
    wanted = {**described(cell), "seed": seed, "versions": versions_of(cell.method)}
    return any(all(line.get(name) == value for name, value in wanted.items()) for line in lines)
