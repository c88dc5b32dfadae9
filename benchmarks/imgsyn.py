"""DP-ImgSyn from end to end: a release, its verification, and what students of data.npz alone reach on the test set.

    scripts/bench imgsyn [--suite main any table2 table4 noise photos large] [--only chest] [--seeds 0 1 2]
    scripts/bench imgsyn --suite any --only cifar --controls convnet --releases DIR
    scripts/bench imgsyn --suite table4 --student-epochs 3 --student-rate 0.001
    scripts/bench imgsyn --table

Each run is a process of its own and appends one JSON line to benchmarks/results/imgsyn.jsonl, with the paper's figure
beside ours where it has one (its epsilon does not hold for the aligned images; docs/methods/imgsyn.md). Data comes from
$VEILSET_DATA, else ../shared/data. The privacy noise comes from the operating system, so two runs of one seed differ by
it. --controls adds, for the students named, what the same network learns without what the release is praised for: noise
that the teacher labelled, shuffled labels, the public images as they are under the teacher's labels, the release with
iterations=0 where images are aligned, and the real images. Settings were chosen with --validate, where the method sees
five sixths of the training images (or patients), students are scored on the rest, the test set is not read, and lines
go to benchmarks/results/imgsyn_trials.jsonl.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip
from machine import machine  # isort: skip
from versions import versions_of  # isort: skip

from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.data.npz import read_npz
from veilset.data.opening import open_images
from veilset.data.overlap import find_overlap
from veilset.data.selection import kept, key_of
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.controls import control_scores
from veilset.evaluate.utility.reference_scores import Run, ceiling_score, public_score, students
from veilset.evaluate.utility.students import classify, evaluate_utility
from veilset.pipeline.evaluate import FROM_SCRATCH
from veilset.pipeline.job import Job, draw_plan
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import Release, load_release
from veilset.release.students import student_recipe
from veilset.release.verify import verify_release
from veilset.training.settings import CHANGES, TrainingConfig

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VEILSET_DATA") or ROOT.parent / "shared" / "data")
RESULTS = Path(__file__).parent / "results" / "imgsyn.jsonl"
TRIALS = RESULTS.with_name("imgsyn_trials.jsonl")
DELTA, TIME_LIMIT = 1e-5, 3 * 3600  # five deep students take hours
GROUPS = {"chest_xray_64": "patients", "chest_xray_224": "patient"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a table: what is private, what is public, and what the paper or the goal says."""

    private: str
    public: str | None
    epsilon: float
    settings: Mapping[str, str] = field(default_factory=dict)
    students: tuple[str, ...] = ("convnet", "scatternet")
    target: float | None = None
    paper: float | None = None
    metric: str = "accuracy"
    size: int | None = None
    pictured: bool = False  # in the README; the public set's licence has to allow it


def _table2() -> list[Case]:
    rows = [
        ("mnist", "tinyimagenet_32", 1.0, 85.83, 85.98),
        ("mnist", "fashion_mnist", 1.0, 85.56, 86.24),
        ("mnist", "tinyimagenet_32", 10.0, 92.97, 94.03),
        ("mnist", "fashion_mnist", 10.0, 93.61, 93.90),
        ("fashion_mnist", "tinyimagenet_32", 1.0, 74.99, 74.93),
        ("fashion_mnist", "mnist", 1.0, 51.58, 68.38),
        ("fashion_mnist", "tinyimagenet_32", 10.0, 79.04, 78.71),
        ("fashion_mnist", "mnist", 10.0, 54.78, 71.51),
    ]
    plain = {"iterations": "0", "variation": "none", "pool": "1"}
    moved = {"iterations": "10", "aligned_share": "1", "variation": "none", "pool": "1", "copies": "1"}
    return [
        Case(private=private, public=public, epsilon=epsilon, settings=settings, paper=paper)
        for private, public, epsilon, none, aligned in rows
        for settings, paper in ((plain, none), (moved, aligned), ({}, aligned))
    ]


NOISE = {"start": "filtered_noise", "aligned_share": "1"}
SUITES: dict[str, list[Case]] = {
    "main": [
        Case(private="mnist", public="fashion_mnist", epsilon=1.0, target=96.5, paper=86.24, pictured=True),
        Case(private="mnist", public="fashion_mnist", epsilon=10.0, target=97.5, paper=93.90),
        Case(private="chest_xray_64", public="tinyimagenet_32", epsilon=1.0, target=89.0, metric="balanced_accuracy"),
        Case(private="chest_xray_64", public="tinyimagenet_32", epsilon=10.0, target=91.0, metric="balanced_accuracy"),
        Case(private="fashion_mnist", public="tinyimagenet_32", epsilon=1.0, target=84.0, paper=74.99),
        Case(private="fashion_mnist", public="tinyimagenet_32", epsilon=10.0, target=86.0, paper=79.04),
        Case(private="fashion_mnist", public="mnist", epsilon=1.0, target=75.0, paper=68.38),
        Case(private="mnist", public=None, epsilon=10.0, settings=NOISE, target=92.0, paper=91.62),
        Case(private="celeba_32", public="tinyimagenet_32", epsilon=1.0, target=82.0),
        Case(private="celeba_32", public="tinyimagenet_32", epsilon=10.0, target=86.0),
        Case(private="cifar10_15k", public="tinyimagenet_32", epsilon=10.0, target=50.0, paper=45.7),
        Case(private="mnist", public="fashion_mnist", epsilon=1.0, settings={"start": "merf"}, target=97.5),
        Case(private="mnist", public="fashion_mnist", epsilon=10.0, settings={"start": "merf"}, target=98.5),
        Case(private="fashion_mnist", public="tinyimagenet_32", epsilon=1.0, settings={"start": "merf"}, target=84.0),
        Case(private="fashion_mnist", public="tinyimagenet_32", epsilon=10.0, settings={"start": "merf"}, target=86.0),
    ],
    "table2": _table2(),
    "table4": [
        Case(
            private="mnist",
            public="fashion_mnist",
            epsilon=10.0,
            students=("convnet", "resnet18", "vgg11", "mobilenetv2", "shufflenetv2"),
        )
    ],
    "noise": [
        Case(private="mnist", public=None, epsilon=10.0, settings=settings, paper=paper)
        for settings, paper in (
            ({"start": "noise", "iterations": "0"}, 30.12),
            ({"start": "noise", "aligned_share": "1"}, 90.55),
            ({**NOISE, "blur": "3"}, 91.62),
            ({**NOISE, "blur": "7"}, 90.82),
            ({**NOISE, "blur": "11"}, 91.10),
            ({**NOISE, "blur": "15"}, 91.18),
            ({"start": "drawn"}, None),
        )
    ],
}


# The paper's Table 10.
SUITES["table10"] = [
    Case(private="mnist", public="tinyimagenet_32", epsilon=0.2, paper=77.37),
    Case(private="fashion_mnist", public="tinyimagenet_32", epsilon=0.2, paper=70.63),
]
SUITES["photos"] = [
    Case(private="chest_xray_64", public="builtin:photos", epsilon=1.0, metric="balanced_accuracy", pictured=True),
]
SUITES["any"] = [
    Case(private=private, public=public, epsilon=epsilon, students=(*FROM_SCRATCH, *more), target=target, metric=metric)
    for private, public, targets, more, metric in (
        ("cifar10_15k", "tinyimagenet_64", (64.0, 62.0), ("lite0-tuned",), "accuracy"),
        ("celeba_64", "tinyimagenet_64", (91.0, 88.0), ("lite0-tuned",), "accuracy"),
        ("chest_xray_224", "photos_224", (94.0, 91.0), ("lite0-tuned",), "balanced_accuracy"),
        ("mnist", "fashion_mnist", (98.4, 97.5), (), "accuracy"),
        ("fashion_mnist", "tinyimagenet_32", (87.5, 85.5), (), "accuracy"),
    )
    for epsilon, target in zip((10.0, 1.0), targets, strict=True)
]
# Time and memory at 224 pixels: the same X-rays enlarged. A student of that size is another matter.
SUITES["large"] = [
    Case(private="chest_xray_64", public="builtin:photos", epsilon=1.0, size=224, students=()),
]


def load(name: str, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records, and those to score on."""
    train = _read(name, "train", groups=GROUPS.get(name))
    if not validate:
        return train, _read(name, "test")
    outside = kept(train, 1 / 6, key_of(0, "validation"))
    return train.subset(np.setdiff1d(np.arange(len(train)), outside)), train.subset(outside)


def _read(name: str, split: str, *, groups: str | None = None, channels: int | None = None) -> ImageSet:
    """A pack of small images, or a folder of larger ones, in memory."""
    if (DATA / f"{name}.npz").exists():
        return read_npz(DATA / f"{name}.npz", split, groups=groups)
    found = open_images(f"{DATA / name}:{split}", groups=groups, channels=channels)
    rows = np.arange(len(found.labels))
    return ImageSet(found.read(rows), found.labels, class_names=found.class_names, groups=found.groups)


def measure(
    case: Case,
    seed: int,
    samples: int | None,
    extra: Mapping[str, str],
    recipe: TrainingConfig,
    releases: Path | None,
    *,
    validate: bool,
    controlled: Sequence[str] = (),
) -> dict[str, Any]:
    """Make, verify and load one release, train its students, and those of its controls.

    `releases` is a folder to keep it in.
    """
    private, test = load(case.private, validate)
    if case.size is not None:
        private, test = private.resize(case.size), test.resize(case.size)
    vault = Vault(private, unit="group" if case.private in GROUPS else "record")
    settings = {**case.settings, **extra}
    job = Job(method="imgsyn", epsilon=case.epsilon, delta=DELTA, settings=settings, samples=samples, seed=seed)
    scale = draw_plan(job, vault.facts).public_scale
    public = None if case.public is None else public_images(case.public, private, scale)
    with tempfile.TemporaryDirectory() as folder:
        place = (releases or Path(folder)) / _file_name(case, settings, seed, samples, validate=validate)
        cost = _made(vault, job, public, place)
        found, release = verify_release(place), load_release(place)
        still: Release | None = None
        if controlled and release.certificate.settings["aligned_share"] and release.certificate.settings["iterations"]:
            beside = place.with_name(place.name + "-still")
            _made(vault, replace(job, settings={**settings, "iterations": "0"}), public, beside)
            still = load_release(beside)
    if not found.ok:
        raise SystemExit(f"The release does not verify: {found.problems}")
    teacher = classify(release.model("teacher"), test).argmax(axis=1)
    scores = {}
    for student in case.students:
        result = evaluate_utility(
            release.images, release.labels, release.soft_labels, vault.facts.classes, test,
            student=student, seeds=1, first_seed=seed, config=student_recipe(release.certificate, recipe),
        )  # fmt: skip
        scores[student] = {
            "accuracy": round(100 * result.accuracy, 2),
            "balanced_accuracy": round(100 * result.balanced_accuracy, 2),
            "seconds": round(result.seconds),
        }
        print(f"{student}: {scores[student]}", flush=True)
    controls = {
        student: _controls(release, still, private, test, public, student, seed, recipe) for student in controlled
    }
    if seed == 0 and case.pictured and not validate:
        name = f"imgsyn-{case.private}-from-{case.public}-eps{case.epsilon:g}.png".translate(str.maketrans("_:", "--"))
        write_grid(ROOT / "docs" / "images" / name, release.images, release.labels)
    return {
        "benchmark": "imgsyn",
        "scored_on": "a sixth of train" if validate else "test",
        "private": case.private,
        "shape": private.shape,
        "public": case.public,
        "epsilon": case.epsilon,
        "certified_epsilon": found.epsilon,
        "delta": DELTA,
        "unit": vault.facts.unit,
        "seed": seed,
        "settings": settings,
        "samples": len(release),
        "teacher_accuracy": round(100 * float((teacher == test.labels).mean()), 2),
        "teacher_balanced_accuracy": round(100 * _balanced(teacher == test.labels, test.labels), 2),
        "students": scores,
        "mean_from_scratch": _mean_from_scratch(scores, case.metric),
        "controls": controls,
        "label_temperature": release.certificate.label_temperature,
        "student_epochs": recipe.epochs_for(len(release)),
        "student_rate": recipe.learning_rate,
        "student_changes": recipe.changes_for(len(release), soft_labels=True) is not None,
        "metric": case.metric,
        "target": case.target,
        "paper": case.paper,
        **cost,
        "versions": versions_of("imgsyn"),
        **machine(),
    }


def _mean_from_scratch(scores: Mapping[str, Mapping[str, float]], metric: str) -> float | None:
    """The mean of the three networks of other kinds than the teacher, where all were trained."""
    if not set(FROM_SCRATCH) <= set(scores):
        return None
    return round(float(np.mean([scores[name][metric] for name in FROM_SCRATCH])), 2)


def _controls(
    release: Release, still: Release | None, private: ImageSet, test: ImageSet, public: Records | None,
    student: str, seed: int, recipe: TrainingConfig,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """What the same student reaches without what the release is praised for, and on the real images."""
    run = Run(student=student, first_seed=seed, config=student_recipe(release.certificate, recipe))
    teacher, classes = release.model("teacher"), release.certificate.facts.classes
    found = control_scores(release, teacher, test, run)
    if public is not None:
        found.append(public_score(teacher, public, test, classes, run))
    if still is not None:
        score = students(still.images, still.labels, still.soft_labels, classes, test, run)
        found.append(score.to_json() | {"name": "iterations=0"})
    found.append(ceiling_score(private, test, classes, run))
    scores = {
        str(one["name"]): {name: round(100 * one[name], 2) for name in ("accuracy", "balanced_accuracy")}
        for one in found
    }
    print(f"controls of {student}: {scores}", flush=True)
    return scores


def _made(vault: Vault, job: Job, public: Records | None, place: Path) -> dict[str, int]:
    """What the release at `place` cost; it is made unless it is there."""
    costs = place.with_suffix(".json")
    if not costs.exists():
        clock, processor = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            checked = None if public is None else vault.check_public(public)
            run(vault, job, workspace=Path(folder), public=checked).save(place)
        cost = {
            "seconds": round(time.perf_counter() - clock),
            "cpu_seconds": round(time.process_time() - processor),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }
        costs.write_text(json.dumps(cost), encoding="utf-8")
    found: dict[str, int] = json.loads(costs.read_text(encoding="utf-8"))
    return found


def _file_name(case: Case, settings: Mapping[str, str], seed: int, samples: int | None, *, validate: bool) -> str:
    parts = [case.private, "from", case.public or "none", f"eps{case.epsilon:g}", *map("-".join, settings.items())]
    parts += [f"{samples}-images"] if samples else []
    parts += ["validation"] if validate else []
    return "-".join([*parts, f"seed{seed}"]).translate(str.maketrans("_:.", "---"))


def public_images(name: str, private: ImageSet, scale: int) -> Records:
    """Public images without those that are private, too: CIFAR-10 and Tiny ImageNet share a photograph."""
    height, width, channels = private.shape
    if name.startswith("builtin:"):
        return open_images(name, size=height * scale, channels=channels)
    records = _read(name, "train", channels=channels)
    if tuple(records.shape) != (height * scale, width * scale, channels):
        records = records.with_channels(channels).resize(height * scale)
    return records.subset(np.flatnonzero(~find_overlap(private, records)))


def _balanced(right: np.ndarray, labels: np.ndarray) -> float:
    """The mean of the classes' recalls."""
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def table() -> str:
    """The lines on test sets as a table: for each student what each seed reached, by the newest line."""
    found: dict[tuple[str, ...], dict[str, dict[int, float]]] = {}
    for line in map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines()):
        settings = ", ".join(f"{key}={value}" for key, value in line["settings"].items())
        softness = f"{line.get('label_temperature', 1):g}"  # lines from before it was written had labels as they were
        case = (line["private"], str(line["public"]), f"{line['epsilon']:g}", settings, softness, str(line["samples"]))
        # Lines from before these two were written had the passes by rule, and changed images.
        passes = f"{line.get('student_epochs') or TrainingConfig().epochs_for(line['samples'])} times"
        changed = f"{passes}, changed" if line.get("student_changes", True) else passes
        for student, score in line["students"].items():
            cell = found.setdefault((*case, passes if student == "scatternet" else changed), {})
            cell.setdefault(student, {})[line["seed"]] = score[line["metric"]]
            cell.setdefault("teacher (accuracy)", {})[line["seed"]] = line["teacher_accuracy"]
    heads = ("private", "public", "epsilon", "settings", "label temperature", "images", "seen", "by seed")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for names, cell in sorted(found.items()):
        scores = [f"{name} {', '.join(f'{seeds[s]:.2f}' for s in sorted(seeds))}" for name, seeds in cell.items()]
        rows.append(f"| {' | '.join(names)} | {'; '.join(scores)} |")
    return "\n".join(rows)


def main() -> None:
    """Run what was asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", default=["main"], choices=list(SUITES))
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--samples", type=int, default=None)
    parser.add_argument("--students", nargs="+", default=None, help="these networks instead of the suite's")
    parser.add_argument("--controls", nargs="+", default=[], metavar="NETWORK", help="measure its controls, too")
    parser.add_argument("--student-epochs", type=int, default=None)
    parser.add_argument("--student-rate", type=float, default=None)
    parser.add_argument("--student-changes", default="auto", choices=list(CHANGES), help="of images in training")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--releases", type=Path, default=None, help="keep releases here, and use those that are here")
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the table of all lines so far and run nothing")
    asked = parser.parse_args()
    if asked.table:
        print(table())
        return
    extra = dict(pair.split("=", 1) for pair in asked.set)
    recipe = TrainingConfig(
        epochs=asked.student_epochs or "auto",
        learning_rate=asked.student_rate or "auto",
        augmentation=CHANGES[asked.student_changes],
    )
    for seed in asked.seeds:
        for suite in asked.suite:
            for number, case in enumerate(SUITES[suite]):
                name = f"{case.private} from {case.public} eps {case.epsilon:g} {dict(case.settings)}"
                if asked.one is not None and asked.one != number:
                    continue
                if asked.only not in name:
                    continue
                if asked.one is None:
                    command = [sys.executable, __file__, "--suite", suite, "--seeds", str(seed), "--one", str(number)]
                    command += ["--samples", str(asked.samples)] if asked.samples else []
                    command += ["--students", *asked.students] if asked.students else []
                    command += ["--controls", *asked.controls] if asked.controls else []
                    command += ["--student-epochs", str(asked.student_epochs)] if asked.student_epochs else []
                    command += ["--student-rate", str(asked.student_rate)] if asked.student_rate else []
                    command += ["--student-changes", asked.student_changes]
                    command += ["--validate"] if asked.validate else []
                    command += ["--releases", str(asked.releases)] if asked.releases else []
                    ended = subprocess.run([*command, "--set", *asked.set], timeout=TIME_LIMIT, check=False)
                    if ended.returncode:
                        print(f"{name} seed {seed} did not end well", flush=True)
                    continue
                if asked.students:
                    case = replace(case, students=tuple(asked.students))
                line = measure(
                    case, seed, asked.samples, extra, recipe, asked.releases,
                    validate=asked.validate, controlled=asked.controls,
                )  # fmt: skip
                with (TRIALS if asked.validate else RESULTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                reached = {student: score[case.metric] for student, score in line["students"].items()}
                print(f"{name} seed {seed}: {reached}, target {case.target}, {line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
