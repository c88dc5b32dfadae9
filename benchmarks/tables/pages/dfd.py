"""docs/methods/dfd.md and docs/methods/pate.md."""

from tables.cells import Cell, Joined, Table
from tables.names import NAMES, SMALL, scored

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
PLANNED = (0.5, 1.0, 2.0, 10.0)
DEFAULT = {"benchmark": "dfd", "preset": "default", "settings": {}, "samples": 20_000}


def _theorem(claimed: float) -> list[str | Cell]:
    where = {"benchmark": "theorem", "claimed": claimed}

    def cell(value: str, digits: int = 0) -> Cell:
        return Cell(results="dfd.jsonl", where=where, value=value, digits=digits)

    return [
        f"{claimed:g}",
        cell("norm_bound", 3),
        cell("iterations"),
        cell("epsilon_noise_on_rows"),
        cell("epsilon_noise_on_sum"),
        cell("iterations_at_claimed_rows"),
    ]


def _fast(benchmark: str, settings: dict[str, str], epsilon: float) -> Cell:
    where = {"benchmark": benchmark, "data": "mnist", "epsilon": epsilon, "preset": "fast", "settings": settings}
    return Cell(**scored("dfd.jsonl", **where), value="student", times=100)


def _default(data: str, epsilon: float) -> list[str | Cell]:
    kept = scored("dfd.jsonl", data=data, epsilon=epsilon, **DEFAULT)
    return [
        NAMES[data],
        f"{epsilon:g}",
        Cell(**kept, value="student", times=100),
        Cell(**kept, value="new_student", times=100),
        Cell(**kept, value="cpu_seconds", digits=0, show="range"),
    ]


def _plan(method: str, epsilon: float, fact: str) -> Cell:
    where = {"benchmark": "plan", "method": method, "epsilon": epsilon}
    return Cell(results="dfd.jsonl", where=where, value=f"facts.{fact}", digits=0)


def _votes(epsilon: float, value: str, digits: int, times: float = 1) -> Cell:
    return Cell(
        results="dfd.jsonl", where={"benchmark": "votes", "epsilon": epsilon}, value=value, digits=digits, times=times
    )


def _rounds(epsilon: float) -> Joined:
    return Joined(
        parts=(
            _plan("dfd", epsilon, "iterations that this budget buys"),
            " x ",
            _plan("dfd", epsilon, "synthetic images of an iteration"),
        )
    )


TABLES = {
    "dfd-theorem": Table(
        heads=(
            "claimed epsilon", "C", "T", "exact, noise on each row (many teachers)",
            "exact, noise on the sum (Eq. 4, one teacher)", "T that the claim really buys, noise on each row",
        ),
        rows=[_theorem(1.0), _theorem(10.0)],
    ),
    "dfd": Table(
        heads=("data", "epsilon", "student, %", "new student, %", "processor seconds"),
        rows=[_default(data, epsilon) for data, epsilon in SMALL],
    ),
    "dfd-fast": Table(
        heads=("MNIST, `fast`: student, %", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)),
        rows=[
            ("A, one DP-SGD teacher", *(_fast("dfd", {}, epsilon) for epsilon in EPSILONS)),
            ("B, gradients of 250 teachers", *(_fast("dfd", {"variant": "B"}, epsilon) for epsilon in EPSILONS)),
            ("pate, votes of 250 teachers", *(_fast("pate", {}, epsilon) for epsilon in EPSILONS)),
        ],
    ),
    "dfd-plans": Table(
        heads=("epsilon", *(f"{epsilon:g}" for epsilon in PLANNED)),
        rows=[
            ("B: iterations x queries of each", *(_rounds(epsilon) for epsilon in PLANNED)),
            ("[pate](pate.md): votes", *(_plan("pate", epsilon, "answered queries") for epsilon in PLANNED)),
        ],
    ),
    "pate-votes": Table(
        heads=("epsilon of the plan", *(f"{epsilon:g}" for epsilon in EPSILONS)),
        rows=[
            ("votes", *(_votes(epsilon, "votes", 0) for epsilon in EPSILONS)),
            ("cost for any data", *(_votes(epsilon, "epsilon_any_data", 2) for epsilon in EPSILONS)),
            ("cost for these data, internal", *(_votes(epsilon, "epsilon_this_data", 2) for epsilon in EPSILONS)),
            ("noisy winner is right, %", *(_votes(epsilon, "right", 1, 100) for epsilon in EPSILONS)),
        ],
    ),
}  # fmt: skip
