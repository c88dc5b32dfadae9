"""DPDFD: Table 1's digits and clothes, Table 5's losses, Figure 2's bound and Table 7's many teachers."""

from collections.abc import Mapping

from papers.cells import Cell, Paper

_OF_PAPER = ("student_weight", "one_hot_weight", "balance_weight", "activation_weight")


def _cell(
    table: str, name: str, private: str, epsilon: float, settings: Mapping[str, str], paper: float | None = None,
    *, preset: str = "paper", minutes: float = 8.0, units: int | None = None,
) -> Cell:  # fmt: skip
    return Cell(
        table=table,
        name=f"{private} eps {epsilon:g} {name}",
        method="dfd",
        private=private,
        epsilon=epsilon,
        units=units,
        preset=preset,
        settings=settings,
        samples=10_000,
        paper=paper,
        minutes=minutes,
    )


def _main() -> list[Cell]:
    """Table 1: the paper's form with a DP-SGD convnet, and our default."""
    numbers = {
        ("mnist", 1.0): 95.12, ("mnist", 10.0): 97.51, ("fashion_mnist", 1.0): 83.86, ("fashion_mnist", 10.0): 89.88,
    }  # fmt: skip
    found = []
    for (private, epsilon), paper in numbers.items():
        found.append(_cell("T1", "the paper's form", private, epsilon, {}, paper, minutes=12.0))
        found.append(_cell("T1", "ours", private, epsilon, {}, paper, preset="default"))
    return found


def _losses() -> list[Cell]:
    """Table 5: the generator's loss without one of its terms; and without L_S, which the paper does not try."""
    numbers = {
        "mnist": {"all": 97.51, "one_hot_weight": 96.91, "balance_weight": 54.63, "activation_weight": 94.96},
        "fashion_mnist": {"all": 89.88, "one_hot_weight": 76.49, "balance_weight": 54.63, "activation_weight": 88.06},
    }
    return [
        _cell("T5", f"without {left_out}" if left_out != "all" else "all terms", private, 10.0,
              {"steps": "500"} | ({left_out: "0"} if left_out != "all" else {}), rows.get(left_out))
        for private, rows in numbers.items()
        for left_out in ("all", *_OF_PAPER)
    ]  # fmt: skip


def _bounds() -> list[Cell]:
    """Figure 2: the output gradient clipped or normalised to C; in A nothing is noised, so C only scales the step."""
    return [
        _cell("F2", f"{bounding} C {bound}", "mnist", 1.0,
              {"bounding": bounding, "output_bound": bound, "steps": "500"})
        for bounding in ("clip", "normalise")
        for bound in ("0.01", "0.1", "1")
    ]  # fmt: skip


def _many() -> list[Cell]:
    """Table 7: many teachers, whose joint gradients or votes are summed with noise."""
    numbers = {("mnist", 1.0): 93.21, ("mnist", 10.0): 95.56}
    return [
        _cell("T7", vote, private, epsilon, {"variant": "B", "vote": vote}, paper, preset="default")
        for (private, epsilon), paper in numbers.items()
        for vote in ("gradient", "signs")
    ]


def _clipping() -> list[Cell]:
    """What holds of Algorithm 3: a teacher whose gradients are clipped, or normalised."""
    return [
        _cell("A3", clipping, "mnist", 1.0, {"teacher_clipping": clipping}, None, preset="default")
        for clipping in ("flat", "automatic")
    ]


PAPER = Paper(
    title="Model conversion via differentially private data-free distillation (DPDFD)",
    holds="no",
    differs="All training images; a DP-SGD convnet instead of ResNet-34 without noise; the noise is in the teacher.",
    tables={
        "T1": "students of generated images",
        "T5": "terms of the generator's loss",
        "F2": "Figure 2: output gradients clipped or normalised",
        "T7": "many teachers on shards",
        "A3": "a teacher with clipped or normalised gradients",
    },
    cells=[*_main(), *_losses(), *_bounds(), *_many(), *_clipping()],
)
