"""Private Evolution from end to end: a student that saw nothing but the release, on real test images, with controls.

    scripts/bench evolve --table
    scripts/bench evolve [--data mnist] [--public fashion_mnist] [--epsilon 1] [--seed 0] [--validate] [--set KEY=VALUE]

Beside the release's student stand three of the same recipe. Two have as many public images (drawn patterns, where there
are none): with random labels, and with the label of the released image that is nearest in the feature space. The third
tells what voting is worth: the same generator, variations and classifier, with random candidates that nobody voted on.
With --validate the method sees five sixths of the training images, students are scored on the rest and the test set is
not read. --table prints the lines on test sets so far. At most 12,000 public images are used, without those that are
private, too.
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from releases import DATA, DELTA, PICTURES, REPOSITORY, Line, load, measure_all, options  # isort: skip
import torch

from veilset.core.randomness import numpy_generator
from veilset.core.records import Images, Labels
from veilset.data.images import ImageSet
from veilset.data.npz import read_npz
from veilset.data.overlap import find_overlap
from veilset.data.tensors import as_floats
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility
from veilset.methods import METHODS
from veilset.methods.base import Context
from veilset.methods.evolve.features import feature_space, features_of
from veilset.methods.evolve.pool import pool_pictures
from veilset.methods.evolve.sampling import FittedEvolve
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.training.settings import TrainingConfig

PUBLIC = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
PHOTOS = "tinyimagenet_32"
MOST_PUBLIC = 12_000
RESULTS = REPOSITORY / "benchmarks" / "results" / "evolve.jsonl"


def public_images(name: str, private: ImageSet) -> ImageSet | None:
    """Some images of a pack in the private shape, or None where no pack is named."""
    if name == "none":
        return None
    records = read_npz(DATA / f"{name}.npz", "train")
    rows = np.sort(numpy_generator(0, "public part").permutation(len(records))[:MOST_PUBLIC])
    records = records.subset(rows)
    if tuple(records.shape) != tuple(private.shape):
        records = records.with_channels(private.shape[2]).resize(private.shape[0])
    return records.subset(np.flatnonzero(~find_overlap(private, records)))


def nearest_labels(images: Images, released: Images, labels: Labels) -> Labels:
    """For each image the label of the released image nearest to it."""
    pictures, made = (as_floats(torch.from_numpy(part)) for part in (images, released))
    features = feature_space("wavelets", pictures, seed=0, device="cpu")
    rows, targets = features_of(features, pictures, "cpu"), features_of(features, made, "cpu")
    found = torch.cat([(part @ targets.T).argmax(dim=1) for part in torch.split(rows, 500)])
    return np.asarray(labels[found.numpy()])


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release, its student and the controls."""
    private, scored_on = load(name, asked.validate)
    public_name = asked.public or PUBLIC.get(name, PHOTOS)
    public = public_images(public_name, private)
    settings = dict(pair.split("=", 1) for pair in asked.set)
    budget, vault = Budget(epsilon, DELTA), Vault(private)
    plan = METHODS.get("evolve").configure(asked.preset, settings).plan(vault.facts, budget)
    clock, processor = time.perf_counter(), time.process_time()
    with TemporaryDirectory() as folder:
        checked = None if public is None else vault.check_public(public)
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "benchmark"})
        session = Session(vault, plan, ledger, NoiseSource(), workspace=None)
        fitted = METHODS.get("evolve").fit(plan, session, checked, Context(seed=seed))
        session.finish()
        ledger.close()
    assert isinstance(fitted, FittedEvolve)
    release = fitted.sample(asked.samples, seed)
    spent = {"seconds": round(time.perf_counter() - clock), "cpu_seconds": round(time.process_time() - processor)}
    if name in PICTURES and public_name not in (PHOTOS,) and seed == 0 and not asked.validate:
        picture = f"evolve-{PICTURES[name]}-from-{public_name.replace('_', '-')}-eps{epsilon:g}.png"
        write_grid(REPOSITORY / "docs" / "images" / picture, release.images, release.labels)
    classes = vault.facts.classes

    def score(images: Images, labels: Labels, soft: "np.ndarray | None" = None) -> float:
        result = evaluate_utility(
            images, labels, soft, classes, scored_on,
            seeds=1, first_seed=seed, config=TrainingConfig(epochs=asked.student_epochs or "auto"),
        )  # fmt: skip
        return round(100 * result.accuracy, 2)

    accuracy = score(release.images, release.labels, release.soft_labels)
    controls = {}
    if asked.controls:
        shown = pool_pictures(public, private.shape, min(asked.samples, MOST_PUBLIC), seed).numpy()
        random = numpy_generator(seed, "control").integers(0, classes, len(shown))
        controls["public images, random labels"] = score(shown, random)
        controls["public images, label of the nearest released image"] = score(
            shown, nearest_labels(shown, release.images, release.labels)
        )
        unvoted = fitted.unvoted(seed).sample(asked.samples, seed)
        controls["random candidates, same classifier"] = score(unvoted.images, unvoted.labels, unvoted.soft_labels)
    return {
        "benchmark": "evolve",
        "data": name,
        "public": public_name,
        "accuracy": accuracy,
        "controls": controls,
        "scored_on": "a sixth of train" if asked.validate else "test",
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "preset": asked.preset,
        "settings": settings,
        "decided": plan.certified(),
        "units": vault.facts.units,
        "samples": len(release.images),
        "student": "convnet",
        "student_epochs": asked.student_epochs or "the recipe's",
        "warnings": [text for text in fitted.warnings() if "votes" in text],
        **spent,
    }


def table() -> str:
    """The lines on test sets as a table."""
    controls = (
        "public images, random labels",
        "public images, label of the nearest released image",
        "random candidates, same classifier",
    )
    heads = ("private", "public", "epsilon", "settings", "seed", "images", "student of the release", *controls)
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for line in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines()):
        settings = ", ".join(f"{key}={value}" for key, value in line["settings"].items()) or "default"
        cells = [line["data"], line["public"], f"{line['epsilon']:g}", settings, line["seed"], line["samples"]]
        scores = [line["accuracy"], *(line["controls"].get(name) for name in controls)]
        cells += ["not measured" if score is None else f"{score:.1f}" for score in scores]
        if line["scored_on"] == "test":
            rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = options(__doc__)
    parser.add_argument("--public", help="a pack of public images, or none for drawn patterns")
    parser.add_argument("--student-epochs", type=int, help="fewer than the recipe's, where a machine is busy")
    parser.add_argument("--controls", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--table", action="store_true", help="print the table of all lines so far and run nothing")
    asked = parser.parse_args()
    if asked.table:
        print(table())
        return
    measure_all(measure, asked, RESULTS)


if __name__ == "__main__":
    main()
