"""The strength of directions that are not estimated: bands, and what comes back of noisy sums."""

from itertools import pairwise

import pytest
import torch

from veilset.methods.latent.moments import MomentRows, Moments
from veilset.methods.latent.sampling import ClassLatents
from veilset.methods.latent.tails import TailMeans, TailRows

FIRST, LAST = 3, 40


def normals(count: int, seed: int, strength: float = 1.0) -> torch.Tensor:
    """Rows of deviation 1 in the first coordinates and of `strength` in the others."""
    v = torch.randn(count, LAST, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v[:, FIRST:] *= strength
    return v


def tail_of(bands: int) -> TailRows:
    tail = TailRows.of(normals(4000, 0), FIRST, bands, 0.9)
    assert tail is not None
    return tail


@pytest.mark.parametrize("bands", [1, 4, 64])
def test_bands_cover_what_is_not_estimated_once(bands: int) -> None:
    edges = tail_of(bands).edges
    assert edges[0] == FIRST
    assert edges[-1] == LAST
    assert all(start < end for start, end in pairwise(edges))
    assert len(edges) <= bands + 1


def test_there_is_no_tail_where_nothing_is_left_or_wanted() -> None:
    assert TailRows.of(normals(10, 0), LAST, 4, 0.9) is None
    assert TailRows.of(normals(10, 0), FIRST, 0, 0.9) is None


def moments_of(strengths: tuple[float, ...], noise: float, count: int = 4000) -> torch.Tensor:
    """The tails of classes of these strengths, from sums with simulated noise."""
    rows = MomentRows(size=FIRST, clip_norm=4.0, count_weight=0.1, tail=tail_of(4))
    sums = torch.stack([rows(normals(count, 7 + seed, one)).sum(dim=0) for seed, one in enumerate(strengths)])
    sums += noise * rows.sensitivity * torch.randn(sums.shape, generator=torch.Generator().manual_seed(1)).double()
    return rows.read(sums, count * len(strengths), noise).tails


def test_each_class_gets_its_own_strength_back() -> None:
    weak, same = moments_of((0.3, 1.0), noise=2.0)
    assert len(weak) == LAST - FIRST
    assert torch.allclose(weak, torch.full_like(weak, 0.3), atol=0.05)
    assert torch.allclose(same, torch.ones_like(same), atol=0.05)


def test_noise_leaves_the_public_strength() -> None:
    """Without the correction one band or another would be far from 1; noise here is many times the signal."""
    (found,) = moments_of((1.0,), noise=3000.0)
    assert torch.allclose(found, torch.ones_like(found), atol=0.5)


def test_rows_of_weak_tails_have_weaker_samples() -> None:
    means, covariances = torch.zeros(1, FIRST).double(), torch.eye(FIRST).double()[None]
    tails = torch.full((1, LAST - FIRST), 0.3)
    latents = ClassLatents.of(torch.ones(1), means, covariances, tails=tails)
    v = normals(3000, 3).float()
    moved = latents.moved(v, 0)
    assert torch.allclose(moved[:, FIRST:], 0.3 * v[:, FIRST:])
    assert torch.equal(ClassLatents.of(torch.ones(1), means, covariances).moved(v, 0)[:, FIRST:], v[:, FIRST:])


def with_means(means: list[float], noise: float, count: int = 4000) -> tuple[MomentRows, Moments]:
    """What is read of classes whose tails have these means, from sums with simulated noise."""
    public = normals(4000, 0)
    rows = MomentRows(
        size=FIRST,
        clip_norm=4.0,
        count_weight=0.1,
        tail_means=TailMeans.of(public, FIRST, 30),
        tail=TailRows.of(public, FIRST, 4, 0.9),
    )
    shifted = torch.nn.functional.pad(torch.ones(30 - FIRST).double(), (FIRST, LAST - 30))
    sums = torch.stack([rows(normals(count, 7 + seed) + mean * shifted).sum(dim=0) for seed, mean in enumerate(means)])
    sums += noise * rows.sensitivity * torch.randn(sums.shape, generator=torch.Generator().manual_seed(1)).double()
    return rows, rows.read(sums, count * len(means), noise)


def test_each_class_gets_the_means_of_its_tail_back_and_its_spread_is_what_they_leave() -> None:
    rows, moments = with_means([0.5, -0.5], noise=2.0)
    means, scales = rows.tail_undone(moments.tail_shifts, moments.tails, "shift")
    assert means is not None
    assert means.shape == scales.shape == (2, LAST - FIRST)
    # Clipping to the usual length shortens what is long, which is undone by what it does to public images.
    assert torch.allclose(means[:, : 30 - FIRST].mean(dim=1), torch.tensor([0.5, -0.5]).double(), atol=0.07)
    assert not means[:, 30 - FIRST :].any()
    assert torch.allclose(scales, torch.ones_like(scales), atol=0.1)
    latents = ClassLatents.of(
        torch.ones(2) / 2,
        torch.zeros(2, FIRST).double(),
        torch.eye(FIRST).double().repeat(2, 1, 1),
        tail_means=means,
        tails=scales,
    )
    moved = latents.moved(normals(3000, 3).float(), 1)
    assert torch.allclose(moved[:, FIRST:].mean(dim=0).double(), means[1], atol=0.08)


def test_means_of_a_tail_that_are_noise_are_left_at_the_public_ones() -> None:
    _, moments = with_means([0.0], noise=300.0)
    assert float(moments.tail_shifts.norm()) < 0.5 * 300 / 4000 * (30 - FIRST)
