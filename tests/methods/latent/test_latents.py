"""latent by Z and W+ in the place of W, and on images that are not square."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.latent.choices import SearchSettings
from veilset.methods.latent.config import Latent
from veilset.methods.latent.generators.eigen import fit_eigen
from veilset.methods.latent.sampling import rebuild_sampler
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.models.generators.files import save_generator
from veilset.models.generators.style import StyleGenerator
from veilset.models.generators.views import seen_by
from veilset.pipeline.job import Job
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts

FACTS = PublicFacts(units=10**7, unit="record", shape=(32, 32, 1), class_names=("a", "b"))
SMALL = {"generator_steps": "2", "inversion_steps": "2"}


def pictures(count: int, seed: int, shape: tuple[int, int, int] = (16, 16, 1)) -> ImageSet:
    images = np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)
    return ImageSet(images, np.arange(count) % 2)


@pytest.mark.parametrize(("latents", "length"), [("w", 64), ("z", 64), ("w_plus", 8 * 64)])
def test_a_plan_knows_how_long_latents_are(latents: str, length: int) -> None:
    method = Latent.configure("default", {"generator_kind": "style", "latents": latents})
    plan = method.plan(FACTS, Budget(10.0, 1e-8))
    assert plan.facts["of"] == length
    assert plan.certified()["latents"] == latents


@pytest.mark.parametrize("latents", ["z", "w_plus"])
def test_a_release_brings_its_latents_back(latents: str, tmp_path: Path) -> None:
    job = Job(
        method="latent", epsilon=8.0, preset="fast", samples=12, settings=SMALL | {"latents": latents}, insecure_seed=0
    )
    release = run_with(pictures(300, 0), job, workspace=tmp_path / "run", public=pictures(40, 1))
    weights, description = release.models["generator"]
    space, gaussians = rebuild_sampler(description, weights)
    assert space.size == (32 if latents == "z" else 6 * 32)
    coins = torch.Generator().manual_seed(0)
    v = gaussians.draw(lambda count: space.draw(count, coins), torch.tensor([0, 1]), coins)
    assert space.stored(v).shape == (2, 1, 16, 16)
    with pytest.raises(InputError, match="Not a release of latent"):
        rebuild_sampler({**description, "latents": "v"}, weights)


def test_a_given_generator_without_layers_has_w_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    style, eigen = tmp_path / "style.safetensors", tmp_path / "eigen.safetensors"
    save_generator(StyleGenerator(16, 1, latent_size=8, width=4), style)
    save_generator(fit_eigen(pictures(40, 1)), eigen)
    facts = replace(FACTS, shape=(16, 16, 1))
    found = Latent.configure("default", {"generator": str(style), "latents": "w_plus"})
    assert found.plan(facts, Budget(10.0, 1e-8)).facts["of"] == 6 * 8
    with pytest.raises(InputError, match="latents=z needs a style or stylegan2 generator"):
        Latent.configure("default", {"generator": str(eigen), "latents": "z"}).plan(facts, Budget(10.0, 1e-8))


@pytest.mark.parametrize("latents", ["z", "w_plus"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_search_by_other_latents_treats_every_image_alone(latents: str, steps: int) -> None:
    torch.manual_seed(0)
    made = StyleGenerator(16, 1, latent_size=6, width=4).eval().requires_grad_(False)
    space = LatentSpace.of(seen_by(made, latents), seed=0)  # type: ignore[arg-type]
    search = LatentSearch(space, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, space.size)),
                          SearchSettings(steps=steps))  # fmt: skip
    images = torch.from_numpy(pictures(9, 2).images.copy())
    assert torch.equal(search(images)[4:5], search(images[4:5]))


@pytest.mark.parametrize("preset", ["default", "fast"])
def test_images_that_are_not_square(preset: str, tmp_path: Path) -> None:
    shape = (32, 48, 3)
    settings = SMALL | ({"search": "opt_a", "search_steps": "2"} if preset == "fast" else {})
    job = Job(method="latent", epsilon=8.0, preset=preset, samples=12, settings=settings)
    release = run_with(pictures(200, 3, shape), job, workspace=tmp_path / "run", public=pictures(40, 4, shape))
    assert release.images.shape == (12, *shape)
    weights, description = release.models["generator"]
    assert description["generator"]["size"] == 32
    assert description["generator"]["breadth"] == 48
    space, _ = rebuild_sampler(description, weights)
    assert space.generator.shape == shape
    place = release.save(tmp_path / "release")
    again = Latent.configure("default", {"generator": str(place)})
    assert again.plan(replace(FACTS, shape=shape), Budget(10.0, 1e-8)).directions > 0
    with pytest.raises(InputError, match="makes images of 32x48x3, the private ones are 48x32x3"):
        again.plan(replace(FACTS, shape=(48, 32, 3)), Budget(10.0, 1e-8))


def test_what_sides_are_refused() -> None:
    for kind, shape, message in (
        ("style", (32, 200, 1), "at most 4 times the shorter, got 32x200"),
        ("style", (300, 300, 1), "8 to 256 pixels a side"),
    ):
        with pytest.raises(InputError, match=message):
            Latent.configure("default", {"generator_kind": kind}).plan(replace(FACTS, shape=shape), Budget(10.0, 1e-8))
