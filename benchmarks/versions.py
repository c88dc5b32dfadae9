"""Which version of the code a line of results is of, and whether that is today's.

`append` of machine.py writes `versions` into every line: of the method, of the teachers it builds upon, of the students
that were scored. A line without any, or with others than today's, is stale, unless benchmarks/results/valid.toml
declares it still valid with a reason.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from veilset.core import versions
from veilset.methods import METHODS
from veilset.methods.versions import versions_of as method_versions

Line = Mapping[str, Any]
RESULTS = Path(__file__).parent / "results"
# What is measured beside methods; it counts up as a method's version does.
OTHERS = {"engine": 1, "attacks": 1, "audit": 1, "leakage": 1, "walk": 1, "features": 1, "noise": 1, "scale": 1}
# Formulas of papers and of plans: what their lines say follows from the accountant alone.
OTHERS |= {
    "theorem": 1,
    "published noise": 1,
    "plan": 1,
    "votes": 1,
    "imgsyn_toy": 1,
    "account filter": 1,
    "teacher batch": 1,
    "correlated noise": 1,
}


def subject_of(line: Line, results: str) -> str:
    """What a line is about: its method, else its benchmark, else the name of its file."""
    benchmark, method = str(line.get("benchmark")), str(line.get("method"))
    if benchmark in OTHERS or benchmark in ("teachers", "students"):
        return benchmark
    return next((name for name in (method, benchmark) if name in METHODS), Path(results).stem)


def versions_of(subject: str) -> dict[str, int]:
    """Today's versions of a subject and of what it builds upon."""
    if subject == "teachers":
        return {"teachers": versions.TEACHERS}
    if subject == "students":
        return {"students": versions.STUDENTS}
    if subject not in METHODS:
        return {subject: OTHERS.get(subject, 1)}
    return method_versions(subject)


@dataclass(frozen=True, kw_only=True)
class Valid:
    """A declaration that older lines still hold for these versions, and why."""

    results: str
    reason: str
    versions: Mapping[str, int]
    where: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, line: Line, results: str) -> bool:
        """Whether it is about this line, and about today's versions."""
        if results != self.results or not matches(line, self.where):
            return False
        return dict(self.versions) == versions_of(subject_of(line, results))


@cache
def declared_valid() -> tuple[Valid, ...]:
    """All declarations."""
    text = (RESULTS / "valid.toml").read_text(encoding="utf-8")
    return tuple(Valid(**entry) for entry in tomllib.loads(text).get("valid", []))


def is_stale(line: Line, results: str, declared: tuple[Valid, ...] | None = None) -> bool:
    """Whether a line was measured with other versions than today's and nobody declared it valid."""
    if line.get("versions") == versions_of(subject_of(line, results)):
        return False
    return not any(valid.covers(line, results) for valid in (declared_valid() if declared is None else declared))


def matches(line: Line, where: Mapping[str, Any]) -> bool:
    """Whether a line has all these values; `settings.start` looks inside, and a list is any of its values.

    `date_from` is met by lines of that date or later.
    """
    for name, wanted in where.items():
        if name == "date_from":
            if str(line.get("date", "")) < str(wanted):
                return False
            continue
        found = value_of(line, name)
        if found not in wanted if isinstance(wanted, list) else found != wanted:
            return False
    return True


def value_of(line: Line, name: str) -> Any:
    """A field, or one inside another: `students.convnet.accuracy`; None where it is missing."""
    found: Any = line
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
