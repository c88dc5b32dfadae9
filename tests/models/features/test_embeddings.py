"""Drawn pictures and image embeddings: lengths, kernels, independence of records."""

import pytest
import torch

from veilset.data.procedural_images import drawn_patterns
from veilset.models.features.embeddings import FeatureForm, ImageEmbedding, hermite_features


def coins(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(form: FeatureForm = "scattering", size: int = 16, channels: int = 1) -> ImageEmbedding:
    public = drawn_patterns(120, size, channels, coins())
    return ImageEmbedding(form, public, code_size=32, random_features=256, generator=coins(1))


@pytest.mark.parametrize(("size", "channels"), [(16, 1), (28, 1), (32, 3)])
def test_patterns_are_pictures(size: int, channels: int) -> None:
    pictures = drawn_patterns(31, size, channels, coins())
    assert pictures.shape == (31, channels, size, size)
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    assert (pictures.flatten(1).std(dim=1) > 0.01).float().mean() > 0.8  # not blank
    torch.testing.assert_close(pictures, drawn_patterns(31, size, channels, coins()))


@pytest.mark.parametrize("form", ["scattering", "pixels"])
@pytest.mark.parametrize("channels", [1, 3])
def test_both_parts_have_length_one(form: FeatureForm, channels: int) -> None:
    code, features = make(form, channels=channels)(torch.rand(5, channels, 16, 16))
    assert code.shape == (5, 32)
    assert features.shape == (5, 256)
    torch.testing.assert_close(code.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(5))


def test_code_alone_is_the_same_code() -> None:
    embedding, images = make(), torch.rand(3, 1, 16, 16)
    torch.testing.assert_close(embedding.code(images), embedding(images)[0])


def test_records_do_not_mix() -> None:
    embedding, images = make(), torch.rand(6, 1, 16, 16)
    together, alone = embedding(images), embedding(images[2:3])
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both[2:3], one, atol=1e-5, rtol=1e-4)


def test_brightness_is_not_forgotten() -> None:
    # A group-normed code alone would call these the same.
    embedding, image = make(), drawn_patterns(3, 16, 1, coins(5))[:1]
    _, features = embedding(torch.cat([image, 0.4 * image]))
    assert (features[0] * features[1]).sum() < 0.95


def test_gradient_reaches_the_pixels() -> None:
    images = torch.rand(2, 1, 16, 16, requires_grad=True)
    make()(images)[1].sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_the_seed_decides_the_features() -> None:
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(make()(images)[1], make()(images)[1])


@pytest.mark.parametrize("form", ["scattering", "pixels"])
def test_what_is_summed_is_no_longer_than_one_and_comes_back(form: FeatureForm) -> None:
    """Of pictures it was fixed by, of others, and of images unlike any picture."""
    embedding = make(form)
    strange = torch.cat([torch.zeros(1, 1, 16, 16), torch.ones(1, 1, 16, 16), torch.rand(6, 1, 16, 16)])
    for images in (drawn_patterns(40, 16, 1, coins()), strange):
        rows = embedding.summed(images)
        assert rows.norm(dim=1).max() <= 1 + 1e-5
        short = rows.norm(dim=1) < 1 - 1e-4
        torch.testing.assert_close(embedding.restored(rows[short]), embedding(images)[1][short], atol=1e-5, rtol=0)
    assert embedding.radius < 0.97, "nothing would be gained"


def test_hermite_features_are_those_of_a_gaussian_kernel():
    """Mehler's formula, with enough orders."""
    x = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)[:, None]
    rows = hermite_features(x, 80, 0.5)[:, 0]
    wanted = torch.exp(-0.5 / (1 - 0.25) * (x - x.T).square())
    found = rows @ rows.T
    assert torch.allclose(found / found[0, 0], wanted, atol=1e-6)


def test_a_hermite_embedding_has_rows_of_length_one_each_alone():
    shown = torch.rand(200, 1, 16, 16, generator=coins(0))
    made = ImageEmbedding("pixels", shown, code_size=16, random_features=256, generator=coins(1), kernel="hermite")
    images = torch.cat(
        [torch.rand(4, 1, 16, 16, generator=coins(2)), torch.zeros(1, 1, 16, 16), torch.ones(1, 1, 16, 16)]
    )
    features = made(images)[1]
    assert features.shape == (6, 256)
    assert torch.allclose(features.norm(dim=1), torch.ones(6), atol=1e-5)
    assert float(made.centred(features).norm(dim=1).max()) <= 1 + 1e-6
    assert torch.allclose(made(images[2:3])[1], features[2:3], atol=1e-6)
