"""README: what networks of any kind learn from a release."""

from typing import Any

from tables.cells import Cell, Joined, Table
from tables.names import NAMES
from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts

IMGSYN, MERF = "imgsyn.jsonl", "merf.jsonl"
TINY = "tinyimagenet_32"
TWO = [1.0, None]  # label temperatures of two classes; those were 1 before lines named them


def _three(where: dict[str, Any], epsilon: float, results: str = IMGSYN) -> Cell:
    """The mean over seeds of the mean of three networks that were trained from scratch."""
    kept = {"scored_on": "test", "settings": {}, "epsilon": epsilon, **where}
    return Cell(results=results, where=kept, value="mean_from_scratch", show="mean")


def _one(where: dict[str, Any], epsilon: float, value: str, results: str, times: float) -> Cell:
    kept = {"scored_on": "test", "settings": {}, "epsilon": epsilon, **where}
    return Cell(results=results, where=kept, value=value, show="mean", times=times)


def _row(
    name: str,
    method: str,
    where: dict[str, Any],
    before: dict[str, Any],
    value: str,
    *,
    results: str = IMGSYN,
    times: float = 1,
) -> list[str | Joined]:
    """`where` finds the lines with three networks, `before` those with a `convnet`."""
    three = [_three(where, epsilon, results) for epsilon in (1.0, 10.0)]
    alone = [_one(before, epsilon, value, results, times) for epsilon in (1.0, 10.0)]
    pairs = [Joined(parts=(first, "/", second)) for first, second in (three, alone)]
    return [name, f"[`{method}`](docs/methods/{method}.md)", *pairs]


def _imgsyn(
    private: str,
    publics: list[str],
    temperature: list[float | None],
    name: str = "",
    smaller: str | None = None,
    settings: dict[str, str] | None = None,
) -> list[str | Joined]:
    where = {"private": private, "public": publics, "label_temperature": temperature, "settings": settings or {}}
    balanced = private.startswith("chest")
    value = f"students.convnet.{'balanced_accuracy' if balanced else 'accuracy'}"
    sizes = 12_000 if balanced else [20_000, 60_000] if private.startswith("cifar") else 60_000
    before = {**where, "samples": sizes, "private": smaller or private}
    return _row(name or NAMES[private], "imgsyn", where, before, value)


def _merf(data: str) -> list[str | Joined]:
    where = {"data": data, "preset": "default"}
    return _row(f"{NAMES[data]}, images alike", "merf", where, where, "accuracy", results=MERF, times=100)


def _lookalike(data: str, method: str, name: str) -> list[str | Joined]:
    where = {"data": data, "method": method}
    return _row(name, method, where, where, "students.convnet", results="lookalikes.jsonl")


def _minutes(method: str) -> Cell:
    """Processor minutes of a release: of 10,000 digits, of `evolve` 5,000, of `latent` 2,500 faces."""
    own: dict[str, dict[str, Any]] = {
        "evolve": {"data": "mnist", "settings": {}},
        "latent": {"part": "gender", "generator": "eigen"},
    }
    file = f"{method}.jsonl" if method in own else "mnist_fashion/results.jsonl"
    where = own.get(method, {"name": method, "dataset": "mnist"})
    return Cell(results=file, where=where, value="cpu_seconds", times=1 / 60, digits=0, show="range", by=("epsilon",))


def _sizes(method: str) -> str:
    """The largest of these sizes that the method takes, by asking it."""
    taken = [side for side in (32, 64, 128, 224) if _takes(method, side)]
    return f"to {max(taken)} px" if max(taken) < 224 else "any"


def _takes(method: str, side: int) -> bool:
    facts = PublicFacts(units=5000, unit="record", shape=(side, side, 1), class_names=("no", "yes"))
    try:
        METHODS.get(method).configure().plan(facts, Budget(1.0, 1e-5))
    except InputError:
        return False
    return True


def _which(method: str, for_whom: str, public: str, alike: str) -> list[str | Cell]:
    return [for_whom, f"[`{method}`](docs/methods/{method}.md)", public, alike, _minutes(method), _sizes(method)]


TABLES = {
    "which": Table(
        heads=("what you want", "method", "public images", "look alike", "minutes", "size"),
        rows=[
            _which("imgsyn", "strong students, images of something else", "best with", "no"),
            _which("merf", "small images like yours", "no", "yes"),
            _which("dfd", "strong students without public images", "no", "partly"),
            _which("latent", "images in colour like yours, above all faces", "or a generator", "yes"),
            _which("evolve", "no network trained on private images", "or a generator", "as they do"),
            _which("pldk", "a hundred images and a student", "helps", "no"),
        ],
    ),
    "readme": Table(
        heads=(
            "private data", "method", "three networks, epsilon 1/10", "`convnet` alone, epsilon 1/10",
        ),
        rows=[
            _imgsyn("mnist", ["fashion_mnist"], [4.0]),
            _merf("mnist"),
            _imgsyn("fashion_mnist", [TINY], [4.0]),
            _imgsyn(
                "fashion_mnist", [TINY], [4.0], "Fashion-MNIST, images alike (`start=merf`)", settings={"start": "merf"}
            ),
            _imgsyn("cifar10_15k", [TINY, "tinyimagenet_64"], [4.0, None], "CIFAR-10, 15,000 images"),
            _imgsyn("celeba_64", [TINY, "tinyimagenet_64"], TWO, "CelebA gender (`convnet`: 32 px)", "celeba_32"),
            _lookalike("celeba_64", "latent", "CelebA gender, images alike"),
            _imgsyn("chest_xray_64", [TINY], TWO, "chest X-rays, per patient, balanced"),
        ],
    ),
}  # fmt: skip
