"""docs/benchmarks/paper_NAME.md: the tables of the papers, ours beside theirs, as far as they are measured."""

from papers.cells import Cell as PaperCell
from papers.cells import Paper, names, paper_named
from tables.cells import Cell, Joined, Part, Table, lines_of

_HEADS = ("what", "ours", "other students", "paper", "its epsilon holds", "records", "processor seconds")

_DIGITS = {"auc": 3, "bytes": 0}


def _where(cell: PaperCell) -> dict[str, object]:
    return {"table": cell.table, "cell": cell.name, "scored_on": "test"}


def _row(results: str, paper: Paper, cell: PaperCell) -> list[Part] | None:
    """A cell with its number; words where it was refused, None where it was never run."""
    where = _where(cell)
    lines = [line for line in lines_of(results) if all(line.get(name) == value for name, value in where.items())]
    if not lines:
        return None
    number = "-" if cell.paper is None else f"{cell.paper:g}"
    holds = "-" if cell.paper is None else (cell.holds or paper.holds)
    if "refused" in lines[-1]:
        return [cell.name, "refused", "-", number, holds, "-", "-"]
    digits = _DIGITS.get(str(lines[-1].get("metric")), 1)
    others: list[Cell | str] = []
    for student in cell.students[1:]:
        value = f"students.{student}.{cell.metric}"
        others += [f"{', ' if others else ''}{student} ", Cell(results=results, where=where, value=value)]
    return [
        f"{cell.name} (no guarantee)" if cell.as_published else cell.name,
        Cell(results=results, where=where, value="value", digits=digits),
        Joined(parts=tuple(others)) if others else "-",
        number,
        holds,
        Cell(results=results, where=where, value="n", digits=0, show="range"),
        Cell(results=results, where=where, value="cpu_seconds", digits=0, show="range"),
    ]


def _table(name: str, paper: Paper, table: str) -> Table:
    cells = [cell for cell in paper.cells if cell.table == table]
    found = [_row(f"papers/{name}.jsonl", paper, cell) for cell in cells]
    rows = [row for row in found if row is not None]
    left = f"{len(cells) - len(rows)} of {len(cells)} are not measured"
    return Table(heads=_HEADS, rows=[*rows, *([[left, *["-"] * (len(_HEADS) - 1)]] if len(rows) < len(cells) else [])])


def name_of(paper: str, table: str) -> str:
    """How a page names the table."""
    return f"papers-{paper}-{table}".replace(".", "-")


TABLES = {
    name_of(name, table): _table(name, paper, table)
    for name in names()
    for paper in (paper_named(name),)
    for table in paper.tables
}
