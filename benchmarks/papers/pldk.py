"""The thesis' chapter 4: the ablation of Table 4.5 and Figure 4.4 as utility, with a guarantee and as published.

What attacks find (Tables 4.1 to 4.4) is measured by benchmarks/leakage.py.
"""

from collections.abc import Mapping

from papers.cells import Cell, Paper

_TRAJECTORY = {"matching": "trajectory"}


def _cell(
    table: str, name: str, settings: Mapping[str, str], paper: float | None = None, *, epsilon: float = 10.0,
    preset: str = "default", as_published: bool = False, minutes: float = 10.0, epochs: int = 1000,
) -> Cell:  # fmt: skip
    budget = "as published" if as_published else f"eps {epsilon:g}"
    return Cell(
        table=table,
        name=f"mnist {budget} {name}",
        method="pldk",
        private="mnist",
        epsilon=epsilon,
        preset=preset,
        settings=settings,
        as_published=as_published,
        recipe={"epochs": epochs},
        paper=paper,
        minutes=minutes,
    )


def _ways() -> list[Cell]:
    """Table 4.5: what images are led by. The thesis compares on CIFAR-10 alone, so there is no number for digits."""
    ways = {
        "DM": {"matching": "distribution"},
        "DSA": {"matching": "gradient"},
        "KIP": {"matching": "kernel"},
        "MTT": _TRAJECTORY,
        "MTT without iterations": {**_TRAJECTORY, "iterations": "0"},
        "DM, then MTT": {**_TRAJECTORY, "start": "condensed"},
    }
    found = [_cell("T4.5", name, settings) for name, settings in ways.items()]
    published = {**_TRAJECTORY, "experts": "10", "iterations": "500"}
    found.append(_cell("T4.5", "MTT, ten experts", published, as_published=True, minutes=20.0))
    return found


def _sweeps() -> list[Cell]:
    """Figure 4.4: images of a class, with fewer passes where there are more."""
    passes = {"1": 1000, "10": 1000, "50": 200, "200": 60}
    paper = {"50": 97.3, "200": 97.7}
    return [
        _cell("F4.4", f"{count} a class", {"images_per_class": count}, paper.get(count), epochs=epochs)
        for count, epochs in passes.items()
    ]


PAPER = Paper(
    title="Distilled data and knowledge (thesis, chapter 4)",
    holds="none claimed",
    differs="All 60,000 digits; experts and teacher by DP-SGD unless as published; a convnet of width 16.",
    tables={
        "T4.5": "what images are led by",
        "F4.4": "images of a class",
    },
    cells=[*_ways(), *_sweeps()],
)
