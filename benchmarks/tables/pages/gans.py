"""docs/methods/dpgan.md, docs/methods/dpaf.md, docs/methods/sanitized_gan.md."""

from tables.cells import Cell, Joined, Table
from tables.names import NAMES, SMALL, compared, published, scored

OWN = {"preset": "default", "settings": {}, "samples": 10_000}
CELEBA = ("celeba_32", 10.0)


def _gan(method: str, data: str, epsilon: float) -> Joined | Cell:
    """Seed 0 is of the comparison, the others are of the benchmark of its own."""
    others = Cell(**scored(f"{method}.jsonl", data=data, epsilon=epsilon, **OWN), times=100)
    if data not in ("mnist", "fashion_mnist"):
        return others
    first = compared(method, data, epsilon)
    return Joined(parts=(first, "; ", others)) if others.found() else first


def _seconds(method: str, data: str, epsilon: float) -> Cell:
    if data in ("mnist", "fashion_mnist"):
        return compared(method, data, epsilon, "cpu_seconds")
    return Cell(**scored(f"{method}.jsonl", data=data, epsilon=epsilon, **OWN), value="cpu_seconds", digits=0)


def _thesis(said: str, noise: str, steps: str, what: str) -> list[str | Cell]:
    cost = Cell(results="sanitized_gan.jsonl", where={"what": what}, value="epsilon", digits=0)
    return [said, noise, "32", steps, "10", cost]


def _sanitized(said: str, paper: str, **where: object) -> list[str | Cell]:
    kept = scored("sanitized_gan.jsonl", epsilon=10.0, **where)
    return [
        said,
        "10",
        Cell(**kept),
        Cell(**kept, value="balanced_accuracy"),
        paper,
        Cell(**kept, value="cpu_seconds", digits=0, show="range"),
    ]


TABLES = {
    "dpgan": Table(
        heads=("private data", "epsilon", "seed 0; others, %", "DP-GAN in DPImageBench, on GPUs", "processor seconds"),
        rows=[
            (
                NAMES[data],
                f"{epsilon:g}",
                _gan("dpgan", data, epsilon),
                published(data, epsilon, "DPImageBench README", "DP-GAN").removeprefix("DP-GAN "),
                _seconds("dpgan", data, epsilon),
            )
            for data, epsilon in (*SMALL, CELEBA)
        ],
    ),
    "dpaf": Table(
        heads=("private data", "epsilon", "`dpaf`", "`dpgan`", "processor seconds, `dpaf`", "`dpgan`"),
        rows=[
            (
                NAMES[data],
                f"{epsilon:g}",
                _gan("dpaf", data, epsilon),
                _gan("dpgan", data, epsilon),
                _seconds("dpaf", data, epsilon),
                _seconds("dpgan", data, epsilon),
            )
            for data, epsilon in (*SMALL, CELEBA)
        ],
    ),
    "sanitized-gan": Table(
        heads=("private", "epsilon", "student, %", "balanced, %", "thesis, no valid epsilon", "processor seconds"),
        rows=[
            _sanitized("MNIST", "76 to 78.2", private="mnist", preset="default", settings={}),
            _sanitized(
                "MNIST, `scheme=in_turn`, 10 critics, 10 points",
                "-",
                private="mnist",
                settings={"scheme": "in_turn", "critics": "10", "steps": "100", "points": "10"},
            ),
            _sanitized("chest X-ray 64 px, per patient, `few`", "76.2 to 76.3", private="chest_xray_64", preset="few"),
        ],
    ),
    "sanitized-gan-compared": Table(
        heads=("", *(f"{NAMES[data]}, epsilon {epsilon:g}" for data, epsilon in SMALL)),
        rows=[
            ("default", *(compared("sanitized_gan", *case) for case in SMALL)),
            ("`labelled`", *(compared("sanitized_gan, labelled", *case) for case in SMALL)),
        ],
    ),
    "sanitized-gan-costs": Table(
        heads=("", "noise multiplier", "batch", "steps", "claimed", "epsilon"),
        rows=[
            _thesis("thesis, one critic on all records", "1.02", "2,000", "thesis, noise 1.02"),
            _thesis("thesis, one critic on all records", "0.07", "2,000", "thesis, noise 0.07"),
            _thesis("GS-WGAN, 1,000 critics, each drawn 20 times on average", "1.07", "20,000", "GS-WGAN on MNIST"),
        ],
    ),
}
