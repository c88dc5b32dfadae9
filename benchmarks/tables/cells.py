"""What a table is made of: words, and cells that look up lines of results."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Any, Literal

from versions import RESULTS, Line, is_stale, matches, value_of

STALE = "†"
NOT_MEASURED = "-"
FOOTNOTE = f"{STALE} measured with an earlier version of the code, or with one that the line does not name."

Show = Literal["each", "mean", "range", "count"]
Field = str | Callable[[Line], float | None]


@cache
def lines_of(results: str) -> tuple[Line, ...]:
    """All lines of a file of benchmarks/results, oldest first."""
    text = (RESULTS / results).read_text(encoding="utf-8") if (RESULTS / results).exists() else ""
    return tuple(json.loads(line) for line in text.splitlines() if line.strip())


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Numbers of the lines that match, one for each seed: the newest that is not stale, else the newest.

    Numbers are told apart by the fields of `by`, which is the seed.
    `show` is each seed's number, their mean, the smallest to the largest, or how many there are. `where` is as in
    `versions.matches`. Percentages that a file has as shares are multiplied by `times`.
    """

    results: str
    where: Mapping[str, Any] = field(default_factory=dict)
    value: Field = "accuracy"
    times: float = 1
    digits: int = 1
    show: Show = "each"
    by: tuple[str, ...] = ("seed",)
    after: str = ""

    def found(self) -> list[tuple[int, float, bool]]:
        """Seed, number and whether it is stale, in the order of the seeds."""
        kept: dict[tuple[Any, ...], tuple[int, float, bool]] = {}
        for line in lines_of(self.results):
            if not matches(line, self.where):
                continue
            number = self.value(line) if callable(self.value) else value_of(line, self.value)
            if number is None:
                continue
            key, stale = tuple(str(value_of(line, name)) for name in self.by), is_stale(line, self.results)
            if key not in kept or kept[key][2] or not stale:
                kept[key] = (int(line.get("seed") or 0), self.times * float(number), stale)
        return sorted(kept.values())

    def text(self) -> str:
        """The cell as the page shows it."""
        words, stale = self.words()
        return f"{words}{STALE}" if stale else words

    def words(self) -> tuple[str, bool]:
        """The numbers, and whether all that are not marked by themselves are stale."""
        found = self.found()
        if not found:
            return NOT_MEASURED, False
        seeds, numbers, stale = [row[0] for row in found], [row[1] for row in found], [row[2] for row in found]
        if self.show == "count":
            return str(len(numbers)), False
        if self.show == "mean":
            return self._number(sum(numbers) / len(numbers)) + self.after, any(stale)
        if self.show == "range":
            least, most = self._number(min(numbers)), self._number(max(numbers))
            return (least if least == most else f"{least} to {most}") + self.after, any(stale)
        marked = any(stale) and not all(stale)
        shown = [self._number(number) + STALE * (marked and old) for number, old in zip(numbers, stale, strict=True)]
        others = "" if self.by != ("seed",) or seeds == list(range(len(seeds))) else f" ({_named(seeds)})"
        return ", ".join(shown) + self.after + others, all(stale)

    def _number(self, number: float) -> str:
        exact = Decimal(str(round(number, 9))).quantize(Decimal(1).scaleb(-self.digits), ROUND_HALF_UP)
        return f"{exact:,}"


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Several cells in one, with words between them: `Joined(parts=(cell, " (", paper, ")"))`."""

    parts: tuple["Cell | str", ...]

    def text(self) -> str:
        """The cell as the page shows it, marked once."""
        pairs = [(part, False) if isinstance(part, str) else part.words() for part in self.parts]
        words = "".join(words for words, _ in pairs)
        return f"{words}{STALE}" if any(stale for _, stale in pairs) else words


Part = str | Cell | Joined


def _marked(row: Sequence[Part]) -> list[str]:
    """The texts of a row; where all of its numbers are stale, the mark stands once, at its first words."""
    texts = [part if isinstance(part, str) else part.text() for part in row]
    numbers = [
        text for part, text in zip(row, texts, strict=True) if not isinstance(part, str) and text != NOT_MEASURED
    ]
    counts = [part for part in row if isinstance(part, Cell) and part.show == "count"]
    stale = [text for text in numbers if text.endswith(STALE) and text.count(STALE) == 1]
    if not stale or len(stale) + len(counts) < len(numbers) or not isinstance(row[0], str):
        return texts
    bare = [text.removesuffix(STALE) for text in texts]
    return [f"{bare[0]} {STALE}".strip(), *bare[1:]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Heads and rows; a word stands as it is."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Part]]

    def text(self) -> str:
        """The table in Markdown, with a footnote where a line is stale."""
        shown = [_marked(row) for row in self.rows]
        for row in shown:
            if len(row) != len(self.heads):
                raise SystemExit(f"A row has {len(row)} cells for {len(self.heads)} heads: {row}")
        lines = [f"| {' | '.join(cells)} |" for cells in ([*self.heads], *shown)]
        lines.insert(1, "|---" * len(self.heads) + "|")
        if any(STALE in cell for row in shown for cell in row):
            lines += ["", FOOTNOTE]
        return "\n".join(lines)
