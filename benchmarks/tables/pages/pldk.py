"""docs/methods/pldk.md: the released students, and what attacks find in a thousand records."""

from tables.cells import Cell, Joined, Table, lines_of
from tables.names import scored
from versions import Line

LEAKAGE = "leakage.jsonl"


def _form(said: str, after: str | None, **where: object) -> list[str | Cell]:
    kept = scored("pldk.jsonl", data="mnist", preset="default", **where)
    others = after or Cell(**kept, value="accuracy_of_images_alone", times=100)
    return [said, Cell(**kept, times=100), others, Cell(**kept, value="cpu_seconds", digits=0)]


def _largest(name: str, line: Line) -> float:
    return max(float(attack[name]) for attack in line["attacks"])


def _interval(line: Line, end: int) -> float:
    return float(max(line["attacks"], key=lambda attack: attack["auc"])["auc_interval"][end])


def _leak(data: str, row: str, members: int, networks: list[str]) -> list[str | Cell | Joined]:
    where = {"data": data, "row": row, "members": members, "network": networks}
    auc = Joined(
        parts=(
            Cell(results=LEAKAGE, where=where, value=lambda line: _largest("auc", line), digits=3),
            " (",
            Cell(results=LEAKAGE, where=where, value=lambda line: _interval(line, 0), digits=3),
            " to ",
            Cell(results=LEAKAGE, where=where, value=lambda line: _interval(line, 1), digits=3),
            ")",
        )
    )
    return [
        data,
        row,
        Cell(results=LEAKAGE, where=where, times=100),
        Cell(results=LEAKAGE, where=where, value=lambda line: _largest("accuracy", line), times=100),
        auc,
        Cell(results=LEAKAGE, where=where, value=lambda line: _largest("tpr_at_fpr_0.01", line), times=100),
    ]


USUAL, CONVNETS = 1000, ["convnet", "convnet, width 16"]
ROWS = list(dict.fromkeys(str(line["row"]) for line in lines_of(LEAKAGE)))
OTHERS = list(
    dict.fromkeys(
        (str(line["data"]), str(line["row"]), int(line["members"]), str(line["network"]))
        for line in lines_of(LEAKAGE)
        if line["members"] != USUAL or not str(line["network"]).startswith("convnet")
    )
)

TABLES = {
    "pldk": Table(
        heads=("form", "released student, %", "a new student of the images alone, %", "processor seconds"),
        rows=[
            _form("epsilon 10 (the default, `matching=distribution`)", None, epsilon=10.0, settings={}),
            _form("epsilon 10, `matching=gradient` (dsa)", None, epsilon=10.0, settings={"matching": "gradient"}),
            _form(
                "as published, no guarantee, from real images (`--as-published --set start=real iterations=30`)",
                "none: the images stay behind",
                epsilon=None,
                settings={"start": "real", "iterations": "30"},
            ),
        ],
    ),
    "pldk-leakage": Table(
        heads=("data", "", "test accuracy, %", "attack accuracy, %", "AUC (interval)", "TPR at 1 % FPR, %"),
        rows=[_leak(data, row, USUAL, CONVNETS) for data in ("mnist", "cifar10_15k") for row in ROWS],
    ),
    "pldk-leakage-larger": Table(
        heads=("data", "", "test accuracy, %", "attack accuracy, %", "AUC (interval)", "TPR at 1 % FPR, %"),
        rows=[
            [f"{data}, {members:,} members, {network}", *_leak(data, row, members, [network])[1:]]
            for data, row, members, network in OTHERS
        ]
        or [["none is measured", *["-"] * 5]],
    ),
}
