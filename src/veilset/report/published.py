"""Published accuracies of students of private synthetic images, each with its source and whether its epsilon holds."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

from veilset.core.errors import VeilsetError

Holds = Literal["yes", "no", "unchecked", "no claim"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published number. `holds` is about its claimed epsilon; `epsilon` is None where none is claimed."""

    method: str
    dataset: str
    epsilon: float | None
    accuracy: float  # percent
    source: str
    holds: Holds
    note: str


@cache
def published() -> tuple[Published, ...]:
    """All published numbers that we know."""
    text = files("veilset.report").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_row(row) for row in csv.DictReader(text.splitlines()))


def published_for(dataset: str, epsilon: float) -> list[Published]:
    """The numbers for one dataset and epsilon, best first."""
    found = [row for row in published() if row.dataset == dataset and row.epsilon == epsilon]
    return sorted(found, key=lambda row: -row.accuracy)


def _row(row: dict[str, str]) -> Published:
    holds = row["epsilon_holds"]
    if holds not in get_args(Holds):
        raise VeilsetError(f"published.csv: expected epsilon_holds in {get_args(Holds)}, got {holds!r}.")
    return Published(
        method=row["method"],
        dataset=row["dataset"],
        epsilon=float(row["epsilon"]) if row["epsilon"] else None,
        accuracy=float(row["accuracy_percent"]),
        source=row["source"],
        holds=holds,  # type: ignore[arg-type]  # checked above
        note=row["note"],
    )
