"""docs/notes/correlated_noise.md: network teachers with independent and with correlated noise."""

from tables.cells import Cell, Part, Table
from tables.names import NAMES

RESULTS = "correlated.jsonl"


def _row(data: str, rate: float, bands: int) -> list[Part]:
    where = {"data": data, "epsilon": 10.0, "bands": bands, "learning_rate": rate, "steps": 400}
    each = Cell(results=RESULTS, where=where, digits=2)
    mean = Cell(results=RESULTS, where=where, digits=2, show="mean")
    noise = "independent" if bands == 1 else f"over {bands} bands"
    return [NAMES.get(data, data), f"{rate:g}", noise, mean, each]


TABLES = {
    "correlated": Table(
        heads=("data", "learning rate", "noise", "accuracy, mean", "each seed"),
        rows=[_row("mnist", 0.2, 1), _row("mnist", 0.2, 16), _row("mnist", 0.05, 1)],
    )
}
