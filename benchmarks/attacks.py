"""Do the attacks find what is there, and what do they find in a release with epsilon 1?

    PYTHONPATH=src python benchmarks/attacks.py [--parts overfitted merf undefended] [--seed 0] [--records 3000]

Members and nonmembers are both drawn from MNIST's training images, so that they differ in nothing but membership; the
test set is not read. `overfitted`: a network with one hidden layer and 1,000 images with 20 % random labels, trained
until it knows them by heart. `merf`: a student of a release of 10,000 images at epsilon 1, preset fast. `undefended`:
the same network trained on those 10,000 images themselves. One JSON line for each, with every attack.
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.evaluate.attacks import AttackConfig, Target, plain_shadows, release_target, run_attacks
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict
from veilset.training.settings import TrainingConfig

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "attacks.jsonl"
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
SHAPE, CLASSES, STUDENT, BIG_MEMORY = (28, 28, 1), 10, "lenet", f"{__name__}:one_hidden_layer"
DELTA = 1e-5
BY_HEART = TrainingConfig(
    epochs=60, batch_size=50, learning_rate=0.003, augmentation=None, label_smoothing=0.0, weight_decay=0.0
)
USUAL = TrainingConfig(epochs=10)


def load(count: int, seed: int, noisy_labels: float = 0.0) -> tuple[ImageSet, ImageSet]:
    """`count` members and, from the rest of the training images, as many nonmembers."""
    pack = np.load(DATA / "mnist.npz")
    coins = numpy_generator(seed, "attacks benchmark")
    rows = coins.permutation(len(pack["train_labels"]))[: 2 * count]
    labels = pack["train_labels"].astype(np.int64)[rows]
    wrong = coins.random(len(rows)) < noisy_labels
    labels = np.where(wrong, coins.integers(0, CLASSES, len(rows)), labels)
    both = ImageSet(pack["train_images"][rows][..., None], labels, tuple(map(str, range(CLASSES))))
    return both.subset(np.arange(count)), both.subset(np.arange(count, 2 * count))


def one_hidden_layer(classes: int) -> torch.nn.Module:
    """A network that learns a thousand images by heart in seconds."""
    hidden = 256
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(28 * 28, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )


def network_target(members: ImageSet, name: str, recipe: TrainingConfig, description: str, seed: int) -> Target:
    """A network trained on the members themselves."""
    train = plain_shadows(name, SHAPE, CLASSES, recipe=recipe)
    network = train(members.images, members.labels, seed)
    return Target(description=description, classes=CLASSES, network=network, train_shadow=train)


def merf_target(members: ImageSet, seed: int) -> Target:
    """A student of a release at epsilon 1, with the release's images and generator."""
    # A seeded noise makes the measurement repeatable; a release made for others must not be.
    job = Job(method="merf", epsilon=1.0, delta=DELTA, preset="fast", samples=5_000, seed=seed, insecure_seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        release = run(Vault(members), job, workspace=Path(folder) / "run")
    target = release_target(release, student=STUDENT, recipe=USUAL, seed=seed)
    # Shadows see 1,000 images where the student saw 5,000, so they take more passes.
    shadows = plain_shadows(STUDENT, SHAPE, CLASSES, recipe=USUAL.changed(epochs=20))
    return dataclasses.replace(target, train_shadow=shadows)


def measure(part: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Attack one target with everything."""
    clock, processor = time.perf_counter(), time.process_time()
    if part == "overfitted":
        members, others = load(1_000, seed, noisy_labels=0.2)
        target = network_target(members, BIG_MEMORY, BY_HEART, "a network that knows 1,000 images by heart", seed)
    else:
        members, others = load(10_000, seed)
        target = (
            merf_target(members, seed)
            if part == "merf"
            else network_target(members, STUDENT, USUAL, "a network trained on 10,000 images, undefended", seed)
        )
    config = AttackConfig(
        records=arguments.records,
        shadow_records=arguments.shadow_records,
        shadows=arguments.shadows,
        generator_records=300,
        seed=seed,
    )
    report = run_attacks(target, members, others, attacks=arguments.attacks, config=config)
    assert target.network is not None
    accuracy = {
        name: round(float((predict(target.network, part.images).argmax(axis=1) == part.labels).mean()), 4)
        for name, part in (("members", members), ("nonmembers", others))
    }
    return {
        "benchmark": "attacks",
        "part": part,
        "data": "mnist, train images only",
        "seed": seed,
        "epsilon": 1.0 if part == "merf" else None,
        "network": "one hidden layer of 256" if part == "overfitted" else STUDENT,
        "accuracy_of_the_network": accuracy,
        "settings": dataclasses.asdict(config),
        **report.to_json(),
        "clock_seconds": round(time.perf_counter() - clock),
        "cpu_seconds": round(time.process_time() - processor),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()} {platform.processor() or platform.node()}".strip(),
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["overfitted", "merf", "undefended"])
    parser.add_argument("--attacks", default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=3_000)
    parser.add_argument("--shadow-records", type=int, default=1_000)
    parser.add_argument("--shadows", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for part in arguments.parts:
        result = measure(part, arguments.seed, arguments) | {"commit": commit.stdout.strip() or "uncommitted"}
        for found in result["attacks"]:
            print(part, found["name"], round(found["auc"], 3), found["verdict"], f"{found['seconds']} s", flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
