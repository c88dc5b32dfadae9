"""docs/benchmarks/gains.md and docs/benchmarks/archives.md."""

from typing import Any

from tables.cells import Cell, Table

GAINS, ARCHIVES, SCALE = "gains.jsonl", "archives.jsonl", "scale.jsonl"
NO_SEED = ("versions",)  # the newest line is the one that counts


def _pair(where: dict[str, Any], digits: int) -> list[Cell]:
    return [Cell(results=GAINS, where=where, value=name, digits=digits, by=NO_SEED) for name in ("before", "after")]


def _filter(epsilon: float, runs: int) -> list[str | Cell]:
    where = {"benchmark": "account filter", "epsilon_in_advance": epsilon, "runs": runs}
    return [f"{runs} runs, {epsilon:g} if planned together", *_pair(where, 2)]


def _batch(units: int, epsilon: float) -> list[str | Cell]:
    where = {"benchmark": "teacher batch", "units": units, "epsilon": epsilon}
    return [f"{units:,} units, epsilon {epsilon:g}", *_pair(where, 2)]


def _method(method: str, words: str, epsilon: float | None = None) -> list[str | Cell]:
    where = {"benchmark": "method noise", "method": method} | ({} if epsilon is None else {"epsilon": epsilon})
    return [words + ("" if epsilon is None else f", epsilon {epsilon:g}"), *_pair(where, 2)]


def _correlated(batch: int, epsilon: float) -> list[str | Cell]:
    where = {"benchmark": "correlated noise", "batch": batch, "epsilon": epsilon}
    bands = Cell(results=GAINS, where=where, value="bands", digits=0, by=NO_SEED)
    return [f"batches of {batch:,}, epsilon {epsilon:g}", *_pair(where, 2), bands]


def _memory(records: int) -> list[str | Cell]:
    where = {"benchmark": "scale", "what": "private side", "records": records}
    return [f"{records:,}", _newest(where, "peak_mb", 0), _newest(where, "processor_seconds", 1)]


def _newest(where: dict[str, Any], value: str, digits: int) -> Cell:
    return Cell(results=SCALE, where=where, value=value, digits=digits, by=NO_SEED)


def _units(processes: int) -> list[str | Cell]:
    where = {"benchmark": "scale", "what": "units", "same_bytes": True, "repeated_unit_has_the_same_bytes": True}
    return [str(processes), _newest(where, "samples", 0), _newest(where, f"seconds.{processes}", 0)]


def _rare(epsilon: float, share: float, words: str) -> list[str | Cell]:
    where = {"what": "rare", "epsilon": epsilon, "count_share": share}
    names = ("teacher.recall", "student.recall", "student.accuracy")
    cells = [Cell(results=ARCHIVES, where=where, value=name, times=100, show="mean") for name in names]
    return [f"{epsilon:g}", words, *cells]


def _size(method: str) -> list[str | Cell]:
    where = {"what": "sizes", "method": method}
    asked = (("cpu_seconds", 1.0, 0), ("peak_mb", 1.0, 0), ("student.balanced_accuracy", 100.0, 1))
    cells = [
        Cell(results=ARCHIVES, where=where, value=name, times=times, digits=digits, show="mean")
        for name, times, digits in asked
    ]
    return [f"[`{method}`](../methods/{method}.md)", *cells]


def _findings(epsilon: float) -> list[str | Cell]:
    private, real = {"what": "findings", "epsilon": epsilon}, {"what": "findings", "epsilon": None}
    asked = ((private, "teacher"), (private, "student"), (private, "tuned"), (real, "student"), (real, "tuned"))
    cells = [Cell(results=ARCHIVES, where=where, value=f"{who}.auc", times=100, show="mean") for where, who in asked]
    return [f"{epsilon:g}", *cells]


TABLES = {
    "gains-filter": Table(
        heads=("Gaussian runs one after the other", "limit they needed before", "limit they need now"),
        rows=[_filter(epsilon, runs) for epsilon in (0.5, 1.0, 3.0, 10.0) for runs in (2, 16)],
    ),
    "gains-batch": Table(
        heads=("head teacher", "noise with batches of 8,192", "noise with the planned batch"),
        rows=[_batch(units, epsilon) for units in (60_000, 160_000, 1_000_000, 10_000_000) for epsilon in (1.0, 10.0)],
    ),
    "gains-methods": Table(
        heads=("release", "noise before", "noise now"),
        rows=[
            *(_method("dpgan", "dpgan: a linear critic's sums, once and not at every step", e) for e in (1.0, 10.0)),
            *(_method("pldk", "pldk: class means over all units and not over 4,096", e) for e in (1.0, 10.0)),
            _method("class statistics", "merf, dfd, pate: random features around their public mean"),
            _method("paid accuracy", "a paid accuracy: right less wrong and not two counts"),
            _method("dfd B", "dfd, variant B: signs as votes"),
        ],
    ),
    "gains-correlated": Table(
        heads=("DP-SGD on 60,000 units", "independent noise", "correlated noise", "bands"),
        rows=[_correlated(batch, epsilon) for batch in (1024, 4096, 256, 8192) for epsilon in (1.0, 10.0)],
    ),
    "scale-private": Table(
        heads=("private images", "peak memory, MB", "processor seconds"),
        rows=[_memory(records) for records in (50_000, 200_000, 1_000_000)],
    ),
    "scale-units": Table(
        heads=("processes", "released images", "seconds"), rows=[_units(processes) for processes in (1, 2, 4)]
    ),
    "archives-rare": Table(
        heads=("epsilon", "count of each class", "teacher's recall", "student's recall", "student's accuracy"),
        rows=[
            _rare(epsilon, share, words)
            for epsilon in (1.0, 10.0)
            for share, words in ((0.0, "not paid for"), (0.02, "paid for with a fiftieth"))
        ],
    ),
    "archives-sizes": Table(
        heads=("method", "processor seconds", "peak memory, MB", "`convnet` of it, balanced accuracy, %"),
        rows=[_size(method) for method in ("imgsyn", "latent", "dfd", "dpaf", "sanitized_gan", "pldk")],
    ),
    "archives-findings": Table(
        heads=(
            "epsilon",
            "teacher",
            "`convnet` of the release",
            "fine-tuned `lite0` of the release",
            "`convnet` of the real images",
            "fine-tuned `lite0` of the real images",
        ),
        rows=[_findings(epsilon) for epsilon in (1.0, 10.0)],
    ),
}
