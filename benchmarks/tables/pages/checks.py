"""Explanations (how_we_know, attacks, engine, architecture), docs/how_to/training.md and docs/methods/evolve.md."""

from collections.abc import Callable
from typing import Any

from tables.cells import Cell, Joined, Table, lines_of
from tables.names import NAMES
from versions import Line

AUDIT, ATTACKS, ENGINE = "audit.jsonl", "attacks.jsonl", "engine.jsonl"


def _audit(parts: list[str], name: str, claim: float, *, share: bool) -> list[str | Cell]:
    def near(value: str) -> Callable[[Line], float | None]:
        return lambda line: line[value] if round(line["claimed_epsilon"], 2) == round(claim, 2) else None

    where: dict[str, Any] = {"part": parts, "name": name}
    runs = Cell(results=AUDIT, where=where, value=near("runs"), digits=0, show="range")
    bound = Cell(results=AUDIT, where=where, value=near("lower_bound"), digits=2)
    more: list[str | Cell] = []
    if share:
        more = [Cell(results=AUDIT, where=where, value=near("lower_bound_by_rates"), digits=2)]
    return [name, f"{claim:.2f}", runs, bound, *more]


def _names(parts: list[str]) -> list[str]:
    return list(dict.fromkeys(str(line["name"]) for line in lines_of(AUDIT) if line["part"] in parts))


def _claim(name: str) -> float:
    return float([line for line in lines_of(AUDIT) if line["name"] == name][-1]["claimed_epsilon"])


def _twin(paper: str, accounts: str, does: str, name: str) -> list[str | Cell]:
    return [paper, accounts, does, f"{_claim(name):.2f}", _audit(["sabotage"], name, _claim(name), share=False)[3]]


def _attack(name: str, value: str, end: int | None = None) -> Callable[[Line], float | None]:
    def found(line: Line) -> float | None:
        for attack in line["attacks"]:
            if attack["name"] == name:
                return float(attack["intervals"][value][end] if end is not None else attack[value])
        return None

    return found


def _attacked(name: str, where: dict[str, Any], value: str, times: float, digits: int) -> Joined | Cell:
    middle = Cell(results=ATTACKS, where=where, value=_attack(name, value), times=times, digits=digits)
    if not middle.found():
        return ""  # type: ignore[return-value]  # an attack that this target does not allow
    ends = [
        Cell(results=ATTACKS, where=where, value=_attack(name, value, end), times=times, digits=digits)
        for end in (0, 1)
    ]
    return Joined(parts=(middle, " (", ends[0], " to ", ends[1], ")"))


OVERFITTED = {"part": "overfitted", "settings.shadows": 8}
MERF, UNDEFENDED = {"part": "merf"}, {"part": "undefended"}
RATE = "tpr_at_fpr_0.01"
ATTACKED = [attack["name"] for line in lines_of(ATTACKS) if line["part"] == "merf" for attack in line["attacks"]]


def _engine(said: str, network: str) -> list[str | Cell | Joined]:
    exact, before = {"network": network}, {"network": network, "commit": ["7b22fd6", "fe2fc51"]}

    def cell(value: str, digits: int = 2, of: dict[str, Any] = exact) -> Cell:
        return Cell(results=ENGINE, where=of, value=value, digits=digits, by=("network",))

    peaks = (cell("peak_mb.plain", 0), ", ", cell("peak_mb.ours", 0), ", ", cell("peak_mb.opacus", 0))
    return [
        said, cell("over_plain.ours"), cell("over_plain.opacus"), cell("opacus_over_ours"), Joined(parts=peaks),
        cell("over_plain.ours", of=before),
    ]  # fmt: skip


def _walk(said: str, commit: str) -> list[str | Joined]:
    def three(part: str) -> Joined:
        cells = [
            Cell(results="walk.jsonl", where={"commit": commit}, value=f"{part}.{name}", digits=0)
            for name in ("hops", "up_calls", "re_entries")
        ]
        return Joined(parts=(cells[0], ", ", cells[1], ", ", cells[2]))

    return [said, three("synthesize"), three("step")]


def _evolve(line: Line) -> list[str | Cell]:
    where = {name: line[name] for name in ("data", "public", "epsilon", "settings", "seed", "samples")}
    settings = " ".join(f"{name}={value}" for name, value in line["settings"].items()) or "default"
    controls = (
        "public images, random labels",
        "public images, label of the nearest released image",
        "random candidates, same classifier",
    )
    return [
        str(NAMES.get(line["data"], line["data"])), str(NAMES.get(line["public"], line["public"])),
        f"{line['epsilon']:g}", settings,
        str(line["seed"]), f"{line['samples']:,}",
        Cell(results="evolve.jsonl", where=where, by=()),
        *(Cell(results="evolve.jsonl", where=where, value=f"controls.{name}", by=()) for name in controls),
    ]  # fmt: skip


STUDENTS = [
    ("CPU time of a step, contiguous over channels last: convnet 28x28, batch 128", "convnet"),
    ("the same: wrn 32x32x3, batch 32", "wrn"),
    ("the same: resnet18 32x32x3, batch 16", "resnet18"),
]
TRAINED = {"variant": "default", "data": "mnist"}

TABLES = {
    "audit-power": Table(
        heads=("mechanism", "claimed epsilon", "runs of each kind", "shown at least (95 %)", "by error rates alone"),
        rows=[
            _audit(["power"], name, claim, share=True)
            for name in ("gaussian_sum", "dpsgd_step")
            for claim in (1.0, 4.0)
        ],
    ),
    "audit-all": Table(
        heads=("audited", "claimed epsilon", "runs of each kind", "shown at least (95 %)"),
        rows=[
            _audit(["methods", "mechanisms", "recheck"], name, _claim(name), share=False)
            for name in _names(["methods", "recheck", "mechanisms"])
        ],
    ),
    "audit-sabotage": Table(
        heads=("broken twin", "claimed epsilon", "runs of each kind", "shown at least (95 %)"),
        rows=[_audit(["sabotage"], name, _claim(name), share=False) for name in _names(["sabotage"])],
    ),
    "audit-papers": Table(
        heads=("paper", "what it accounts", "what it does", "claim", "shown at least"),
        rows=[
            _twin("GS-WGAN", "B rows of one critic as B fresh draws", "one draw of a critic moves all B rows",
                  "the B factor dropped (GS-WGAN)"),
            _twin("the thesis' WGAN", "each step as a sample of B of n", "one critic sees every record at every step",
                  "one critic for all shards"),
            _twin("DPDFD", "noise of variance sigma^2", "noise of variance sigma^2 C^2 with C = 0.001",
                  "noise too small by C (DPDFD)"),
            _twin("DPAF", "conv1's sensitivity as that of one record",
                  "layers above it learn from all records without noise", "co-trained layers without noise (DPAF)"),
            _twin("DP-ImgSyn (its code)", "statistics within the teacher's epsilon", "statistics without noise",
                  "statistics without noise (DP-ImgSyn)"),
        ],
    ),
    "attacks-overfitted": Table(
        heads=("attack", "AUC (interval)", "accuracy, %", "TPR at 1 % FPR, % (interval)"),
        rows=[
            (
                f"`{name}`",
                _attacked(name, OVERFITTED, "auc", 1, 3),
                Cell(results=ATTACKS, where=OVERFITTED, value=_attack(name, "accuracy"), times=100),
                _attacked(name, OVERFITTED, RATE, 100, 1),
            )
            for name in ATTACKED
            if _attacked(name, OVERFITTED, "auc", 1, 3)
        ],
    ),
    "attacks-merf": Table(
        heads=(
            "attack", "epsilon 1: AUC (interval)", "TPR at 1 % FPR, %", "undefended: AUC (interval)",
            "TPR at 1 % FPR, %",
        ),
        rows=[
            (
                f"`{name}`",
                _attacked(name, MERF, "auc", 1, 3),
                Cell(results=ATTACKS, where=MERF, value=_attack(name, RATE), times=100),
                _attacked(name, UNDEFENDED, "auc", 1, 3),
                Cell(results=ATTACKS, where=UNDEFENDED, value=_attack(name, RATE), times=100),
            )
            for name in ATTACKED
        ],
    ),
    "engine": Table(
        heads=(
            "network", "ours, exact sums", "Opacus hooks", "Opacus over ours", "peak MB: plain, ours, Opacus",
            "ours before exact sums",
        ),
        rows=[
            _engine("small CNN (104 k weights), batch 256, 28x28", "small"),
            _engine("WRN-16-2, GroupNorm, batch 64, 32x32", "wrn"),
            _engine("ResNet-18, GroupNorm, batch 64, 32x32", "resnet18"),
        ],
    ),
    "students": Table(
        heads=("what", "measured"),
        rows=[
            (
                "`convnet` (104,426 parameters), default recipe, 10,000 real MNIST images, validation accuracy, %",
                Cell(results="students.jsonl", where=TRAINED, times=100),
            ),
            ("processor seconds of it", Cell(results="students.jsonl", where=TRAINED, value="cpu_seconds", digits=0)),
            *(
                (said, Cell(results="students.jsonl", where={"network": name}, value="contiguous_over_last", digits=2))
                for said, name in STUDENTS
            ),
        ],
    ),
    "evolve": Table(
        heads=(
            "private", "public", "epsilon", "settings", "seed", "images", "student of the release, %",
            "public images, random labels", "public images, label of the nearest released image",
            "random candidates that nobody voted on, same classifier",
        ),
        rows=[_evolve(line) for line in lines_of("evolve.jsonl") if line["scored_on"] == "test"],
    ),
    "walk": Table(
        heads=("", "synthesize: hops, calls upwards, files entered again", "one DP-SGD step"),
        rows=[_walk("version 0.2.0", "a7019a2"), _walk("now", str(lines_of("walk.jsonl")[-1]["commit"]))],
    ),
}  # fmt: skip
