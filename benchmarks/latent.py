"""latent on CelebA: a public generator of dark-haired people, private records that are not, and where the samples go.

    PYTHONPATH=src python benchmarks/latent.py --cache DIR [--steps 3000] [--parts shift clip gender picture] [--seed 0]
    PYTHONPATH=src python benchmarks/latent.py --cache DIR --size 64 --kind projected --minutes 40 --parts train fid

The public part of the train split is 3,400 people of black or brown hair, 400 of neither and 200 blond ones; the other
4,000 rows are private, 970 of them blond. `shift`: the private blond people; FID to them and the share of blond people
(by a discriminant on public rows) of the raw generator, of public images, of reconstructions and of fits. `clip`: error
of mean and covariance against the clip norm, for FF and descent (the paper's Tables 1 and 2). `repairs`: three ways to
a covariance. `gender`: two classes at epsilon 10, and a student on the test set (with --validate on public rows
instead). `picture`: real, reconstructed, fit and DP fit of Fashion-MNIST for the docs; CelebA may not be shown. The
generator and the inversion network are public work: made once and kept in the cache.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip
from machine import append  # isort: skip

from veilset.core.files import write_whole
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Images, Labels
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.data.overlap import find_overlap
from veilset.evaluate.pictures import beside, png_of
from veilset.evaluate.similarity.features import Extractor, Features, extractor_named, scattering_extractor
from veilset.evaluate.similarity.fidelity import frechet_distance
from veilset.evaluate.utility.students import evaluate_utility
from veilset.methods.latent.choices import InversionTraining, Repair, SearchSettings
from veilset.methods.latent.generators.game import Watch
from veilset.methods.latent.generators.making import make_generator
from veilset.methods.latent.generators.recipes import GeneratorKind, recipe_of
from veilset.methods.latent.inversion import train_inversion
from veilset.methods.latent.moments import MomentRows, Seen, positive
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.models.generators.files import load_generator, save_generator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.settings import TrainingConfig

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VEILSET_DATA") or ROOT.parent / "shared" / "data")
RESULTS = Path(__file__).parent / "results" / "latent.jsonl"
DELTA = 1e-5
DARK, OTHERS, BLOND = 3400, 400, 200
INVERSION = "latent-inversion.pt"
SPACE = "latent-space.pt"


Part = tuple[ImageSet, NDArray[np.bool_]]
"""Records labelled by gender, and which of them are blond."""


def celeba(size: int = 32) -> tuple[Part, Part]:
    """The public and the private part of the train split, whose rows are the same at 32 and at 64 pixels."""
    images, labels, blond, dark = _faces("train", 32)
    chosen = np.random.default_rng(8).permutation(len(labels))
    kinds = ((~blond & dark, DARK), (~blond & ~dark, OTHERS), (blond, BLOND))
    public = np.sort(np.concatenate([chosen[kind[chosen]][:count] for kind, count in kinds]))
    private = np.setdiff1d(chosen, public)

    def part(rows: NDArray[np.int64]) -> Part:
        return ImageSet(images[rows], labels[rows], ("women", "men")), blond[rows]

    public = public[~find_overlap(part(private)[0], part(public)[0])]
    if size != 32:
        images = _faces("train", size)[0]
        # A run compares what it is given: near copies that only show at this size are left out, too.
        public = public[~find_overlap(part(private)[0], part(public)[0])]
    return part(public), part(private)


def held_out(size: int) -> Images:
    """Faces of the test split, dark, blond and other ones in the shares of the public part: nothing was made of them.

    The whole of those that are scarcest in it decides how many.
    """
    images, _, blond, dark = _faces("test", size)
    kinds = ((~blond & dark, DARK), (~blond & ~dark, OTHERS), (blond, BLOND))
    share = min(int(kind.sum()) / count for kind, count in kinds)
    kept: Images = images[np.concatenate([np.flatnonzero(kind)[: int(share * count)] for kind, count in kinds])]
    return kept


def _faces(side: str, size: int) -> tuple[Images, Labels, NDArray[np.bool_], NDArray[np.bool_]]:
    """Images, gender, and who has blond and who dark hair."""
    pack = np.load(DATA / "celeba_32.npz")
    has = dict(zip(map(str, pack["attr_names"]), pack[f"{side}_attrs"].T > 0, strict=True))
    labels = pack[f"{side}_labels"].astype(np.int64)
    images = pack[f"{side}_images"]
    if size != 32:
        images = open_images(f"{DATA / f'celeba_{size}'}:{side}").read(np.arange(len(labels)))
    return images, labels, has["Blond_Hair"], has["Black_Hair"] | has["Brown_Hair"]


def blond_alone(size: int = 32) -> ImageSet:
    """The private blond people, as one class."""
    private, blond = celeba(size)[1]
    images = private.images[blond]
    return ImageSet(images, np.zeros(len(images), dtype=np.int64), ("blond",))


def clothes() -> tuple[ImageSet, ImageSet]:
    """Fashion-MNIST: public clothes of all kinds, private ones that are trousers, dresses and boots."""
    pack = np.load(DATA / "fashion_mnist.npz")
    images, labels = pack["train_images"][..., None], pack["train_labels"].astype(np.int64)
    chosen = np.flatnonzero(np.isin(labels, (1, 3, 9)) & (np.arange(len(labels)) >= 40_000))[:4000]
    return ImageSet(images[:20_000], labels[:20_000]), ImageSet(images[chosen], labels[chosen] * 0, ("clothes",))


def folder_of(name: str, asked: argparse.Namespace) -> Path:
    """Where the public work of these options is kept."""
    size = "" if asked.size == 32 else f"{asked.size}"
    made_by = f"{asked.steps}" if asked.kind != "projected" else "projected"
    return Path(asked.cache) / f"{name}{size}-{made_by}-{asked.inversion_steps}"


def trained(name: str, public: ImageSet, asked: argparse.Namespace, *, further: bool = False) -> tuple[Path, int]:
    """The file of the public generator, made once, and the steps it has had; an eigen generator for 0 steps.

    With `further` a training that was stopped by the clock goes on for as many minutes again.
    """
    folder = folder_of(name, asked)
    place, state = folder / "generator.safetensors", folder / "training.pt"
    reached = folder / "steps.txt"
    if further or not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        kind: GeneratorKind = asked.kind or ("style" if asked.steps else "eigen")
        recipe = recipe_of(
            kind,
            preset="default" if name == "celeba" else "fast",
            steps=asked.steps or "auto",
            mirrored=name == "celeba",
        )
        stopped = [asked.steps or getattr(recipe, "steps", 0)]

        def show(images: Images) -> None:
            write_whole(folder / f"shown-{time.strftime('%H%M')}.png", png_of(beside([images], columns=12, rows=4)))

        watch = Watch(minutes=asked.minutes, show=show, stopped=stopped.append)
        generator = make_generator(public, recipe, checkpoint=state, watch=watch)
        save_generator(generator, place)
        reached.write_text(str(stopped[-1]))
    return place, int(reached.read_text()) if reached.exists() else asked.steps


def prepared(name: str, public: ImageSet, asked: argparse.Namespace) -> LatentSpace:
    """The public generator, its coordinates and its inversion network, made once."""
    folder = folder_of(name, asked)
    place, _ = trained(name, public, asked)
    space = LatentSpace.of(load_generator(place), 0, folder / SPACE)
    inversion = InversionTraining(steps=asked.inversion_steps)
    train_inversion(space, inversion, seed=0, checkpoint=folder / INVERSION)
    return space


def train(public: ImageSet, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Minutes of training of the public generator, more of them where there were some already."""
    processor, clock = time.process_time(), time.perf_counter()
    folder = folder_of("celeba", asked)
    _, steps = trained("celeba", public, asked, further=True)
    for kept in (SPACE, INVERSION):  # of another generator
        (folder / kept).unlink(missing_ok=True)
    return [
        {
            "steps": steps,
            "images": len(public),
            "minutes": round((time.perf_counter() - clock) / 60, 1),
            "cpu_minutes": round((time.process_time() - processor) / 60, 1),
        }
    ]


def fid(public: ImageSet, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """FID to held-out faces like the public ones: of the generator, of the public images and of one half of them."""
    real = held_out(asked.size)
    extract = extractor_named("auto", 3, asked.size)
    place, steps = trained("celeba", public, asked)
    generator = load_generator(place)
    made = generator.render(generator.draw(len(real), torch_generator(asked.seed, "fid")))
    rows = np.sort(numpy_generator(asked.seed, "fid").permutation(len(public))[: len(real)])
    wanted = extract(real)
    sets = {
        "generator": extract(np.ascontiguousarray(made.permute(0, 2, 3, 1).numpy())),
        "public images": extract(public.images[rows]),
    }
    order = numpy_generator(asked.seed, "fid halves").permutation(len(real))
    halves = frechet_distance(wanted[order[::2]], wanted[order[1::2]])
    about = {"to": "held-out faces like the public ones", "extractor": extract.name, "steps": steps}
    lines = [
        {"set": name, "fid": round(frechet_distance(wanted, found), 2), "images": len(real)} | about
        for name, found in sets.items()
    ]
    return [*lines, {"set": "one half of them against the other", "fid": round(halves, 2)} | about]


def search_in(space: LatentSpace, folder: Path, config: SearchSettings) -> LatentSearch:
    """A search with the inversion network of the cache."""
    network = train_inversion(space, InversionTraining(steps=1), seed=0, checkpoint=folder / INVERSION)
    return LatentSearch(space, network, config)


def released(
    private: ImageSet, public: ImageSet, folder: Path, epsilon: float, count: int, seed: int, **settings: str
) -> Any:
    """One release of the method itself."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["VEILSET_STATE"] = str(Path(place) / "state")  # accounts of a measurement stay with it
        workspace = Path(place) / "run"
        workspace.mkdir()
        for name in (INVERSION, SPACE):
            if (folder / name).exists():  # an eigen generator needs no inversion network
                shutil.copy(folder / name, workspace / name)
        job = Job(
            method="latent",
            epsilon=epsilon,
            delta=DELTA,
            settings={"generator": str(folder / "generator.safetensors"), **settings},
            samples=count,
            seed=seed,
            insecure_seed=seed,  # so that a measurement can be repeated; a release for others never does
        )
        vault = Vault(private)
        return run(vault, job, workspace=workspace, public=vault.check_public(public))


class Judge:
    """Linear discriminant analysis on public rows, both kinds alike: is this a blond person?"""

    def __init__(self, features: Features, blond: NDArray[np.bool_]) -> None:
        kinds = [features[~blond], features[blond]]
        means = np.stack([kind.mean(axis=0) for kind in kinds])
        pooled = np.cov(np.concatenate([kind - kind.mean(axis=0) for kind in kinds]), rowvar=False)
        self.weight = np.linalg.solve(pooled + 1e-6 * np.eye(len(pooled)), means[1] - means[0])
        self.middle = float(means.mean(axis=0) @ self.weight)

    def share(self, features: Features) -> float:
        """The share that is called blond."""
        return float((features @ self.weight > self.middle).mean())


def shift(
    space: LatentSpace, folder: Path, seed: int, count: int, settings: Mapping[str, str], extractor: str
) -> list[dict[str, Any]]:
    """FID to the private blond people and share of blond ones, of the generator, the reconstructions and the fits."""
    size = space.generator.size
    (public, public_blond), (private, private_blond) = celeba(size)
    extract: Extractor = extractor_named(extractor, 3, size)
    alone = blond_alone(size)
    features = extract(public.images)
    judge = Judge(features, public_blond)
    real = extract(alone.images[:count])
    others = extract(private.images[~private_blond][:count])
    accuracy = (judge.share(real) + 1 - judge.share(others)) / 2
    codes = search_in(space, folder, SearchSettings())(torch.from_numpy(alone.read(np.arange(count))))
    raw = space.draw(count, torch_generator(seed, "raw"))

    def fit(epsilon: float) -> Features:
        return extract(released(alone, public, folder, epsilon, count, seed, **settings).images)

    sets: dict[str, Features] = {
        "generator": extract(shown(space, raw)),
        "public images": features[numpy_generator(seed, "public").permutation(len(features))[:count]],
        "reconstructions (private, not released)": extract(shown(space, codes)),
        "fit without noise (private, not released)": fit(1e6),
        "DP fit, epsilon 11": fit(11.0),
        "DP fit, epsilon 1": fit(1.0),
    }
    about = {
        "images": count,
        "extractor": extract.name,
        "records": len(alone),
        "judge_balanced_accuracy": round(accuracy, 4),
    }
    lines = [
        {"set": name, "fid": round(frechet_distance(real, found), 2), "blond": round(judge.share(found), 4)} | about
        for name, found in (sets | {"the real ones": real}).items()
    ]
    halves = {
        "set": "one half of the real ones against the other",
        "fid": round(frechet_distance(real[::2], real[1::2]), 2),
    }
    own = {
        "set": "generator",
        "to": "public images",
        "fid": round(frechet_distance(sets["public images"], sets["generator"]), 2),
    }
    return [*lines, halves | {"images": count // 2}, own | {"images": count}]


def clip(space: LatentSpace, folder: Path, seed: int, images: int, steps: int) -> list[dict[str, Any]]:
    """Error of mean and covariance against the clip norm at epsilon 11, noise as for all private blond people."""
    from veilset.privacy.accounting import calibrate
    from veilset.privacy.budget import Budget
    from veilset.privacy.events import Event

    alone = blond_alone()
    images_of_all = torch.from_numpy(alone.read(np.arange(images)))
    noise = calibrate(Budget(11.0, DELTA), lambda noise: [Event(label="moments", noise_multiplier=noise)])
    searches = {
        "ff": SearchSettings(),
        "opt": SearchSettings(steps=steps),
        "opt_a": SearchSettings(steps=steps, penalty=0.02),
        "opt_b": SearchSettings(steps=steps, penalty=0.1),
    }
    coins = torch_generator(seed, "clip benchmark")
    lines = []
    for name, config in searches.items():
        v = search_in(space, folder, config)(images_of_all).double()
        lengths = v.norm(dim=1)
        for quantile in (0.5, 0.75, 0.9, 0.99):
            norm = float(lengths.quantile(quantile))
            rows = MomentRows(size=space.size, clip_norm=norm, count_weight=0.0)
            exact = rows(v).mean(dim=0) * len(alone)
            drawn = torch.randn(len(exact), generator=coins, dtype=torch.float64) * noise
            moments = rows.read((exact + drawn)[None], len(alone), noise)
            lines.append(
                {
                    "search": name,
                    "steps": config.steps,
                    "quantile": quantile,
                    "clip_norm": round(norm, 3),
                    "images": images,
                    "mean_error": round(float((moments.means[0] - v.mean(dim=0)).norm()), 4),
                    "covariance_error": round(float((moments.covariances[0] - torch.cov(v.T, correction=0)).norm()), 3),
                }
            )
    return lines


def repairs(space: LatentSpace, folder: Path, seed: int) -> list[dict[str, Any]]:
    """The three repairs of the covariance: squared error against the noise-free one, at two epsilons."""
    from veilset.privacy.accounting import calibrate
    from veilset.privacy.budget import Budget
    from veilset.privacy.events import Event

    (public, _), _ = celeba()
    alone = blond_alone()
    search = search_in(space, folder, SearchSettings())
    v = search(torch.from_numpy(alone.images)).double()
    rows = MomentRows(size=space.size, clip_norm=float(v.norm(dim=1).quantile(0.99)), count_weight=0.0)
    found = search(torch.from_numpy(public.images[:2000].copy()))
    seen = Seen.of(found, rows)
    exact = rows(v).sum(dim=0)
    truth = rows.read(exact[None], len(alone), 1e-9).covariances[0]
    lines = []
    for epsilon in (1.0, 11.0):
        noise = calibrate(Budget(epsilon, DELTA), lambda noise: [Event(label="moments", noise_multiplier=noise)])
        drawn = torch.randn(len(exact), generator=torch_generator(seed, "repairs"), dtype=torch.float64) * noise
        moments = rows.read((exact + drawn)[None], len(alone), noise)
        chosen: tuple[Repair, ...] = ("replace", "linear", "spiked")
        errors = {
            repair: round(
                float((positive(seen.covariance + moments.deviations_from(seen, repair)[0]) - truth).norm()), 3
            )
            for repair in chosen
        }
        lines.append({"epsilon": epsilon, "covariance_norm": round(float(truth.norm()), 3), "errors": errors})
    return lines


def gender(folder: Path, seed: int, count: int, validate: bool, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Two classes at epsilon 10, and a student of the release."""
    (public, _), (private, _) = celeba()
    processor = time.process_time()
    release = released(private, public, folder, 10.0, count, seed, **settings)
    seconds = time.process_time() - processor
    pack = np.load(DATA / "celeba_32.npz")
    test = public if validate else ImageSet(pack["test_images"], pack["test_labels"].astype(np.int64), ("women", "men"))
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, 2, test,
        seeds=1, first_seed=seed, config=TrainingConfig(epochs=max(1, 60_000 // count)),
    )  # fmt: skip
    return [
        {
            "scored_on": "public rows of train" if validate else "test",
            "epsilon": 10.0,
            "records": len(private),
            "samples": count,
            "accuracy": round(100 * result.accuracy, 2),
            "balanced_accuracy": round(100 * result.balanced_accuracy, 2),
            "release_cpu_seconds": round(seconds, 1),
            "men_among_labels": round(float(release.labels.mean()), 4),
        }
    ]


def picture(asked: argparse.Namespace, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Real | reconstructed | fit | DP fit of Fashion-MNIST, for the docs."""
    public, private = clothes()
    space, folder = prepared("fashion", public, asked), folder_of("fashion", asked)
    codes = search_in(space, folder, SearchSettings())(torch.from_numpy(private.read(np.arange(48))))
    fits = [
        released(private, public, folder, epsilon, len(private), asked.seed, **settings).images
        for epsilon in (1e6, 1.0)
    ]
    raw = shown(space, space.draw(len(private), torch_generator(asked.seed, "raw")))
    sets = [private.images[:48], shown(space, codes), *fits]
    write_whole(ROOT / "docs" / "images" / "latent-fashion.png", png_of(beside(sets)))
    extract = scattering_extractor(1, 28)
    real = extract(private.images)
    named = {"generator": raw, "fit without noise": fits[0], "DP fit, epsilon 1": fits[1]}
    return [
        {"set": name, "fid": round(frechet_distance(real, extract(images)), 2), "steps": asked.steps}
        for name, images in named.items()
    ]


def shown(space: LatentSpace, v: torch.Tensor) -> Images:
    """The images of coordinates."""
    images: Images = np.ascontiguousarray(space.stored(v).permute(0, 2, 3, 1).numpy())
    return images


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000, help="of the style generator; 0 for an eigen generator")
    parser.add_argument("--kind", choices=("style", "projected", "eigen"), help="of the generator")
    parser.add_argument("--minutes", type=float, help="of the generator's training, at most; `train` again goes on")
    parser.add_argument("--size", type=int, choices=(32, 64), default=32)
    parser.add_argument("--extractor", default="wavelets", help="of the shift's FID: wavelets or lite0")
    parser.add_argument("--inversion-steps", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", default=["shift", "clip", "repairs", "gender", "picture"])
    parser.add_argument("--compared", type=int, default=800, help="images on each side of an FID")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--descent-images", type=int, default=96)
    parser.add_argument("--descent-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in asked.set)
    folder = folder_of("celeba", asked)
    for part in asked.parts:
        processor = time.process_time()
        if part == "picture":
            lines = picture(asked, settings)
        elif part in ("train", "fid"):
            lines = (train if part == "train" else fid)(celeba(asked.size)[0][0], asked)
        else:
            space = prepared("celeba", celeba(asked.size)[0][0], asked)
            if part == "shift":
                lines = shift(space, folder, asked.seed, asked.compared, settings, asked.extractor)
            elif part == "clip":
                lines = clip(space, folder, asked.seed, asked.descent_images, asked.descent_steps)
            elif part == "repairs":
                lines = repairs(space, folder, asked.seed)
            else:
                lines = gender(folder, asked.seed, asked.samples, asked.validate, settings)
        about = {
            "benchmark": "latent",
            "part": part,
            "data": "fashion_mnist" if part == "picture" else f"celeba_{asked.size}",
            "delta": DELTA,
            "seed": asked.seed,
            "settings": settings,
            "generator": asked.kind or ("style" if asked.steps else "eigen"),
            "generator_steps": asked.steps,
            "inversion_steps": asked.inversion_steps,
            "cpu_seconds": round(time.process_time() - processor),
        }
        for line in lines:
            append(about | line, asked.out)


if __name__ == "__main__":
    main()
