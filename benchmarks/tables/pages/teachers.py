"""docs/explanation/teachers.md: teachers by the rules."""

from tables.cells import Cell, Table, lines_of
from tables.names import NAMES
from versions import Line

RESULTS = "teachers.jsonl"


def _features(line: Line) -> str:
    return str(line.get("features") or "wavelets")  # lines of old versions knew wavelets alone


def _row(data: str, features: str, epsilon: float, public: str | None = None) -> list[str | Cell]:
    where = {"data": data, "epsilon": epsilon, "public": public}

    def of(name: str) -> "Cell":
        digits = 2 if "accuracy" in name else 0
        return Cell(
            results=RESULTS, where=where, value=lambda line: line[name] if _features(line) == features else None,
            digits=digits, show="mean",
        )  # fmt: skip

    accuracy = of("accuracy")
    every = Cell(results=RESULTS, where=where, value=accuracy.value, digits=2, show="range")
    runs = Cell(results=RESULTS, where=where, value=accuracy.value, show="count")
    beside = [] if public is None else [str(NAMES.get(public, public))]
    return [
        NAMES.get(data, data), *beside, features, f"{epsilon:g}", runs, accuracy, every,
        of("balanced_accuracy"), of("seconds"), of("peak_mb"),
    ]  # fmt: skip


def _kinds(*, with_public: bool) -> list[tuple[str, str, float, str | None]]:
    lines = [line for line in lines_of(RESULTS) if (line["public"] is not None) == with_public]
    order = list(dict.fromkeys(str(line["data"]) for line in lines))
    kinds = {(str(line["data"]), _features(line), float(line["epsilon"]), line["public"]) for line in lines}
    return sorted(kinds, key=lambda kind: (order.index(kind[0]), *kind[1:3]))


SCORES = ("features", "epsilon", "runs", "accuracy, mean", "from - to", "balanced", "seconds", "peak MB")
TABLES = {
    "teachers": Table(heads=("data", *SCORES), rows=[_row(*kind) for kind in _kinds(with_public=False)]),
    "teachers-public": Table(
        heads=("data", "public images", *SCORES), rows=[_row(*kind) for kind in _kinds(with_public=True)]
    ),
}
