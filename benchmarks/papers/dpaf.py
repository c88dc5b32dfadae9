"""DPAF (appendix): Tables 10 to 18, conv1, mu and what the generator sees, at 32 pixels; 64 where it says so.

Tables 1 to 9 are in the main paper and not here.
"""

from dataclasses import replace

from papers.cells import Cell, Paper

GENDER, HAIR = "celeba_32:gender", "celeba_32:hair"
LARGE = {GENDER: "celeba_64:gender", HAIR: "celeba_64:hair"}
SHORT = {GENDER: "gender", HAIR: "hair", "celeba_64:gender": "gender 64 px", "celeba_64:hair": "hair 64 px"}
# Half the default's aggregates: a cell takes about two minutes, and one table compares cells of one length.
QUICK = {"steps": "150", "batch": "1024"}
_NO_CONV3 = ("C1-C1-x", "C1-C2-x", "C2-C1-x", "C1-C3-x", "C2-C2-x", "C3-C1-x")
_CONV3 = ("C2-C2-C1", "C1-C3-C1", "C2-C1-C1", "C2-C1-C2", "C3-C1-C1")
_LAYOUTS = {
    (GENDER, 1.0): ((62.9, 73.7, 82.4, 66.1, 80.5, 81.1), (80.2, 44.8, 67.3, 50.5, 80.0)),
    (GENDER, 10.0): ((72.0, 73.3, 76.2, 72.9, 78.6, 75.1), (82.6, 72.7, 80.3, 51.4, 82.0)),
    (HAIR, 1.0): ((42.3, 47.5, 64.3, 66.2, 51.9, 62.3), (67.5, 35.6, 54.0, 35.4, 66.9)),
    (HAIR, 10.0): ((56.5, 64.4, 63.9, 65.7, 68.3, 65.9), (67.1, 36.8, 66.4, 35.2, 67.0)),
}
# What DPAF itself has in Tables 12 to 15, by data and epsilon.
_OWN = {
    (GENDER, 0.5): 76.8, (GENDER, 1.0): 80.2, (GENDER, 5.0): 78.9, (GENDER, 10.0): 82.6,
    (HAIR, 0.5): 66.3, (HAIR, 1.0): 67.5, (HAIR, 5.0): 68.0, (HAIR, 10.0): 67.1,
}  # fmt: skip


def _cell(table: str, name: str, private: str, epsilon: float, paper: float | None, **settings: str) -> Cell:
    """One run of the method at the quick size."""
    return Cell(
        table=table,
        name=f"{SHORT.get(private, private)} eps {epsilon:g} {name}",
        method="dpaf",
        private=private,
        epsilon=epsilon,
        settings={**QUICK, **settings},
        samples=5000,
        recipe={"epochs": 8},
        paper=paper,
        minutes=4.0,
    )


def _layouts() -> list[Cell]:
    """Tables 10 and 11, with and without the classifier that the paper does not have.

    Five layers leave nothing of 32 pixels, so Table 11 is of 64, as in the paper.
    """
    found = [
        _cell(table, f"{layout} teacher {share}", private, epsilon, paper, layout=layout, teacher_share=share)
        for (small, epsilon), both in _LAYOUTS.items()
        for table, layouts, numbers, private in (
            ("T10", _NO_CONV3, both[0], small),
            ("T11", _CONV3, both[1], LARGE[small]),
        )
        for layout, paper in zip(layouts, numbers, strict=True)
        for share in ("0", "0.3")
    ]
    return [replace(cell, minutes=12.0) if cell.table == "T11" else cell for cell in found]


def _pretraining() -> list[Cell]:
    """Table 12: on CIFAR-10 first."""
    rows = {
        (GENDER, 1.0): (80.2, 81.9, 82.0), (GENDER, 10.0): (82.6, 83.0, 83.1),
        (HAIR, 1.0): (67.5, 66.3, 69.5), (HAIR, 10.0): (67.1, 69.5, 70.3),
    }  # fmt: skip
    found = []
    for (private, epsilon), numbers in rows.items():
        for form, paper in zip(("nothing", "critic", "both"), numbers, strict=True):
            cell = _cell("T12", f"pretrained {form}", private, epsilon, paper, pretrained=form)
            found.append(replace(cell, public="cifar10_15k"))
    return found


def _compression() -> list[Cell]:
    """Table 13: the largest nine tenths of each gradient, all of it, or signs of the k largest."""
    rows = {
        (GENDER, 1.0): ((80.2, 72.5, 54.9), 200), (GENDER, 10.0): ((82.6, 81.8, 53.0), 3000),
        (HAIR, 1.0): ((67.5, 67.3, 35.9), 150), (HAIR, 10.0): ((67.1, 67.8, 37.5), 200),
    }  # fmt: skip
    found = []
    for (private, epsilon), (numbers, signs) in rows.items():
        forms: list[dict[str, str]] = [{"keep_fraction": "0.9"}, {}, {"keep_signs": str(signs)}]
        for name, form, paper in zip(("top 90 %", "whole", f"TOPAGG {signs}"), forms, numbers, strict=True):
            found.append(_cell("T13", name, private, epsilon, paper, **form))
    return found


def _activation() -> list[Cell]:
    """Table 14: tanh in the place of leaky ReLU."""
    rows = {(GENDER, 1.0): 80.2, (GENDER, 10.0): 80.6, (HAIR, 1.0): 59.4, (HAIR, 10.0): 62.0}
    return [_cell("T14", "tanh", private, eps, paper, tanh="true") for (private, eps), paper in rows.items()] + [
        _cell("T14", "leaky ReLU", private, eps, _OWN[private, eps]) for private, eps in rows
    ]


def _budgets() -> list[Cell]:
    """Table 15 at the default's size, with the classifier and without."""
    return [
        Cell(
            table="T15",
            name=f"{SHORT[private]} eps {epsilon:g} teacher {share}",
            method="dpaf",
            private=private,
            epsilon=epsilon,
            settings={"teacher_share": share},
            samples=10_000,
            paper=paper,
            minutes=8.0,
            seeds=(0, 1, 2),
        )
        for (private, epsilon), paper in _OWN.items()
        for share in ("0.3", "0")
    ]


def _others() -> list[Cell]:
    """Table 15's other methods, by the forms of them that are here."""
    papers = {
        ("NDPDC", GENDER): (51.8, 54.0, 53.5, 60.0), ("NDPDC", HAIR): (49.7, 49.8, 46.9, 46.2),
        ("PEARL", GENDER): (65.5, 63.4, 63.9, 64.6), ("PEARL", HAIR): (59.2, 60.6, 60.9, 62.6),
        ("Private-GANs", GENDER): (62.0, 66.3, 67.9, 71.4), ("Private-GANs", HAIR): (51.3, 47.4, 50.8, 54.0),
    }  # fmt: skip
    forms: dict[str, tuple[str, str, dict[str, str], int | None]] = {
        "NDPDC": ("pldk", "default", {"matching": "distribution", "images_per_class": "50"}, None),
        "PEARL": ("merf", "default", {"weighting": "adversarial"}, 5000),
        "Private-GANs": ("dpgan", "convolutional", {"steps": "200", "teacher_share": "0", "teacher_weight": "0"}, 5000),
    }
    return [
        Cell(
            table="T15",
            name=f"{SHORT[private]} eps {epsilon:g} {name}",
            method=forms[name][0],
            private=private,
            epsilon=epsilon,
            preset=forms[name][1],
            settings=forms[name][2],
            samples=forms[name][3],
            recipe={"epochs": 200 if name == "NDPDC" else 8},
            paper=paper,
            holds="unchecked",
            minutes=6.0,
        )
        for (name, private), numbers in papers.items()
        for epsilon, paper in zip((0.5, 1.0, 5.0, 10.0), numbers, strict=True)
    ]


def _leaks() -> list[Cell]:
    """Table 18: GAN-Leaks on very few records, next to no noise against our form, whose plan would be refused."""
    few = {"batch": "64", "steps": "64", "width": "16", "teacher_share": "0", "least_signal": "0"}
    papers = {64: (1.0, 0.466, 0.469, 0.473, 0.479), 128: (1.0, 0.502, 0.499, 0.499, 0.5)}
    return [
        Cell(
            table="T18",
            name=f"{units} faces, {'as published, next to no noise' if epsilon is None else f'eps {epsilon:g}'}",
            method="dpaf",
            private=GENDER,
            units=units,
            epsilon=epsilon,
            settings={**few, "steps": "400", "published_noise": "1e-6"} if epsilon is None else few,
            as_published=epsilon is None,
            samples=1000,
            recipe={"epochs": 4},
            measure="papers.leaks:measure",
            options={"attack": "gan-leaks"},
            paper=paper,
            differs="About so many faces at 32 px, and half of them attacked: the interval is wide.",
            minutes=4.0,
            seeds=(0, 1, 2),
        )
        for units, numbers in papers.items()
        for epsilon, paper in zip((None, 10.0, 5.0, 1.0, 0.5), numbers, strict=True)
    ]


def _turns() -> list[Cell]:
    """Tables 16 and 17: critic turns for each generator step, and aggregates for each step of conv2*."""
    numbers = {
        ("T16", GENDER, 1.0, 1): (50.7, 66.6, 49.1), ("T16", GENDER, 1.0, 8): (56.7, 72.5, 57.3),
        ("T16", GENDER, 10.0, 1): (50.3, 66.6, 55.2), ("T16", GENDER, 10.0, 8): (78.9, 69.0, 55.6),
        ("T17", HAIR, 10.0, 1): (37.9, 52.3, 35.1), ("T17", HAIR, 10.0, 8): (55.6, 51.3, 35.7),
    }  # fmt: skip
    found = [
        _cell(table, f"mu {mu} n_critic {turns}", private, epsilon, paper, mu=str(mu), n_critic=str(turns))
        for (table, private, epsilon, mu), papers in numbers.items()
        for turns, paper in zip((1, 10, 50), papers, strict=True)
    ]
    gans = {
        ("T16", GENDER, 1.0): (57.0, 54.1, 62.9), ("T16", GENDER, 10.0): (60.7, 67.3, 67.7),
        ("T17", HAIR, 10.0): (54.0, 49.1, 46.6),
    }  # fmt: skip
    for (table, private, epsilon), papers in gans.items():
        for turns, paper in zip((1, 10, 50), papers, strict=True):
            fixed = {"critic_steps": str(turns), "most_critic_steps": str(turns), "steps": "200", "teacher_share": "0"}
            found.append(
                Cell(
                    table=table,
                    name=f"{SHORT[private]} eps {epsilon:g} Private-GANs n_critic {turns}",
                    method="dpgan",
                    private=private,
                    epsilon=epsilon,
                    preset="convolutional",
                    settings={**fixed, "teacher_weight": "0"},
                    samples=5000,
                    recipe={"epochs": 8},
                    paper=paper,
                    holds="unchecked",
                    minutes=6.0,
                )
            )
    return found


def _forms() -> list[Cell]:
    """conv1 (lines 3 to 6), mu (lines 8 to 16), and what the generator sees (lines 18 to 20)."""
    found = []
    for private in ("mnist", GENDER):
        for epsilon in (1.0, 10.0):
            forms = ("wavelets", "frozen", "classifier")
            found += [_cell("conv1", form, private, epsilon, None, conv1=form) for form in forms]
            cell = _cell("conv1", "public", private, epsilon, None, conv1="public")
            found.append(replace(cell, public="fashion_mnist" if private == "mnist" else "cifar10_15k"))
        found += [_cell("mu", f"mu {mu}", private, 10.0, None, mu=mu) for mu in ("1", "2", "4", "8", "16")]
        found += [
            _cell("generator", f"{network} sees {seen}", private, 10.0, None, generator=network, generator_sees=seen)
            for network in ("modulated", "dcgan")
            for seen in ("aggregate", "samples")
        ]
    return found


def _whole() -> list[Cell]:
    """The preset `paper` in its sound form, and Algorithm 1 as it is published, without any guarantee.

    Small ones, which show that every part runs, and those of the other tables' size.
    """
    small = [
        Cell(
            table="preset",
            name=f"mnist, 3,000 digits, {'as published' if published else 'eps 10'}",
            method="dpaf",
            private="mnist",
            units=3000,
            epsilon=None if published else 10.0,
            preset="paper",
            as_published=published,
            settings={"steps": "40", "conv1_steps": "30", "batch": "128", "conv1_batch": "256", "memory": "20"},
            samples=1000,
            recipe={"epochs": 4},
            differs="3,000 digits, 40 aggregates of 128 and 1,000 images: the size of a trial.",
            minutes=3.0,
        )
        for published in (False, True)
    ]
    return small + [
        Cell(
            table="preset",
            name=f"{SHORT.get(private, private)} {'as published' if published else 'eps 10'}",
            method="dpaf",
            private=private,
            epsilon=None if published else 10.0,
            preset="paper",
            as_published=published,
            settings={"steps": "150", "batch": "256"},
            samples=5000,
            recipe={"epochs": 8},
            paper=paper,
            minutes=15.0,
        )
        for private, paper in (("mnist", None), (GENDER, 82.6))
        for published in (False, True)
    ]


PAPER = Paper(
    title="DPAF: image synthesis via differentially private aggregation in forward phase (appendix)",
    holds="no",
    differs=(
        "8,000 faces (hair: those of one colour) at 32 px, or 64 where a row says so, against 162,770 at 64 px, our "
        "aggregates by class, a convnet student on 5,000 or 10,000 images."
    ),
    tables={
        "T10": "layers of conv1 and conv2*, no conv3*",
        "T11": "with conv3*",
        "T12": "pre-training on CIFAR-10",
        "T13": "compression of gradients",
        "T14": "tempered sigmoid",
        "T15": "budgets",
        "T16": "critic turns, gender",
        "T17": "critic turns, hair",
        "T18": "GAN-Leaks on few records: AUC, where .5 is guessing",
        "conv1": "Algorithm 1, lines 3 to 6: how conv1 is trained",
        "mu": "lines 8 to 16: aggregates for each step of conv2*",
        "generator": "lines 18 to 20: the generator, and how the critic sees its images",
        "preset": "the preset paper, sound and as published",
    },
    cells=[
        *_layouts(), *_pretraining(), *_compression(), *_activation(), *_budgets(), *_others(), *_turns(), *_leaks(),
        *_forms(), *_whole(),
    ],
)  # fmt: skip
