"""The thesis' chapter 3: Tables 3.1 and 3.2, its figures' noises, and the choices around them.

What whole runs over sites reach and send is measured by benchmarks/federated.py.
"""

from collections.abc import Mapping

from papers.cells import Cell, Paper

XRAY = "chest_xray_64"
_XRAYS = (
    "4,447 X-rays of 64 px and a patient as the unit against 24,000 even ones; ours is balanced accuracy, because "
    "saying the larger class has a plain one of 74; a convnet student."
)


def _cell(
    table: str, name: str, private: str, epsilon: float | None, settings: Mapping[str, str], paper: float | None = None,
    *, method: str = "sanitized_gan", minutes: float = 6.0, preset: str = "default", as_published: bool = False,
    seeds: tuple[int, ...] = (0,),
) -> Cell:  # fmt: skip
    budget = "as published" if as_published else f"eps {epsilon:g}"
    return Cell(
        table=table,
        name=f"{private} {budget} {name}",
        method=method,
        private=private,
        epsilon=epsilon,
        preset=preset,
        settings=settings,
        as_published=as_published,
        samples=10_000 if private == "mnist" else 6000,
        students=("convnet", "lenet", "mlp"),
        metric="balanced_accuracy" if private == XRAY else "accuracy",
        paper=paper,
        differs=_XRAYS if private == XRAY else "",
        minutes=minutes,
        seeds=seeds,
    )


def _table() -> list[Cell]:
    """Table 3.1: the thesis' method, and a GAN with a DP-SGD critic beside it."""
    rows = (("mnist", "default", 76.0, 60.0), (XRAY, "few", 76.25, 58.0))
    found = []
    for private, preset, own, gan in rows:
        for epsilon in (1.0, 10.0):
            found.append(_cell("T3.1", "ours", private, epsilon, {}, own, preset=preset, seeds=(0, 1, 2)))
            found.append(
                _cell("T3.1", "with a classifier", private, epsilon, {"teacher_share": "0.3"}, own, preset=preset)
            )
            found.append(_cell("T3.1", "dpgan", private, epsilon, {}, gan, method="dpgan"))
            found.append(
                _cell("T3.1", "dpgan without a classifier", private, epsilon, {}, gan, method="dpgan", preset="plain")
            )
    for private, paper in (("mnist", 97.0), (XRAY, 74.78)):
        found.append(
            Cell(
                table="T3.1", name=f"{private} real images, no guarantee", method="sanitized_gan", private=private,
                epsilon=None, measure="papers.networks:real", students=("convnet", "lenet", "mlp"),
                metric="balanced_accuracy" if private == XRAY else "accuracy", recipe={"epochs": 8}, paper=paper,
                holds="none claimed", differs=_XRAYS if private == XRAY else "", minutes=12.0,
            )
        )  # fmt: skip
    return found


def _bytes() -> list[Cell]:
    """Table 3.2: what a site sends for one step of the generator."""
    ways: dict[str, tuple[str, dict[str, str], float]] = {
        "FedAvg on a GAN": ("weights", {}, 3.94e7),
        "sanitized gradient, at the pixels": ("answer", {"critic": "image"}, 1.95e5),
        "sanitized gradient, at codes": ("answer", {}, 1.95e5),
    }
    return [
        Cell(
            table="T3.2",
            name=f"{private} {name}",
            method="sanitized_gan",
            private=private,
            epsilon=10.0,
            settings=settings,
            measure="papers.travel:measure",
            options={"what": what},
            paper=paper,
            holds="no",
            differs="Bytes by shapes; the thesis' own networks and numbers of images are not given.",
            minutes=0.5,
        )
        for private in ("mnist", XRAY)
        for name, (what, settings, paper) in ways.items()
    ]


def _published() -> list[Cell]:
    """The thesis' own loop at its two noises, a tenth of its steps; Figures 3.2 to 3.4."""
    numbers = {("mnist", "1.02"): 76.0, ("mnist", "0.07"): 78.2, (XRAY, "1.02"): 76.25, (XRAY, "0.07"): 76.17}
    return [
        _cell(
            "noise", f"noise {noise}", private, None, {"published_noise": noise, "steps": "200"}, paper,
            as_published=True, minutes=15.0,
        )
        for (private, noise), paper in numbers.items()
    ]  # fmt: skip


def _small() -> list[Cell]:
    """The preset `paper`, sound and as published, at the size of a trial."""
    return [
        Cell(
            table="preset",
            name=f"mnist, 3,000 digits, {'as published' if published else 'eps 10'}",
            method="sanitized_gan",
            private="mnist",
            units=3000,
            epsilon=None if published else 10.0,
            preset="paper",
            as_published=published,
            settings={"steps": "20", "most_critics": "10", "warmup": "10", "width": "64"},
            samples=1000,
            recipe={"epochs": 4},
            paper=None,
            differs="3,000 digits, 20 steps, at most 10 critics and 1,000 images: the size of a trial.",
            minutes=3.0,
        )
        for published in (False, True)
    ]


def _choices() -> list[Cell]:
    """Where noise goes (Figure 3.1), what the generator is fed, turns of the critics, and their warm-up."""
    found = [_cell("latent", name, "mnist", 10.0, {"latent": name}) for name in ("gaussian", "bernoulli")]
    found += [_cell("warmup", f"{count} updates", "mnist", 10.0, {"warmup": count}) for count in ("0", "50", "200")]
    turns = {"scheme": "in_turn", "points": "10"}
    found += [
        _cell("turns", f"{count} critics in turn", "mnist", 10.0, {**turns, "critics": count, "steps": count})
        for count in ("100", "1000")
    ]
    image = {"critic": "image", "generator": "dcgan", "critics": "50", "steps": "50"}
    found.append(_cell("place", "noise at the pixels", "mnist", 10.0, image, minutes=15.0))
    found.append(_cell("place", "noise at codes", "mnist", 10.0, {}))
    found.append(_cell("place", "noise on the critic", "mnist", 10.0, {}, method="dpgan", preset="plain"))
    return found


PAPER = Paper(
    title="Sanitized WGAN (thesis, chapter 3)",
    holds="no",
    differs="All 60,000 digits, critics of shards that answer about codes, 10,000 images, a convnet student.",
    tables={
        "T3.1": "students of generated images",
        "T3.2": "bytes that a site sends for one step of the generator",
        "noise": "as published, at the thesis' two noises; no guarantee",
        "preset": "the preset paper, sound and as published",
        "place": "Figure 3.1: where the noise goes",
        "latent": "numbers that feed the generator",
        "turns": "critics in turn",
        "warmup": "critics that learnt before the first answer",
    },
    cells=[*_table(), *_bytes(), *_published(), *_choices(), *_small()],
)
