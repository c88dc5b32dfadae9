"""docs/methods/imgsyn.md."""

from typing import Any

from tables.cells import Cell, Joined, Table
from tables.names import NAMES

RESULTS = "imgsyn.jsonl"
MERF = {"start": "merf"}
NOISE = {"start": "filtered_noise", "aligned_share": "1"}
PLAIN = {"iterations": "0", "variation": "none", "pool": "1"}
ALIGNED = {"iterations": "10", "aligned_share": "1", "variation": "none", "pool": "1", "copies": "1"}
MANY, TWO = [4.0], [1.0, None]  # label temperatures of ten and of two classes; those were 1 before lines named them
TINY = "tinyimagenet_32"
# private, unit, public, its name, epsilon, settings, label temperature, least images, paper
MAIN: list[tuple[str, str, str | None, str, float, dict[str, str], list[float | None], list[int], str]] = [
    ("mnist", "record", "fashion_mnist", "Fashion-MNIST", 1.0, {}, [4.0], [60_000], "86.2"),
    ("mnist", "record", "fashion_mnist", "Fashion-MNIST", 10.0, {}, [4.0], [60_000], "93.9"),
    ("mnist", "record", "fashion_mnist", "Fashion-MNIST; starts from `merf`", 1.0, MERF, [4.0], [60_000], "none"),
    ("mnist", "record", "fashion_mnist", "Fashion-MNIST; starts from `merf`", 10.0, MERF, [4.0], [60_000], "none"),
    ("mnist", "record", None, "none: low-passed noise", 10.0, NOISE, [4.0], [20_000], "91.6"),
    ("fashion_mnist", "record", TINY, "TinyImageNet", 1.0, {}, [4.0], [60_000], "75.0"),
    ("fashion_mnist", "record", TINY, "TinyImageNet", 10.0, {}, [4.0], [60_000], "79.0"),
    ("fashion_mnist", "record", TINY, "TinyImageNet; starts from `merf`", 1.0, MERF, [4.0], [60_000], "none"),
    ("fashion_mnist", "record", TINY, "TinyImageNet; starts from `merf`", 10.0, MERF, [4.0], [60_000], "none"),
    ("fashion_mnist", "record", "mnist", "MNIST", 1.0, {}, [4.0], [20_000], "68.4"),
    ("cifar10_15k", "record", TINY, "TinyImageNet", 10.0, {}, [4.0, None], [5000, 60_000], "45.7, from 50,000"),
    ("celeba_32", "record", TINY, "TinyImageNet", 1.0, {}, TWO, [5000, 20_000, 60_000], "none"),
    ("celeba_32", "record", TINY, "TinyImageNet", 10.0, {}, TWO, [5000, 20_000, 60_000], "none"),
    ("chest_xray_64", "patient", TINY, "TinyImageNet", 1.0, {}, TWO, [12_000], "none"),
    ("chest_xray_64", "patient", TINY, "TinyImageNet", 10.0, {}, TWO, [12_000], "none"),
    (
        "chest_xray_64",
        "patient",
        "builtin:photos",
        "photographs of a package (`builtin:photos`)",
        1.0,
        {},
        TWO,
        [3000],
        "none",
    ),
]


def _student(where: dict[str, Any], student: str, *, balanced: bool) -> Cell | Joined:
    plain = Cell(results=RESULTS, where=where, value=f"students.{student}.accuracy")
    if not balanced or not plain.found():
        return plain
    other = Cell(results=RESULTS, where=where, value=f"students.{student}.balanced_accuracy")
    return Joined(parts=(plain, "; balanced ", other))


def _teacher(where: dict[str, Any], *, balanced: bool) -> Cell | Joined:
    """From the worst to the best release; older lines have no balanced accuracy."""
    plain, other = (
        Cell(results=RESULTS, where=where, value=value, show="range", by=("seed", "date"))
        for value in ("teacher_accuracy", "teacher_balanced_accuracy")
    )
    return Joined(parts=(plain, "; balanced ", other)) if balanced and other.found() else plain


def _main(case: tuple[Any, ...]) -> list[str | Cell | Joined]:
    private, unit, public, name, epsilon, settings, temperatures, samples, paper = case
    where = {
        "scored_on": "test", "private": private, "public": public, "epsilon": epsilon, "settings": settings,
        "label_temperature": temperatures, "samples": samples,
    }  # fmt: skip
    of_two = private == "chest_xray_64"
    return [
        f"{NAMES[private]} ({unit})",
        name,
        f"{epsilon:g}",
        Cell(results=RESULTS, where=where, value="samples", digits=0, show="range", by=("seed", "samples")),
        _student(where, "convnet", balanced=of_two),
        _student(where, "scatternet", balanced=of_two),
        _teacher(where, balanced=of_two),
        paper,
    ]


def _noise(settings: dict[str, str], student: str = "convnet") -> Cell:
    where = {"scored_on": "test", "private": "mnist", "public": None, "epsilon": 10.0, "samples": 10_000}
    return Cell(results=RESULTS, where={**where, "settings": settings}, value=f"students.{student}.accuracy")


def _table2(private: str, public: str, epsilon: float, settings: dict[str, str], paper: str) -> Joined:
    where = {"scored_on": "test", "private": private, "public": public, "epsilon": epsilon, "samples": 5000}
    cell = Cell(results=RESULTS, where={**where, "settings": settings}, value="students.convnet.accuracy")
    return Joined(parts=(cell, f" ({paper})" if paper else ""))


PAIRS = [
    ("mnist", TINY, ("85.83", "85.98"), ("92.97", "94.03")),
    ("mnist", "fashion_mnist", ("85.56", "86.24"), ("93.61", "93.90")),
    ("fashion_mnist", TINY, ("74.99", "74.93"), ("79.04", "78.71")),
    ("fashion_mnist", "mnist", ("51.58", "68.38"), ("54.78", "71.51")),
]
STARTS = [
    ("Gaussian noise, not aligned (k = 0)", {"start": "noise", "iterations": "0"}, "30.12"),
    ("Gaussian noise", {"start": "noise", "aligned_share": "1"}, "90.55"),
    *(
        (f"low-passed, kernel {size}", {**NOISE, "blur": str(size)}, paper)
        for size, paper in ((3, "91.62"), (7, "90.82"), (11, "91.10"), (15, "91.18"))
    ),
    ("drawn patterns (`start=drawn`, the default without public images)", {"start": "drawn"}, "none"),
]

TABLES = {
    "imgsyn": Table(
        heads=(
            "private data (unit)", "public images", "epsilon", "released images", "`convnet`, %", "`scatternet`, %",
            "the private teacher, %", "paper, its epsilon unproved",
        ),
        rows=[_main(case) for case in MAIN],
    ),
    "imgsyn-noise": Table(
        heads=("start", "`convnet`, %", "`scatternet`, %", "paper"),
        rows=[
            (said, _noise(settings), _noise(settings, "scatternet"), paper)
            for said, settings, paper in STARTS
        ],
    ),
    "imgsyn-table2": Table(
        heads=("private", "public", "epsilon", "as they are (paper, k = 0)", "aligned (paper, its k)", "default"),
        rows=[
            (
                NAMES[private],
                NAMES[public],
                f"{epsilon:g}",
                _table2(private, public, epsilon, PLAIN, paper[0]),
                _table2(private, public, epsilon, ALIGNED, paper[1]),
                _table2(private, public, epsilon, {}, ""),
            )
            for private, public, *papers in PAIRS
            for epsilon, paper in zip((1.0, 10.0), papers, strict=True)
        ],
    ),
}  # fmt: skip
