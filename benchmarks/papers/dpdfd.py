"""DPDFD: Tables 1 to 7, Figures 2, 3 and 6, and the lines of Algorithm 1 that ours may differ in."""

from collections.abc import Mapping
from typing import Any

from papers.cells import Cell, Paper

GENDER, HAIR = "celeba_32:gender", "celeba_32:hair"
_FACES = "8,000 faces (hair: those of one colour) at 32 or 64 px against 162,770 at 64 px."
_OF_PAPER = ("student_weight", "one_hot_weight", "balance_weight", "activation_weight")


def _cell(
    table: str, name: str, private: str, epsilon: float, settings: Mapping[str, str], paper: float | None = None,
    *, preset: str = "paper", minutes: float = 8.0, units: int | None = None, **more: Any,
) -> Cell:  # fmt: skip
    more = {"students": ("released", "convnet"), **({"differs": _FACES} if "celeba" in private else {}), **more}
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
        **more,
    )


def _main() -> list[Cell]:
    """Table 1: the paper's form with a DP-SGD convnet, and our default."""
    numbers = {
        ("mnist", 1.0): 95.12, ("mnist", 10.0): 97.51, ("fashion_mnist", 1.0): 83.86, ("fashion_mnist", 10.0): 89.88,
        (GENDER, 1.0): 72.37, (GENDER, 10.0): 89.92, (HAIR, 1.0): 78.39, (HAIR, 10.0): 82.35,
    }  # fmt: skip
    found = []
    for (private, epsilon), paper in numbers.items():
        found.append(_cell("T1", "the paper's form", private, epsilon, {}, paper, minutes=12.0))
        found.append(_cell("T1", "ours", private, epsilon, {}, paper, preset="default"))
        bare = {"statistics_share": "0", "statistics_weight": "0", "warmup_steps": "0"}
        found.append(_cell("T1", "ours without class statistics", private, epsilon, bare, paper, preset="default"))
        if "celeba" in private:
            large = private.replace("32", "64")
            found.append(_cell("T1", "ours", large, epsilon, {}, paper, preset="default", minutes=20.0))
    return found


def _lines() -> list[Cell]:
    """Algorithm 1, lines 2 to 12: the paper's loss of the student and no bank, against ours."""
    return [
        _cell("lines", f"{loss}, bank {bank}", "mnist", 10.0,
              {"student_loss": loss, "bank": bank, "steps": "500"}, minutes=8.0)
        for loss in ("cross_entropy", "distance")
        for bank in ("0", "20000")
    ]  # fmt: skip


def _direct() -> list[Cell]:
    """Tables 2 and 4: networks by DP-SGD under rules of clipping, and what DGD is kin to, votes on made images.

    The rules stand for DPSGD (flat), GM-DP (a bound for each layer), TOPAGG (signs of the largest coordinates) and
    what holds of DPDFD's direct training (automatic). Learning rates were not tuned for any of them.
    """
    rules = {
        "flat": ((81.03, 89.32, 92.47), (66.23, 68.84, 71.59)),
        "signs": ((92.35, 93.82, 94.65), (85.18, 85.40, 85.62)),
        "per_layer": ((93.31, 94.38, 95.08), (85.97, 86.63, 87.05)),
        "automatic": ((93.77, 94.47, 97.62), (86.52, 87.08, 89.73)),
    }

    def direct(table: str, private: str, epsilon: float, name: str, options: dict[str, str], paper: float) -> Cell:
        way = "teacher" if "kind" in options else "clipped"
        return Cell(
            table=table,
            name=f"{private} eps {epsilon:g} {name}",
            method="engine" if way == "clipped" else "dfd",
            private=private,
            epsilon=epsilon,
            measure=f"papers.networks:{way}",
            options=options,
            paper=paper,
            holds="no" if "automatic" in name else "unchecked",
            differs="A convnet, or a head on features of EfficientNet-Lite0; 15,000 training images of CIFAR-10.",
            minutes=8.0,
        )

    found = []
    for rule, both in rules.items():
        options = {"rule": rule} | ({"keep": "1000"} if rule == "signs" else {})
        for private, epsilons, papers in (
            ("mnist", (0.5, 0.7, 1.0), both[0]),
            ("cifar10_15k", (2.0, 4.0, 8.0), both[1]),
        ):
            found += [
                direct("T4", private, epsilon, rule, options, paper)
                for epsilon, paper in zip(epsilons, papers, strict=True)
            ]
        if rule in ("flat", "automatic"):
            head = {"kind": "head", "features": "lite0", "clipping": rule}
            found += [
                direct("T4", "cifar10_15k", epsilon, f"{rule}, head on lite0", head, paper)
                for epsilon, paper in zip((2.0, 4.0, 8.0), both[1], strict=True)
            ]
    tanh = {"network": "convnet-tanh"}
    found += [
        direct("T2", "mnist", 2.0, "DPSGD", {}, 95.00),
        direct("T2", "mnist", 1.0, "TSADP", tanh, 79.91),
        direct("T2", "cifar10_15k", 7.5, "TSADP", tanh, 66.20),
    ]
    for private, epsilon, paper in (("mnist", 1.0, 73.60), ("cifar10_15k", 3.0, 73.65)):
        found.append(
            Cell(
                table="T2", name=f"{private} eps {epsilon:g} DGD: votes on made images", method="pate", private=private,
                epsilon=epsilon, samples=10_000, students=("released", "convnet"), paper=paper, holds="unchecked",
                minutes=8.0,
            )
        )  # fmt: skip
    for private, epsilon, paper in (("mnist", 1.0, 95.12), ("cifar10_15k", 2.0, 86.01)):
        found.append(_cell("T2", "DPDFD, ours", private, epsilon, {}, paper, preset="default"))
    return found


def _networks() -> list[Cell]:
    """Table 3's kinds of networks, on ten classes of 32 pixels: trained without noise, then converted."""
    slow = {"vgg11": 30.0, "mobilenetv2": 40.0, "shufflenetv2": 30.0, "vit-tiny": 50.0}
    minutes = {"convnet": 10.0, "resnet18@16": 15.0, "wrn": 30.0} | slow
    return [
        Cell(
            table="T3",
            name=f"cifar10_15k {network}",
            method="dfd",
            private="cifar10_15k",
            epsilon=None,
            preset="conversion",
            samples=5000,
            measure="papers.conversion:measure",
            options={"network": network, "epochs": "4" if network in slow else "8"},
            students=("student", "its teacher"),
            differs="15,000 images of CIFAR-10 for ImageNet; neither network nor student has an epsilon.",
            minutes=taken,
        )
        for network, taken in minutes.items()
    ]


def _trade() -> list[Cell]:
    """Figure 3: noise against questions. Here noise follows from the budget and the number of questions."""
    return [
        _cell("F3", f"{name} {value}", "mnist", 1.0, {"variant": "B", name: value}, preset="default")
        for name, values in (("signal", ("1", "2", "4", "8", "16")), ("rounds", ("1", "4", "16")))
        for value in values
    ]


def _medical() -> list[Cell]:
    """Table 6: X-rays, a patient as the unit, in two and in three classes."""
    papers = {("chest_xray_64:3", 1.0): 73.61, ("chest_xray_64:3", 10.0): 81.69}
    return [
        _cell("T6", name, private, epsilon, settings, papers.get((private, epsilon)), preset="default",
              metric="balanced_accuracy", minutes=12.0,
              differs="4,447 X-rays of children for COVIDx; a patient as the unit; balanced accuracy.")
        for private in ("chest_xray_64", "chest_xray_64:3")
        for epsilon in (1.0, 10.0)
        for name, settings in (("ours", {}), ("DataLens' votes", {"variant": "B", "vote": "signs"}))
    ]  # fmt: skip


def _inversion() -> list[Cell]:
    """Figures 6 and 7: images made from a student. Ours is a number: are they more like members than like others?"""
    return [
        Cell(
            table="F6",
            name=f"{private} {'undefended' if epsilon is None else f'eps {epsilon:g}'}",
            method="dfd",
            private=private,
            epsilon=epsilon,
            samples=2000,
            measure=f"papers.leaks:{'undefended' if epsilon is None else 'measure'}",
            options={"attack": "inversion"},
            recipe={"epochs": 4} if epsilon is None else {},
            differs="AUC of the attack; the paper shows pictures.",
            minutes=8.0,
        )
        for private, budget in (("mnist", 1.0), ("fashion_mnist", 1.0), (GENDER, 2.0))
        for epsilon in (budget, None)
    ]


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
        for bound in ("1e-4", "1e-3", "0.01", "0.1", "1")
    ]  # fmt: skip


def _many() -> list[Cell]:
    """Table 7: many teachers, whose joint gradients or votes are summed with noise."""
    numbers = {
        ("mnist", 1.0): 93.21, ("mnist", 10.0): 95.56, ("fashion_mnist", 1.0): 79.93, ("fashion_mnist", 10.0): 87.50,
        (GENDER, 1.0): 73.12, (GENDER, 10.0): 86.51, (HAIR, 1.0): 77.81, (HAIR, 10.0): 80.62,
    }  # fmt: skip
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
        "T2": "other ways to a network",
        "T3": "kinds of networks, converted; no epsilon",
        "T4": "rules of clipping",
        "T5": "terms of the generator's loss",
        "T6": "X-rays",
        "lines": "Algorithm 1: the student's loss, and a bank of images",
        "F2": "Figure 2: output gradients clipped or normalised",
        "F3": "Figure 3: noise and questions",
        "F6": "Figures 6 and 7: inversion of the student; AUC, where .5 is guessing",
        "T7": "many teachers on shards",
        "A3": "a teacher with clipped or normalised gradients",
    },
    cells=[
        *_main(), *_direct(), *_networks(), *_losses(), *_medical(), *_lines(), *_bounds(), *_trade(), *_inversion(),
        *_many(), *_clipping(),
    ],
)  # fmt: skip
