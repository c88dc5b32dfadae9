"""The eigen generator: there and back, its own distribution, its file, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.latent.choices import InversionTraining, SearchSettings
from veilset.methods.latent.generators.eigen import fit_eigen
from veilset.methods.latent.generators.recipes import eigen_size
from veilset.methods.latent.inversion import train_inversion
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.models.generators.eigen import EigenGenerator
from veilset.models.generators.files import load_generator, save_generator


def public(count: int = 300, channels: int = 1) -> ImageSet:
    """Smooth pictures of three numbers each, well inside the range."""
    coins = np.random.default_rng(0)
    rows, columns = np.mgrid[0:16, 0:16] / 15
    waves = np.stack([np.sin(3 * rows), np.cos(4 * columns), np.sin(5 * rows * columns)])
    pictures = 0.5 + 0.1 * np.einsum("nk,kij->nij", coins.standard_normal((count, 3)).clip(-1.5, 1.5), waves)
    images = np.repeat((pictures[..., None] * 255).round().astype(np.uint8), channels, axis=3)
    return ImageSet(images, np.zeros(count, dtype=np.int64))


def pixels_of(images: ImageSet) -> torch.Tensor:
    return torch.from_numpy(images.images.copy()).permute(0, 3, 1, 2).float() / 255


def test_images_turn_into_latents_and_back() -> None:
    records = public(channels=3)
    generator = fit_eigen(records)
    pixels = pixels_of(records)
    assert torch.allclose(generator(generator.encode(pixels)), pixels, atol=0.6 / 255)
    assert generator.latent_size == 299 < eigen_size(records.shape)


def test_draws_have_the_mean_and_the_covariance_of_public_images_and_are_none_of_them() -> None:
    records = public()
    generator = fit_eigen(records)
    w = generator.draw(20_000, torch.Generator().manual_seed(0))
    codes = generator.encode(pixels_of(records))
    assert torch.allclose(w.mean(dim=0), codes.mean(dim=0), atol=0.05)
    assert torch.allclose(torch.cov(w.T)[:3, :3], torch.cov(codes.T)[:3, :3], rtol=0.1, atol=0.02)
    nearest = torch.cdist(w[:1000], codes).min(dim=1).values
    usual = 0.1 * float(torch.cov(codes.T).trace().sqrt())
    assert float(nearest.median()) > 0.3 * usual


def test_mirrored_images_are_kept_too() -> None:
    records = public(40)
    generator = fit_eigen(records, mirrored=True)
    assert generator.pictures == 80
    mirrored = pixels_of(records).flip(3)
    assert torch.allclose(generator(generator.encode(mirrored)), mirrored, atol=0.6 / 255)


def test_a_file_keeps_it(tmp_path: Path) -> None:
    generator = fit_eigen(public(40))
    save_generator(generator, tmp_path / "eigen.safetensors")
    loaded = load_generator(tmp_path / "eigen.safetensors")
    assert isinstance(loaded, EigenGenerator)
    w = generator.draw(5, torch.Generator().manual_seed(1))
    assert torch.equal(w, loaded.draw(5, torch.Generator().manual_seed(1)))
    assert torch.equal(generator.render(w), loaded.render(w))


def test_its_way_back_is_the_search_and_nothing_is_trained(tmp_path: Path) -> None:
    records = public()
    space = LatentSpace.of(fit_eigen(records), 0)
    network = train_inversion(space, InversionTraining(), seed=0, checkpoint=tmp_path / "inversion.pt")
    assert not (tmp_path / "inversion.pt").exists()
    images = torch.from_numpy(records.images.copy())
    found = LatentSearch(space, network, SearchSettings())(images)
    assert torch.allclose(space.stored(found).permute(0, 2, 3, 1).int(), images.int(), atol=1)
    # Each image alone, whatever its company.
    assert torch.equal(found[7:8], LatentSearch(space, network, SearchSettings())(images[7:8]))


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="at least 16 public images"):
        fit_eigen(public(10))
    with pytest.raises(InputError, match="all the same"):
        fit_eigen(ImageSet(np.full((20, 16, 16, 1), 7, dtype=np.uint8), np.zeros(20, dtype=np.int64)))
    with pytest.raises(InputError, match="at least 1"):
        EigenGenerator(16, 1, 0, 5)
