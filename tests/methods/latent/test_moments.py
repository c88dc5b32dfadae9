"""The row of moments and its sensitivity, the rule on directions, and what is made of noisy moments."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.core.errors import InputError
from veilset.methods.latent.labelling import Discriminant
from veilset.methods.latent.moments import (
    MomentRows,
    Moments,
    Seen,
    positive,
    smat,
    svec,
    symmetric_root,
)
from veilset.methods.latent.rules import direction_count, mean_direction_count
from veilset.methods.latent.tails import TailMeans, TailRows


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 12),
    clip=st.floats(0.01, 100),
    weight=st.sampled_from([0.0, 0.1, 1.0]),
    scale=st.floats(0, 1e6),
    bands=st.integers(0, 3),
    means=st.integers(0, 5),
    share=st.sampled_from([None, 0.01, 0.9]),
    seed=st.integers(0, 999),
)
def test_no_row_is_longer_than_the_sensitivity(
    size: int, clip: float, weight: float, scale: float, bands: int, means: int, share: float | None, seed: int
) -> None:
    public = normals(30, size + 5, seed=seed + 1)
    rows = MomentRows(
        size=size,
        clip_norm=clip,
        count_weight=weight,
        mean_share=share,
        tail_means=TailMeans.of(public, size, size + means),
        tail=TailRows.of(public, size, bands, 0.9),
    )
    lengths = rows(scale * normals(20, size + 5, seed=seed)).norm(dim=1)
    assert float(lengths.max()) <= rows.sensitivity * (1 + 1e-12)


def test_the_bound_is_reached_and_no_looser() -> None:
    rows = MomentRows(size=5, clip_norm=2.0, count_weight=0.1)
    assert float(rows(100 * normals(1, 5)).norm()) == pytest.approx(math.sqrt(1.01))
    with_tail = MomentRows(size=5, clip_norm=2.0, count_weight=0.1, tail=TailRows.of(normals(50, 9), 5, 2, 0.9))
    assert float(with_tail(100 * normals(1, 9)).norm()) == pytest.approx(math.sqrt(1.01))
    with_means = replace(with_tail, tail_means=TailMeans.of(normals(50, 9), 5, 8))
    assert float(with_means(100 * normals(1, 9)).norm()) == pytest.approx(math.sqrt(1.01))


def test_svec_keeps_the_length_of_the_matrix() -> None:
    u = normals(7, 6)
    assert torch.allclose(svec(u).norm(dim=1), u.norm(dim=1).square())
    assert torch.allclose(smat(svec(u), 6), u[:, :, None] * u[:, None, :])


def test_without_noise_the_moments_come_back() -> None:
    v = normals(500, 4) @ normals(4, 4, seed=1) + 0.5
    rows = MomentRows(size=4, clip_norm=float(v.norm(dim=1).max()), count_weight=0.1)
    parts = [rows(v[:200]).sum(dim=0), rows(v[200:]).sum(dim=0)]
    moments = rows.read(torch.stack(parts), 500, 1e-9)
    assert torch.allclose(moments.counts, torch.tensor([200.0, 300.0], dtype=torch.float64))
    for found, covariance, part in zip(moments.means, moments.covariances, (v[:200], v[200:]), strict=True):
        assert torch.allclose(found, part.mean(dim=0))
        assert torch.allclose(covariance, torch.cov(part.T, correction=0))


def test_the_weights_make_the_expected_divergence_least() -> None:
    size = 10

    def divergence(mean: float, tail: float, more: int) -> float:
        return size**2 / 2 / mean + size**4 / 8 / (1 - mean - tail) + (more**2 / 2 / tail if more else 0)

    alone = MomentRows(size=size, clip_norm=1.0, count_weight=0.0)
    least = min(divergence(share / 1000, 0, 0) for share in range(1, 1000))
    assert divergence(alone.mean_weight**2, 0, 0) <= least * 1.01
    wide = replace(alone, tail_means=TailMeans.of(normals(50, 60), size, 40))
    shares = [(a / 100, b / 100) for a in range(1, 100) for b in range(1, 100 - a)]
    least = min(divergence(*pair, 30) for pair in shares)
    assert divergence(wide.mean_weight**2, wide.tail_mean_weight**2, 30) <= least * 1.01


@pytest.mark.parametrize("share", [1e-300, 1 - 2**-53])
def test_the_most_extreme_shares_leave_weights(share: float) -> None:
    tail = TailRows.of(normals(50, 9), 5, 2, 0.9)
    rows = MomentRows(size=5, clip_norm=2.0, count_weight=0.0, mean_share=share, tail=tail)
    assert rows.mean_weight > 0
    assert rows.second_weight > 0


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_share_for_the_mean_moves_noise_and_not_the_bound(share: float) -> None:
    rows = MomentRows(size=5, clip_norm=2.0, count_weight=0.0, mean_share=share)
    long = torch.full((1, 5), 9.0)
    assert float(rows(long).norm()) == pytest.approx(rows.sensitivity) == 1.0
    moments = rows.read(torch.zeros(1, 20, dtype=torch.float64), 100, 3.0)
    assert float(moments.mean_noises) == pytest.approx(2 * 3 / 100 / math.sqrt(share))
    # What two releases with these noises cost: squares of sensitivity over noise add up to those of the one sum.
    first, second = math.sqrt(share) / 3, math.sqrt(1 - share) / 3
    assert first**2 + second**2 == pytest.approx(1 / 3**2)


def test_the_rule_on_means() -> None:
    assert mean_direction_count(64, 10, 1e9, 1.0) == 64
    assert mean_direction_count(64, 10, 20, 50.0) == 10
    count = mean_direction_count(10_000, 30, 3000, 5.0)
    share = 2 * count / (2 * count + 30**2)
    assert count * 5.0 / math.sqrt(share) / 3000 == pytest.approx(0.5, rel=0.01)


def test_the_rule_on_directions() -> None:
    assert direction_count(64, 1e9, 1.0) == 64
    counts = [direction_count(64, 1000, noise) for noise in (0.5, 2, 8, 32)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == int((1000 / 4 / (math.sqrt(2) * 32)) ** (2 / 3))
    assert direction_count(64, 20, 0.01) == 10
    with pytest.raises(InputError, match="leave nothing to estimate"):
        direction_count(64, 20, 50.0)


def spiked(size: int, noise: float, seed: int) -> tuple[torch.Tensor, Moments]:
    """A covariance that deviates from 1 in two directions, and a noisy view of it."""
    directions = torch.linalg.qr(normals(size, 2, seed=seed))[0]
    truth = (
        torch.eye(size, dtype=torch.float64)
        + directions @ torch.diag(torch.tensor([2.0, -0.7]).double()) @ directions.T
    )
    half = normals(size, size, seed=seed + 100) * noise
    noisy = truth + (half + half.T) / math.sqrt(2)
    return truth, Moments(
        counts=torch.tensor([1e9]).double(),
        means=torch.zeros(1, size).double(),
        covariances=noisy[None],
        mean_noises=torch.zeros(1).double(),
        noises=torch.tensor([noise]).double(),
        tail_shifts=torch.zeros(1, 0),
        tails=torch.ones(1, 1),
    )


@pytest.mark.parametrize("noise", [0.03, 0.06])
def test_shrinking_beats_replacing_negative_eigenvalues(noise: float) -> None:
    """The three repairs, by squared error over twenty draws; see docs/methods/latent.md."""
    errors = dict.fromkeys(("replace", "linear", "spiked"), 0.0)
    one = torch.eye(30, dtype=torch.float64)
    public = Seen(mean=torch.zeros(30).double(), covariance=one)
    for seed in range(20):
        truth, moments = spiked(30, noise, seed)
        for repair in errors:
            found = positive(one + moments.deviations_from(public, repair)[0])  # type: ignore[arg-type]
            errors[repair] += float((found - truth).square().sum())
    assert errors["spiked"] < 0.5 * errors["linear"] < 0.5 * errors["replace"]


def test_pure_noise_is_shrunk_away() -> None:
    one = torch.eye(40, dtype=torch.float64)
    half = normals(40, 40) * 0.2
    moments = Moments(
        counts=torch.tensor([1e9]).double(),
        means=torch.zeros(1, 40).double(),
        covariances=(one + (half + half.T) / math.sqrt(2))[None],
        mean_noises=torch.zeros(1).double(),
        noises=torch.tensor([0.2]).double(),
        tail_shifts=torch.zeros(1, 0),
        tails=torch.ones(1, 1),
    )
    public = Seen(mean=torch.zeros(40).double(), covariance=one)
    assert float(moments.deviations_from(public, "spiked").norm()) < 0.3 * float((half + half.T).norm() / math.sqrt(2))


def test_positive_and_root() -> None:
    matrix = torch.diag(torch.tensor([2.0, -1.0, 0.5])).double()
    fixed = positive(matrix, 0.1)
    assert torch.allclose(torch.linalg.eigvalsh(fixed), torch.tensor([0.1, 0.5, 2.0]).double())
    assert torch.allclose(symmetric_root(fixed) @ symmetric_root(fixed), fixed)


def test_what_the_inversion_loses_is_undone() -> None:
    """Linear-normal case: v seen through noise, answered by the posterior mean under the public prior."""
    size, count = 3, 200_000
    error = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)  # variances of what is seen beside v
    gain = 1 / (1 + error)
    rows = MomentRows(size=size, clip_norm=1e6, count_weight=0.0)

    def answers(v: torch.Tensor, seed: int) -> torch.Tensor:
        return gain * (v + error.sqrt() * normals(count, size, seed=seed))

    seen = Seen.of(answers(normals(count, size, seed=1), 2), rows)
    shift, deviations = torch.tensor([1.0, -1.0, 0.5]).double(), torch.tensor([0.5, 1.5, 1.0]).double()
    private = answers(shift + deviations * normals(count, size, seed=3), 4)
    shown = private.mean(dim=0)[None], torch.cov(private.T)[None]
    means, covariances = seen.undone(*shown, "shift")
    assert torch.allclose(means[0], shift, atol=0.02)
    assert torch.allclose(covariances[0], torch.diag(deviations.square()), atol=0.05)
    half, plain = seen.undone(*shown, "mean"), seen.undone(*shown, "spread")
    assert torch.equal(half[0], means)
    assert torch.equal(half[1], plain[1])
    assert float((plain[0] - shift).norm()) > 0.3
    assert seen.undone(*shown, "none") == shown


def test_means_are_shrunk_by_what_noise_explains() -> None:
    """Over many draws the shrunk mean is nearer to the truth, and little noise leaves it alone."""
    truth = 0.3 * torch.ones(20).double()
    public = Seen(mean=torch.zeros(20).double(), covariance=torch.eye(20).double())

    def error(noise: float, repair: str) -> float:
        total = 0.0
        for seed in range(20):
            moments = Moments(
                counts=torch.tensor([1e9]).double(),
                means=(truth + noise * normals(20, seed=seed))[None],
                covariances=public.covariance[None],
                mean_noises=torch.tensor([noise]).double(),
                noises=torch.zeros(1).double(),
                tail_shifts=torch.zeros(1, 0),
                tails=torch.ones(1, 1),
            )
            shift = moments.shifts_from(public, repair)  # type: ignore[arg-type]
            total += float((shift[0] - truth).square().sum())
        return total

    assert error(0.5, "linear") < 0.6 * error(0.5, "replace")
    assert error(0.01, "linear") == pytest.approx(error(0.01, "replace"), rel=0.1)


def test_the_discriminant_tells_classes_apart() -> None:
    means = torch.tensor([[2.0, 0.0], [-2.0, 0.0]]).double()
    judge = Discriminant.of(torch.tensor([0.25, 0.75]).double(), means, torch.eye(2).double().repeat(2, 1, 1))
    assert judge.probabilities(means).argmax(dim=1).tolist() == [0, 1]
    assert judge.probabilities(torch.zeros(1, 2))[0].tolist() == pytest.approx([0.25, 0.75])


def test_means_of_a_tail_tell_classes_apart_that_agree_in_all_else() -> None:
    means, covariances = torch.zeros(2, 2).double(), torch.eye(2).double().repeat(2, 1, 1)
    tail, variances = torch.tensor([[1.0], [-1.0]]).double(), torch.full((2, 1), 0.5).double()
    judge = Discriminant.of(torch.tensor([0.5, 0.5]).double(), means, covariances, tail, variances)
    found = judge.probabilities(torch.tensor([[0.0, 0.0, 1.0, 9.0], [0.0, 0.0, -1.0, -9.0]]))
    # The logit between normals of variance 1/2 at 1 and -1 is 2 * 1 * 1 / (1/2).
    assert found[:, 0].tolist() == pytest.approx([1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))])
