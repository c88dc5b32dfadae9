"""DP-ImgSyn: Tables 1 to 4, 6, 8 to 11, 13, Figure 4, and the settings around them.

Public sets that are not at hand have stand-ins: TinyImageNet for Places365 and LSUN, 1,000 photographs as a second
set. "k = 10" moves every image by ten steps and changes nothing else, so that it differs from "k = 0" by alignment
alone; "paper" is the paper's statistic and last iterate; "ours" is the default.
"""

from collections.abc import Mapping

from papers.cells import Cell, Paper

TINY = "tinyimagenet_32"
STILL = {"iterations": "0", "variation": "none", "pool": "1", "copies": "1"}
MOVED = {"iterations": "10", "aligned_share": "1", "variation": "none", "pool": "1", "copies": "1"}
PAPERS_OWN = {**MOVED, "statistics": "channel", "by_class": "false", "keep": "last", "learning_rate": "0.1"}
PAPERS_OWN |= {"class_weight": "1", "variation_weight": "2.5e-5", "batch": "80"}
FORMS: Mapping[str, Mapping[str, str]] = {
    "k = 0": STILL,
    "k = 10": MOVED,
    "k auto": {**MOVED, "stop": "auto"},
    "ours": {},
}
GENDER, HAIR = "celeba_32:gender", "celeba_32:hair"
# Private, public, epsilon, the paper's (0) and (k); None where the paper has another public set.
_PAIRS = (
    ("mnist", TINY, 1.0, 85.83, 85.98), ("mnist", "fashion_mnist", 1.0, 85.56, 86.24),
    ("mnist", TINY, 10.0, 92.97, 94.03), ("mnist", "fashion_mnist", 10.0, 93.61, 93.90),
    ("fashion_mnist", TINY, 1.0, 74.99, 74.93), ("fashion_mnist", "mnist", 1.0, 51.58, 68.38),
    ("fashion_mnist", TINY, 10.0, 79.04, 78.71), ("fashion_mnist", "mnist", 10.0, 54.78, 71.51),
    (GENDER, TINY, 1.0, 90.06, 89.03), (GENDER, TINY, 10.0, 91.22, 89.27),
    (HAIR, TINY, 1.0, 79.91, 79.50), (HAIR, TINY, 10.0, 81.33, 78.73),
)  # fmt: skip
# The same with 1,000 photographs as the paper's other public set: Places365, or LSUN for faces.
_PHOTOGRAPHS = (
    ("mnist", 1.0, 85.00, 86.01), ("mnist", 10.0, 92.63, 93.74),
    ("fashion_mnist", 1.0, 75.08, 74.94), ("fashion_mnist", 10.0, 78.73, 78.80),
    (GENDER, 1.0, 89.91, 89.17), (GENDER, 10.0, 90.99, 89.90), (HAIR, 1.0, 79.89, 79.42), (HAIR, 10.0, 81.31, 79.28),
)  # fmt: skip
# Teachers and the compared methods, at epsilon 1 and 10.
_TEACHERS = {
    "mnist": (86.87, 96.30), "fashion_mnist": (76.27, 81.88), GENDER: (91.02, 92.35), HAIR: (79.95, 81.74),
}  # fmt: skip
_MERF = {
    "mnist": (63.67, 67.38), "fashion_mnist": (58.62, 61.62), HAIR: (44.13, 52.25), GENDER: (59.36, 60.82),
}  # fmt: skip
_DPGAN = {
    "mnist": (40.36, 80.11), "fashion_mnist": (10.53, 60.98), HAIR: (34.47, 39.20), GENDER: (53.30, 52.11),
}  # fmt: skip
_FACES = (
    "8,000 faces (hair: those of one colour) at 32 px against 162,770 at 64 px, and TinyImageNet for the paper's "
    "Places365; 5,000 images, a scattering or pretrained head as teacher, a convnet student."
)


def _cell(table: str, name: str, private: str, public: str | None, epsilon: float, **more: object) -> Cell:
    fields: dict[str, object] = {"samples": 5000, "minutes": 4.0, "differs": _FACES if "celeba" in private else ""}
    source = "nothing" if public is None else public
    return Cell(
        table=table,
        name=f"{private} from {source} eps {epsilon:g} {name}",
        method="imgsyn",
        private=private,
        public=public,
        epsilon=epsilon,
        **{**fields, **more},  # type: ignore[arg-type]
    )


def _pairs() -> list[Cell]:
    """Table 2."""
    photographs = [(private, "photos_224", epsilon, still, moved) for private, epsilon, still, moved in _PHOTOGRAPHS]
    return [
        _cell("T2", name, private, public, epsilon, settings=form, paper=still if name == "k = 0" else moved)
        for private, public, epsilon, still, moved in (*_PAIRS, *photographs)
        for name, form in FORMS.items()
        if name != "k auto" or public != "photos_224"
    ]


def _alone() -> list[Cell]:
    """Table 1 itself: teachers without a release around them, which have the whole budget."""
    kinds: dict[str, tuple[dict[str, str], float]] = {"head": ({"kind": "head"}, 3.0)}
    network = {"kind": "network", "network": "convnet", "bands": "1"}
    found = []
    for private, papers in _TEACHERS.items():
        forms = kinds | {"convnet": (network, 6.0)}
        if private == "mnist":
            forms["resnet18@16"] = ({**network, "network": "resnet18@16"}, 40.0)
        for name, (options, minutes) in forms.items():
            found += [
                Cell(
                    table="teachers", name=f"{private} eps {epsilon:g} {name}", method="imgsyn", private=private,
                    epsilon=epsilon, measure="papers.networks:teacher", options=options, paper=paper, minutes=minutes,
                    holds="unchecked", differs=_FACES if "celeba" in private else "A smaller network, or a head.",
                )
                for epsilon, paper in zip((1.0, 10.0), papers, strict=True)
            ]  # fmt: skip
    return found


def _compared() -> list[Cell]:
    """Table 3: the methods it compares with that are here, scored by one student. DP-HP and PEARL are forms of merf."""
    forms: tuple[tuple[str, str, str, dict[str, str]], ...] = (
        ("merf", "default", "merf", {}),
        ("merf, the paper's form", "paper", "merf", {}),
        ("merf, Hermite features", "default", "merf", {"features": "pixels", "kernel": "hermite"}),
        ("merf, adversarial weights", "default", "merf", {"weighting": "adversarial"}),
        ("dpgan", "default", "dpgan", {}),
        ("dpgan, convolutional", "convolutional", "dpgan", {"steps": "200"}),
    )
    found = []
    for name, preset, method, settings in forms:
        for private, papers in (_MERF if method == "merf" else _DPGAN).items():
            for epsilon, paper in zip((1.0, 10.0), papers, strict=True):
                found.append(
                    Cell(
                        table="T3", name=f"{private} eps {epsilon:g} {name}", method=method, private=private,
                        epsilon=epsilon, preset=preset, settings=settings, samples=5000, minutes=6.0,
                        paper=None if "Hermite" in name or "adversarial" in name else paper,
                        holds="yes" if method == "merf" else "unchecked",
                        differs=_FACES if "celeba" in private else "",
                    )
                )  # fmt: skip
    return found


def _teachers() -> list[Cell]:
    """Table 2's shape with the paper's kind of teacher, a network by DP-SGD, and its moments, sound: T1, T5."""
    # The preset `paper` with a smaller network and larger batches, which two cores can train; noise by the budget.
    teacher = {"teacher_batch": "1024", "teacher_epochs": "4", "teacher_learning_rate": "auto"}
    rows = ((1.0, 85.83, 85.98), (10.0, 92.97, 94.03))
    found = []
    for epsilon, still, moved in rows:
        for network, minutes in (("convnet", 8.0), ("resnet18@16", 25.0)):
            for steps, paper in (("0", still), ("10", moved)):
                settings = {**teacher, "network": network, "iterations": steps}
                found.append(
                    _cell("T1", f"{network} k = {steps}", "mnist", TINY, epsilon, preset="paper", settings=settings,
                          paper=paper, minutes=minutes)
                )  # fmt: skip
    return found


def _preset() -> list[Cell]:
    """The preset `paper` at the size of a trial."""
    return [
        _cell(
            "preset", f"3,000 digits k = {steps}", "mnist", TINY, 10.0, units=3000, preset="paper", samples=1000,
            settings={"network": "convnet", "teacher_epochs": "8", "teacher_learning_rate": "0.1", "iterations": steps},
            recipe={"epochs": 4}, minutes=3.0,
            differs="3,000 digits, a convnet of 8 passes as teacher and 1,000 images: the size of a trial.",
        )
        for steps in ("0", "10")
    ]  # fmt: skip


def _students() -> list[Cell]:
    """Table 4: one release, five students. The paper's numbers are of VGG11, MobileNetV2, ShuffleNetV2, ResNet-18."""
    students = ("convnet", "resnet18@16", "vgg11", "mobilenetv2", "shufflenetv2")
    rows = (
        ("mnist", TINY, 1.0, 85.98), ("mnist", TINY, 10.0, 94.03),
        (GENDER, TINY, 1.0, 89.03), (GENDER, TINY, 10.0, 89.27),
    )  # fmt: skip
    return [
        _cell("T4", "five students", private, public, epsilon, students=students, recipe={"epochs": 3}, paper=paper,
              minutes=25.0)
        for private, public, epsilon, paper in rows
    ]  # fmt: skip


def _coefficients() -> list[Cell]:
    """Table 6: one weight at a time, from photographs and from noise."""
    rows = {
        "feature_weight": (("0.1", 93.99, 89.55), ("1", 94.56, 90.30), ("10", 94.03, 88.53)),
        "class_weight": (("0.01", 94.42, 90.99), ("10", 94.49, 90.81)),
        "variation_weight": (("0.01", 94.27, 89.63), ("10", 94.32, 89.81)),
        "square_weight": (("1e-4", 94.45, 90.93), ("0.01", 94.53, 89.87)),
    }
    return [
        _cell("T6", f"{weight} {value}", "mnist", public, 10.0, paper=paper,
              settings={**PAPERS_OWN, **start, weight: value})
        for weight, values in rows.items()
        for value, from_tiny, from_noise in values
        for public, start, paper in ((TINY, {}, from_tiny), (None, {"start": "noise"}, from_noise))
    ]  # fmt: skip


def _terms() -> list[Cell]:
    """Table 8: the terms of the loss."""
    off = {"feature_weight": "0"}, {"class_weight": "0"}, {"variation_weight": "0"}, {"square_weight": "0"}
    no_feature, no_class, no_tv, no_square = off
    rows: list[tuple[str, dict[str, str], tuple[float, ...]]] = [
        ("feature alone", {**no_class, **no_tv, **no_square}, (94.30, 94.02, 90.07)),
        ("feature, class", {**no_tv, **no_square}, (94.31, 94.19, 89.42)),
        ("feature, class, tv", no_square, (94.34, 93.94, 89.82)),
        ("all", {}, (94.03, 93.90, 88.53)),
        ("without feature", no_feature, (93.03, 91.70, 63.48)),
    ]
    starts: tuple[tuple[str | None, dict[str, str]], ...] = (
        (TINY, {}),
        ("fashion_mnist", {}),
        (None, {"start": "noise"}),
    )
    return [
        _cell("T8", name, "mnist", public, 10.0, settings={**PAPERS_OWN, **start, **terms}, paper=paper)
        for name, terms, papers in rows
        for (public, start), paper in zip(starts, papers, strict=True)
    ]


def _noise() -> list[Cell]:
    """Tables 9 and 11: from noise, and from noise behind a low-pass filter; students of any kind, and the teacher's."""
    both = ("convnet", "scatternet")
    found = [
        _cell("T9", name, "mnist", None, 10.0, settings={**form, "start": "noise"}, students=both, paper=paper)
        for name, form, paper in (("k = 0", STILL, 30.12), ("k = 10", MOVED, 90.55))
    ]
    for blur, paper in (("3", 91.62), ("7", 90.82), ("11", 91.10), ("15", 91.18)):
        settings = {**MOVED, "start": "filtered_noise", "blur": blur}
        found.append(_cell("T11", f"kernel {blur}", "mnist", None, 10.0, settings=settings, students=both, paper=paper))
    return found


def _small_budget() -> list[Cell]:
    """Table 10, with the other methods that we have."""
    rows = (("mnist", 77.37, 11.04, 62.61), ("fashion_mnist", 70.63, 10.21, 52.61))
    found = []
    for private, paper, gan, merf in rows:
        found.append(_cell("T10", "imgsyn", private, TINY, 0.2, paper=paper))
        for method, number in (("dpgan", gan), ("merf", merf)):
            found.append(
                Cell(
                    table="T10",
                    name=f"{private} eps 0.2 {method}",
                    method=method,
                    private=private,
                    epsilon=0.2,
                    samples=5000,
                    paper=number,
                    holds="yes" if method == "merf" else "unchecked",
                    minutes=4.0,
                )
            )
    return found


def _likeness() -> list[Cell]:
    """Table 13: FID, here by EfficientNet-Lite0 features, so that only cells of this table compare."""
    rows = (("imgsyn", TINY, 188.62), ("merf", None, 327.24), ("dpgan", None, 403.94), ("dpaf", None, None))
    return [
        Cell(
            table="T13",
            name=f"celeba_32:gender eps 10 {method}",
            method=method,
            private=GENDER,
            public=public,
            epsilon=10.0,
            samples=2000,
            measure="papers.similarity:measure",
            paper=paper,
            holds="yes" if method == "merf" else "no" if method == "imgsyn" else "unchecked",
            differs=(
                "8,000 faces at 32 px; features of EfficientNet-Lite0 and not of Inception, so the scales differ; in "
                "the paper the others have epsilon 10,000."
            ),
            minutes=6.0,
        )
        for method, public, paper in (*rows, ("latent", TINY, None))
    ]


def _steps() -> list[Cell]:
    """Figure 4: accuracy over k on CIFAR-10, at epsilon 10, and with a network that has next to no noise."""
    network = {"teacher": "network", "network": "convnet", "teacher_batch": "256", "teacher_epochs": "15"}
    network |= {"teacher_bands": "1", "teacher_learning_rate": "0.05"}
    found = [
        _cell("F4", f"k = {k}", "cifar10_15k", TINY, 10.0, samples=3000, minutes=6.0,
              settings={**PAPERS_OWN, "features": "wavelets", "iterations": str(k)})
        for k in (0, 1, 5, 10, 20, 50, 100)
    ]  # fmt: skip
    return found + [
        _cell("F4", f"a convnet, k = {k}", "cifar10_15k", TINY, 1e6, samples=3000, minutes=8.0,
              settings={**PAPERS_OWN, **network, "iterations": str(k)},
              differs="An epsilon of a million in the place of none; a convnet teacher in the place of a ResNet-34.")
        for k in (0, 1, 10, 20, 100)
    ]  # fmt: skip


def _others() -> list[Cell]:
    """Section 4.1's statistic against ours, the temperature of labels, the student's recipe, and CIFAR-10."""
    found = [
        _cell("statistic", name, private, TINY, epsilon, settings={**MOVED, **form})
        for private in ("mnist", "fashion_mnist")
        for epsilon in (1.0, 10.0)
        for name, form in (("moments", {"statistics": "channel", "by_class": "false"}), ("code by class", {}))
    ]
    for private in ("mnist", GENDER):
        found += [
            _cell("temperature", f"T {t}", private, TINY, 10.0, settings={"label_temperature": t})
            for t in ("1", "4", "10", "100")
        ]
    sgd = {"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4, "batch_size": 256, "schedule": "steps"}
    found += [
        _cell("recipe", name, "mnist", TINY, 10.0, settings=MOVED, recipe=recipe)
        for name, recipe in (("ours", {}), ("SGD, three falls", {**sgd, "augmentation": None}))
    ]
    found += [
        _cell("keep", f"{keep} iterate", "mnist", TINY, 10.0, settings={**PAPERS_OWN, "keep": keep})
        for keep in ("best", "last")
    ]
    found.append(_cell("S5.5", "convnet", "cifar10_15k", TINY, 10.0, samples=20_000, paper=45.66, minutes=15.0))
    wavelets = {"features": "wavelets"}
    found.append(_cell("S5.5", "a head on wavelets", "cifar10_15k", TINY, 10.0, settings=wavelets, paper=45.66))
    found += [
        _cell("S5.5", "224 pixels", "chest_xray_224", "photos_224", epsilon, samples=2000, metric="balanced_accuracy",
              recipe={"epochs": 8}, minutes=40.0, differs="X-rays and photographs for ImageNette and Textures.")
        for epsilon in (1.0, 10.0)
    ]  # fmt: skip
    return found


PAPER = Paper(
    title="DP-ImgSyn: dataset alignment for obfuscated, differentially private image synthesis",
    holds="no",
    differs="5,000 images against as many as there are private ones, a head on wavelets as teacher, a convnet student.",
    tables={
        "teachers": "Table 1: teachers by themselves",
        "T1": "the paper's kind of teacher: a network by DP-SGD, its images with and without alignment",
        "preset": "the preset paper, small",
        "T2": "pairs of private and public sets, without and with alignment",
        "T3": "compared methods, scored by the same student",
        "T4": "students",
        "T6": "coefficients",
        "T8": "terms of the loss",
        "T9": "starting from noise",
        "T10": "epsilon .2",
        "T11": "low-pass filter",
        "T13": "FID to held-out images; smaller is nearer",
        "F4": "steps of alignment",
        "S5.5": "CIFAR-10, and images of 224 pixels",
        "statistic": "the paper's moments against ours",
        "temperature": "of the labels",
        "recipe": "of the student",
        "keep": "which iterate is released",
    },
    cells=[
        *_alone(), *_compared(), *_teachers(), *_preset(), *_pairs(), *_students(), *_coefficients(), *_terms(),
        *_noise(), *_small_budget(), *_likeness(), *_steps(), *_others(),
    ],
)  # fmt: skip
