"""The strength of directions that are not estimated: bands, and what comes back of noisy sums."""

from itertools import pairwise

import pytest
import torch

from veilset.methods.latent.moments import MomentRows
from veilset.methods.latent.sampling import ClassLatents
from veilset.methods.latent.tails import TailRows

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
