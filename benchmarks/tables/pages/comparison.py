"""docs/benchmarks/comparison.md: all methods side by side."""

from tables.cells import Cell, Table
from tables.names import NAMES, SMALL, best_published, compared

METHODS = ("merf", "imgsyn", "dfd", "dpgan", "dpaf", "pldk", "pate", "sanitized_gan")
OWN = {"preset": "default", "settings": {}}


def _row(name: str, shown: str) -> list[str | Cell]:
    seconds = Cell(
        results="mnist_fashion/results.jsonl",
        where={"name": name},
        value="cpu_seconds",
        digits=0,
        show="range",
        by=("dataset", "epsilon", "seed"),
    )
    return [shown, *(compared(name, data, epsilon) for data, epsilon in SMALL), seconds]


def _more(method: str, said: str, data: str, epsilon: float, made: str, **cell: object) -> list[str | Cell]:
    options: dict[str, object] = {"show": "mean", **cell}
    where = {"scored_on": "test", "epsilon": epsilon, **options.pop("where", {})}  # type: ignore[dict-item]
    score = Cell(**{**options, "where": where})  # type: ignore[arg-type]
    seconds = Cell(results=score.results, where=where, value="cpu_seconds", digits=0, show="mean")
    runs = Cell(results=score.results, where=where, value=score.value, show="count")
    return [f"[`{method}`](../methods/{method}.md){said}", NAMES[data], f"{epsilon:g}", score, runs, made, seconds]


def _dfd(data: str, epsilon: float) -> list[str | Cell]:
    where = {"benchmark": "dfd", "data": data, "samples": 20_000, **OWN}
    made = "default, 20,000 images"
    return _more(
        "dfd", ", its own student", data, epsilon, made, results="dfd.jsonl", where=where, value="student", times=100
    )


def _pate(epsilon: float) -> list[str | Cell]:
    where = {"benchmark": "pate", "data": "mnist", "preset": "fast", "settings": {}}
    return _more(
        "pate",
        ", its own student",
        "mnist",
        epsilon,
        "`fast`",
        results="dfd.jsonl",
        where=where,
        value="student",
        times=100,
    )


TABLES = {
    "all-methods": Table(
        heads=("method", *(f"{NAMES[data]}, epsilon {epsilon:g}" for data, epsilon in SMALL), "processor seconds"),
        rows=[
            *(_row(name, f"[`{name}`](../methods/{name}.md)") for name in METHODS),
            _row("sanitized_gan, labelled", "[`sanitized_gan`](../methods/sanitized_gan.md), classifier"),
            ["DP-MERF, the one whose epsilon was checked", *(best_published(*case, "yes") for case in SMALL), ""],
            ["best published, epsilon unchecked", *(best_published(*case, "unchecked") for case in SMALL), ""],
            ["best published, epsilon does not hold", *(best_published(*case, "no") for case in SMALL), ""],
        ],
    ),
    "more-methods": Table(
        heads=("method", "private data", "epsilon", "student, %, mean", "runs", "settings", "processor seconds"),
        rows=[
            *(_dfd(data, epsilon) for data, epsilon in SMALL),
            _pate(1.0),
            _pate(10.0),
            _more(
                "pldk", ", its own student", "mnist", 10.0, "default, 100 images",
                results="pldk.jsonl", where=OWN, times=100,
            ),
            _more("sanitized_gan", "", "mnist", 10.0, "default, 20,000 images", results="sanitized_gan.jsonl",
                  where={"private": "mnist", **OWN}),
            _more("sanitized_gan", ", balanced accuracy", "chest_xray_64", 10.0, "`few`, 2,420 images, per patient",
                  results="sanitized_gan.jsonl", where={"private": "chest_xray_64", "preset": "few"},
                  value="balanced_accuracy"),
            _more("dpaf", "", "celeba_32", 10.0, "default, 10,000 images", results="dpaf.jsonl",
                  where={"data": "celeba_32", "samples": 10_000, **OWN}, times=100),
            _more("latent", "", "celeba_32", 10.0, "default, half of them public; 2,500 images", results="latent.jsonl",
                  where={"part": "gender", "generator": "eigen", "settings": {}}),
        ],
    ),
}  # fmt: skip
