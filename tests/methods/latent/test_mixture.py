"""Rows of a round and their sensitivity, and what expectation-maximisation finds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.methods.latent.mixture import MeanRows, Mixture
from veilset.methods.latent.moments import clipped


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture_of(components: int, classes: int, size: int, seed: int) -> Mixture:
    """Components as strange as noise may leave them."""
    halves = normals(classes, size, size, seed=seed + 1)
    return Mixture(
        shares=normals(classes, components, seed=seed + 2).softmax(dim=1),
        means=normals(classes, components, size, seed=seed),
        class_means=torch.zeros(classes, size).double(),
        class_covariances=halves + halves.mT,
    )


@settings(deadline=None, max_examples=40)
@given(
    components=st.integers(1, 5),
    classes=st.integers(1, 3),
    size=st.integers(1, 6),
    clip=st.floats(0.01, 100),
    scale=st.floats(0, 1e6),
    seed=st.integers(0, 999),
)
def test_no_row_is_longer_than_the_sensitivity(
    components: int, classes: int, size: int, clip: float, scale: float, seed: int
) -> None:
    rows = MeanRows(size=size, clip_norm=clip, count_weight=0.1)
    mixture = mixture_of(components, classes, size, seed)
    v, labels = scale * normals(20, size + 2, seed=seed), torch.arange(20) % classes
    shared = mixture.responsibilities(clipped(v[:, :size], clip), labels)
    assert bool((shared >= 0).all())
    assert torch.allclose(shared.sum(dim=1), torch.ones(20).double())
    lengths = mixture.rows(rows, v, labels).norm(dim=1)
    assert float(lengths.max()) <= rows.sensitivity * (1 + 1e-9)


def test_a_long_record_of_one_component_reaches_the_bound() -> None:
    mixture = Mixture(
        shares=torch.tensor([[0.5, 0.5]]).double(),
        means=torch.tensor([[[3.0, 0.0], [-3.0, 0.0]]]).double(),
        class_means=torch.zeros(1, 2).double(),
        class_covariances=torch.diag(torch.tensor([9.02, 0.1]).double())[None],
    )
    rows = MeanRows(size=2, clip_norm=4.0, count_weight=0.1)
    far = torch.tensor([[50.0, 0.0]]).double()
    assert float(mixture.rows(rows, far, torch.zeros(1, dtype=torch.long)).norm()) == pytest.approx(math.sqrt(1.01))


def test_responsibilities_are_those_of_bayes_in_the_own_class() -> None:
    mixture = mixture_of(2, 2, 3, 5)
    v, labels = normals(6, 3, seed=9), torch.tensor([0, 1, 0, 1, 1, 0])
    found = mixture.responsibilities(v, labels)
    for i, label in enumerate(labels.tolist()):
        gaussian = torch.distributions.MultivariateNormal(mixture.means[label], mixture.covariances[label])
        likely = mixture.shares[label] * gaussian.log_prob(v[i]).exp()
        assert torch.allclose(found[i], likely / likely.sum())


def test_rounds_without_noise_find_the_heaps() -> None:
    centres = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 3.0]]).double()
    v = torch.cat([centres[i] + 0.5 * normals(200 * (i + 1), 2, seed=i) for i in range(3)])
    rows = MeanRows(size=2, clip_norm=20.0, count_weight=0.1)
    mean, covariance = v.mean(dim=0)[None], torch.cov(v.T)[None]
    mixture = Mixture.of(mean, covariance, 3, torch.Generator().manual_seed(0))
    assert torch.allclose(mixture.shares.sum(dim=1), torch.ones(1).double())
    for _ in range(30):
        sums = mixture.rows(rows, v, torch.zeros(len(v), dtype=torch.long)).sum(dim=0)
        mixture = mixture.moved(sums[None], rows, 0.0)
    nearest = torch.cdist(centres, mixture.means[0])
    assert float(nearest.min(dim=1).values.max()) < 0.15
    assert mixture.shares[0, nearest.argmin(dim=1)].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.02)
    assert torch.allclose(mixture.covariances[0], 0.25 * torch.eye(2).double(), atol=0.05)


def test_means_of_pure_noise_stay_at_the_mean_of_the_class() -> None:
    mixture = mixture_of(3, 1, 40, 0)
    rows = MeanRows(size=40, clip_norm=6.0, count_weight=0.1)
    sums = torch.cat([torch.full((3, 1), 10.0).double(), 50 * normals(3, 40)], dim=1).reshape(1, -1)
    noisy = 6.0 * 50 / 100
    moved = mixture.moved(sums, rows, 50 / rows.sensitivity)
    assert float(moved.means.norm()) < 0.5 * noisy * math.sqrt(120)
