"""docs/methods/latent.md and docs/notes/latent.md."""

from typing import Any

from tables.cells import Cell, Joined, Table

RESULTS = "latent.jsonl"
QUANTILES = (0.5, 0.75, 0.9, 0.99)
EIGEN: dict[str, Any] = {"part": "shift", "generator": "eigen", "settings": {}, "to": None}
STYLE: dict[str, Any] = {"part": "shift", "generator": "style", "settings": {}, "to": None}


def _set(said: str, of: dict[str, Any], name: str, fid: str | None = None) -> list[str | Cell]:
    where = {**of, "set": name}
    blond = Cell(results=RESULTS, where=where, value="blond", times=100, digits=0)
    halves = Cell(results=RESULTS, where={**of, "set": fid}, value="fid") if fid else None
    return [said, halves or Cell(results=RESULTS, where=where, value="fid"), blond]


def _clip(search: str, value: str, digits: int) -> Joined:
    where = {"part": "clip", "generator_steps": 3600, "search": search}
    cells = [
        Cell(results=RESULTS, where={**where, "quantile": quantile}, value=value, digits=digits)
        for quantile in QUANTILES
    ]
    parts: list[Cell | str] = []
    for cell in cells:
        parts += [" / ", cell] if parts else [cell]
    return Joined(parts=tuple(parts))


def _repair(epsilon: float) -> list[str | Cell]:
    where = {"part": "repairs", "generator_steps": 3600, "epsilon": epsilon}
    return [
        f"{epsilon:g}",
        *(
            Cell(results=RESULTS, where=where, value=f"errors.{name}", digits=2)
            for name in ("replace", "linear", "spiked")
        ),
    ]


def _gender(said: str, generator: str) -> list[str | Cell]:
    where = {"part": "gender", "generator": generator, "settings": {}, "scored_on": "test", "epsilon": 10.0}
    return [
        said,
        Cell(results=RESULTS, where=where),
        Cell(results=RESULTS, where=where, value="balanced_accuracy"),
        Cell(results=RESULTS, where=where, value="men_among_labels", times=100, digits=0),
    ]


HEADS = ("", "FID to the private blond", "called blond, %")
FIT = "fit without noise (private, not released)"
OWN = {**EIGEN, "settings": {"draws": "own"}}

TABLES = {
    "latent-shift": Table(
        heads=HEADS,
        rows=[
            _set("the eigen generator alone", EIGEN, "generator"),
            _set("public images", EIGEN, "public images"),
            _set("fit with hardly any noise (not released)", EIGEN, FIT),
            _set("**DP fit, epsilon 11**", EIGEN, "DP fit, epsilon 11"),
            _set("**DP fit, epsilon 1**", EIGEN, "DP fit, epsilon 1"),
            _set("DP fit with `draws=own`, epsilon 11", OWN, "DP fit, epsilon 11"),
            _set("DP fit with `draws=own`, epsilon 1", OWN, "DP fit, epsilon 1"),
            _set(
                "the real ones (FID: one half against the other, 400 a side)", EIGEN, "the real ones",
                "one half of the real ones against the other",
            ),
        ],
    ),
    "latent-style": Table(
        heads=HEADS,
        rows=[
            _set("the style generator alone", STYLE, "generator"),
            _set("reconstructions by `ff` (not released)", STYLE, "reconstructions (private, not released)"),
            _set("fit with hardly any noise (not released)", STYLE, FIT),
            _set("DP fit, epsilon 11", STYLE, "DP fit, epsilon 11"),
            _set("DP fit, epsilon 1", STYLE, "DP fit, epsilon 1"),
        ],
    ),
    "latent-gender": Table(
        heads=("generator", "student, %", "balanced, %", "men among the labels, %"),
        rows=[_gender("eigen", "eigen"), _gender("style", "style")],
    ),
    "latent-clip": Table(
        heads=("search", "clip norm at .5 / .75 / .9 / .99", "error of the mean", "error of the covariance"),
        rows=[
            (said, _clip(name, "clip_norm", 1), _clip(name, "mean_error", 3), _clip(name, "covariance_error", 2))
            for said, name in (
                ("`ff`", "ff"), ("descent, penalty .1 (`opt_b`)", "opt_b"), ("descent, no penalty (`opt`)", "opt"),
            )
        ],
    ),
    "latent-repairs": Table(
        heads=("epsilon", "`replace` (the paper's)", "`linear`", "`spiked`"), rows=[_repair(1.0), _repair(11.0)]
    ),
}  # fmt: skip
