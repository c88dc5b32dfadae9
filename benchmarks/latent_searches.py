"""latent on CelebA: what each search finds, how its descent goes, and what is left of it in a fit.

    scripts/bench latent_searches --cache DIR [--steps 0] [--parts lengths paths grid few] [--seed 0]

The generator and the data are those of benchmarks/latent.py: a public generator, private blond people. `lengths`:
quantiles of the distance to the average latent by search (the paper's Figures 3 and 6). `paths`: distance of the
reconstruction against length, every ten steps, by penalty and start (Figure 5). `grid`: FID to the private people of
reconstructions, of a fit without noise and of a DP fit, by search (Table 3); half an hour for each search that
descends. `few`: the same for 157 private blond people (Figures 4 and 10), of whom no fit without noise may be released.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import latent  # isort: skip
import torch  # isort: skip
from machine import append  # isort: skip

from veilset.core.errors import VeilsetError
from veilset.core.randomness import torch_generator
from veilset.data.images import ImageSet
from veilset.data.tensors import as_floats
from veilset.evaluate.similarity.features import extractor_named
from veilset.evaluate.similarity.fidelity import frechet_distance
from veilset.methods.latent.choices import SEARCHES, SearchName, SearchSettings
from veilset.methods.latent.distance import distance_named
from veilset.methods.latent.space import LatentSpace
from veilset.training.settings import rate_share

RESULTS = Path(__file__).parent / "results" / "latent.jsonl"
PENALTIES = (0.0, 0.005, 0.02, 0.1, 0.5)
QUANTILES = (0.1, 0.5, 0.9, 0.99)
EVERY = 10
FEW = 157


def searches(steps: int) -> dict[SearchName, SearchSettings]:
    """The five searches; descents take at most so many steps."""
    return {name: config.changed(steps=min(config.steps, steps)) for name, config in SEARCHES.items()}


def lengths(space: LatentSpace, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Quantiles of the length of latents, in deviations of the generator's own, by search."""
    shown = torch.from_numpy(latent.blond_alone(asked.size).read(np.arange(asked.images)))
    own = space.draw(2000, torch_generator(asked.seed, "own lengths")).norm(dim=1)
    rows = {"the generator's own": own} | {
        name: latent.search_in(space, folder, config)(shown).norm(dim=1)
        for name, config in searches(asked.descent_steps).items()
    }
    return [
        {"search": name, "images": len(found)} | {f"q{q:g}": round(float(found.quantile(q)), 3) for q in QUANTILES}
        for name, found in rows.items()
    ]


def paths(space: LatentSpace, folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Mean distance and length of descents, every ten steps: the loop of `LatentSearch`, looked into."""
    shown = torch.from_numpy(latent.blond_alone(asked.size).read(np.arange(min(64, asked.images))))
    pixels = as_floats(shown, "cpu")
    distance = distance_named("wavelets", asked.size, 3)
    with torch.no_grad():
        wanted = distance.features(pixels)
    lines = []
    for start in ("network", "average"):
        for penalty in PENALTIES:
            config = SearchSettings(start=start, steps=asked.descent_steps, penalty=penalty)
            begin = config.changed(steps=0)
            v = latent.search_in(space, folder, begin)(shown).requires_grad_(True)
            optimizer = torch.optim.Adam([v], lr=config.learning_rate)
            dots = []
            for step in range(config.steps + 1):
                away = distance(distance.features(space.images(v)), wanted)
                if step % EVERY == 0:
                    length = v.detach().norm(dim=1).mean()
                    dots.append([step, round(float(away.mean()), 4), round(float(length), 3)])
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * rate_share(min(step, config.steps - 1), config.steps, "cosine")
                optimizer.zero_grad(set_to_none=True)
                (away + penalty * v.square().mean(dim=1)).sum().backward()
                optimizer.step()
            lines.append({"start": start, "penalty": penalty, "images": len(shown), "step_distance_length": dots})
    return lines


def grid(space: LatentSpace, folder: Path, asked: argparse.Namespace, alone: ImageSet) -> list[dict[str, Any]]:
    """FID to the private people, by search: reconstructions, a fit without noise, and DP fits."""
    extract = extractor_named("auto", 3, asked.size)
    public = latent.celeba(asked.size)[0][0]
    count = min(asked.images, len(alone))
    real, lines = extract(alone.images[:count]), []
    for name, config in searches(asked.descent_steps).items():
        if name not in asked.searches:
            continue
        codes = latent.search_in(space, folder, config)(torch.from_numpy(alone.read(np.arange(count))))
        rebuilt = extract(latent.shown(space, codes))
        found = {"reconstructions (private, not released)": round(frechet_distance(real, rebuilt), 2)}
        settings = {"search": name, "search_steps": str(config.steps)}
        for epsilon in (1e6, *asked.epsilon):
            words = "fit without noise (private, not released)" if epsilon == 1e6 else f"DP fit, epsilon {epsilon:g}"
            try:
                made = latent.released(alone, public, folder, epsilon, count, asked.seed, **settings)
            except VeilsetError as error:
                lines.append({"search": name, "set": words, "refused": str(error), "records": len(alone)})
                continue
            found[words] = round(frechet_distance(real, extract(made.images)), 2)
        lines += [
            {"search": name, "set": words, "fid": fid, "images": count, "records": len(alone)}
            for words, fid in found.items()
        ]
    return lines


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=0, help="of the style generator; 0 for an eigen generator")
    parser.add_argument("--kind", choices=("style", "projected", "eigen"), help="of the generator")
    parser.add_argument("--minutes", type=float, help="of the generator's training, at most")
    parser.add_argument("--size", type=int, choices=(32, 64), default=32)
    parser.add_argument("--inversion-steps", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", default=["lengths", "paths", "grid", "few"])
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=list(SEARCHES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[11.0, 1.0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--descent-steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    folder = latent.folder_of("celeba", asked)
    space = latent.prepared("celeba", latent.celeba(asked.size)[0][0], asked)
    for part in asked.parts:
        processor = time.process_time()
        if part in ("grid", "few"):
            alone = latent.blond_alone(asked.size)
            alone = alone if part == "grid" else alone.subset(np.arange(FEW))
            lines = grid(space, folder, asked, alone)
        else:
            lines = {"lengths": lengths, "paths": paths}[part](space, folder, asked)
        about = {
            "benchmark": "latent",
            "part": f"search {part}",
            "data": f"celeba_{asked.size}",
            "delta": latent.DELTA,
            "seed": asked.seed,
            "settings": {},
            "generator": asked.kind or ("style" if asked.steps else "eigen"),
            "generator_steps": asked.steps,
            "inversion_steps": asked.inversion_steps,
            "descent_steps": asked.descent_steps,
            "cpu_seconds": round(time.process_time() - processor),
        }
        for line in lines:
            append(about | line, asked.out)


if __name__ == "__main__":
    main()
