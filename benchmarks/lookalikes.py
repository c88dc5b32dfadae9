"""Images that look like the private ones, by any method: what students from scratch learn of them, and their FID.

    scripts/bench lookalikes [--data celeba_64 cifar10_15k] [--method merf evolve] [--epsilon 10 1] [--seeds 0]
        [--samples 5000] [--validate] [--set KEY=VALUE]

One line for each cell (data, method, epsilon, seed) in benchmarks/results/lookalikes.jsonl; a cell that has a line of
today's code, settings and sizes is not measured again. Students are the three from scratch whose mean is what a release
is worth to networks of any kind. FID is by EfficientNet-Lite0 on the test images: of the release, of the public images,
and of real training images. With --validate the method sees five sixths of the training images, everything is scored on
the rest, the test set is not read and lines go to lookalikes_trials.jsonl. Public images are TinyImageNet, without
those that are private, too.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip
from imgsyn import DATA, DELTA, load, public_images  # isort: skip
from machine import append  # isort: skip
from releases import student_scores  # isort: skip
from versions import is_stale  # isort: skip

from veilset.core.records import Images
from veilset.data.images import ImageSet
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.similarity.features import Extractor, extractor_named
from veilset.evaluate.similarity.fidelity import frechet_distance
from veilset.pipeline.evaluate import FROM_SCRATCH
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.settings import TrainingConfig

RESULTS = Path(__file__).parent / "results" / "lookalikes.jsonl"
TRIALS = RESULTS.with_name("lookalikes_trials.jsonl")
PUBLIC = {"celeba_64": "tinyimagenet_64", "cifar10_15k": "tinyimagenet_32", "celeba_32": "tinyimagenet_32"}
_LOOKED_AT = 2000  # images of each side of a FID


def measure(cell: dict[str, Any], private: ImageSet, test: ImageSet, asked: argparse.Namespace) -> dict[str, Any]:
    """One release, its students and its FID."""
    public = public_images(PUBLIC[cell["data"]], private, 1)
    job = Job(
        method=cell["method"], epsilon=cell["epsilon"], delta=DELTA, settings=cell["settings"],
        samples=asked.samples, seed=cell["seed"],
    )  # fmt: skip
    clock, processor = time.perf_counter(), time.process_time()
    vault = Vault(private)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VEILSET_STATE"] = str(Path(folder) / "state")  # accounts of a measurement stay with it
        release = run(vault, job, workspace=Path(folder) / "run", public=vault.check_public(public))
    cost = {
        "seconds": round(time.perf_counter() - clock),
        "cpu_seconds": round(time.process_time() - processor),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if asked.pictures:
        name = "-".join(str(value) for value in (cell["data"], cell["method"], cell["epsilon"]))
        write_grid(asked.pictures / f"{name}.png", release.images, release.labels)
    recipe = TrainingConfig(epochs=asked.student_epochs or "auto")
    extractor = extractor_named("lite0", private.shape[2], private.shape[0])
    shown = {"release": release.images, "public": public.read(np.arange(len(public.labels))), "real": private.images}
    return {
        **cell,
        "public": PUBLIC[cell["data"]],
        "units": vault.facts.units,
        "decided": release.certificate.settings,
        **student_scores(release, test, asked.students, cell["seed"], recipe),
        "fid": fid_of(shown, test.images, extractor, cell["seed"]),
        "fid_by": extractor.name,
        **cost,
    }


def fid_of(shown: dict[str, Images], reference: Images, extractor: Extractor, seed: int) -> dict[str, float]:
    """The Frechet distance of some of each set's images to some of the reference's; of as many images each."""
    most = min(_LOOKED_AT, len(reference), *(len(images) for images in shown.values()))
    coins = np.random.default_rng(seed)
    of_reference = extractor(reference[np.sort(coins.permutation(len(reference))[:most])])
    chosen = {name: images[np.sort(coins.permutation(len(images))[:most])] for name, images in shown.items()}
    return {name: round(frechet_distance(of_reference, extractor(images)), 3) for name, images in chosen.items()}


def is_done(cell: dict[str, Any], out: Path) -> bool:
    """Whether today's code has measured it."""
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    same = [line for line in lines if all(line.get(name) == value for name, value in cell.items())]
    return any(not is_stale(line, out.name) for line in same)


def main() -> None:
    """Measure the cells that the options name and that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["celeba_64", "cifar10_15k"], choices=list(PUBLIC))
    parser.add_argument("--method", nargs="+", default=["merf", "evolve"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[10.0, 1.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--students", nargs="+", default=list(FROM_SCRATCH))
    parser.add_argument("--student-epochs", type=int, default=None, help="fewer than the recipe's, on a busy machine")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--pictures", type=Path, default=None, help="a folder for grids of released images")
    asked = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(f"Expected the data packs in {DATA}. Set VEILSET_DATA.")
    out = TRIALS if asked.validate else RESULTS
    for seed in asked.seeds:
        for data in asked.data:
            for epsilon in asked.epsilon:
                for method in asked.method:
                    cell = {
                        "benchmark": "lookalikes",
                        "data": data,
                        "method": method,
                        "epsilon": epsilon,
                        "delta": DELTA,
                        "seed": seed,
                        "settings": dict(pair.split("=", 1) for pair in asked.set),
                        "samples": asked.samples,
                        "student_epochs": asked.student_epochs or "auto",
                        "scored_on": "a sixth of train" if asked.validate else "test",
                    }
                    if is_done(cell, out):
                        print(f"There already: {cell}", flush=True)
                        continue
                    private, test = load(data, asked.validate)
                    append(measure(cell, private, test, asked), out)


if __name__ == "__main__":
    main()
