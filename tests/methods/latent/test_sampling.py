"""From a source of latents to the fitted Gaussians: moments come out right, and preference spares movement."""

import itertools

import pytest
import torch

from veilset.methods.latent.labelling import Head
from veilset.methods.latent.sampling import ClassLatents

COVARIANCE = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
MEANS = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).double()
SHARES = torch.tensor([0.4, 0.6])


def source(count: int, seed: int = 0) -> torch.Tensor:
    """Rows of mean 0 and covariance 1 that are far from normal: two heaps in the first number."""
    coins = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 5, generator=coins)
    rows[:, 0] = 0.9 * (2 * torch.randint(0, 2, (count,), generator=coins) - 1) + (1 - 0.81) ** 0.5 * rows[:, 0]
    return rows


def drawn(latents: ClassLatents, count: int = 50_000, truncation: float = 1.0) -> torch.Tensor:
    coins = torch.Generator().manual_seed(1)
    seeds = itertools.count(2)
    chosen = torch.ones(count, dtype=torch.long)
    return latents.draw(lambda wanted: source(wanted, seed=next(seeds)), chosen, coins, truncation)


@pytest.mark.parametrize("prefer", [False, True])
def test_samples_have_the_fitted_moments_and_the_rest_stays_public(prefer: bool) -> None:
    latents = ClassLatents.of(SHARES, MEANS, COVARIANCE.repeat(2, 1, 1), source(50_000), prefer=prefer)
    v = drawn(latents)
    assert torch.allclose(v.mean(dim=0), torch.tensor([0.0, -1.0, 0, 0, 0]), atol=0.03)
    expected = torch.eye(5)
    expected[:2, :2] = COVARIANCE
    assert torch.allclose(torch.cov(v.T), expected, atol=0.08)


def test_a_normal_source_needs_no_draws() -> None:
    latents = ClassLatents.of(SHARES, MEANS, COVARIANCE.repeat(2, 1, 1))
    assert torch.allclose(latents.maps[0] @ latents.maps[0], COVARIANCE.float(), atol=1e-5)
    assert not latents.middles.any()


def test_truncation_pulls_to_the_mean() -> None:
    latents = ClassLatents.of(SHARES, MEANS, COVARIANCE.repeat(2, 1, 1), source(5000), prefer=True)
    assert torch.equal(drawn(latents, 10, 0.0), torch.tensor([0.0, -1.0, 0, 0, 0]).expand(10, 5))


def test_preferred_draws_are_moved_less_and_half_of_them_still_count() -> None:
    mean, covariance = torch.tensor([[1.0, 0.5]]).double(), 0.3 * torch.eye(2).double()[None]
    rows = source(20_000)
    plain = ClassLatents.of(torch.ones(1), mean, covariance, rows)
    preferring = ClassLatents.of(torch.ones(1), mean, covariance, rows, prefer=True)
    # How far the middle of the draws is from where they go, and how much their spread must change.
    assert (preferring.middles - mean).norm() < 0.6 * (plain.middles - mean).norm()
    assert (preferring.maps[0] - torch.eye(2)).norm() < (plain.maps[0] - torch.eye(2)).norm()
    v = rows[:, :2]
    logarithms = v @ preferring.slopes[0] - 0.5 * (v @ preferring.curves[0] * v).sum(dim=1) - preferring.offsets[0]
    weights = logarithms.clamp(max=0).exp()
    assert float(weights.sum().square() / weights.square().sum()) == pytest.approx(len(v) / 2, rel=0.01)


def test_no_draw_is_used_twice_and_classes_keep_their_places() -> None:
    far = torch.tensor([[4.0, 0.0], [-4.0, 0.0]]).double()
    latents = ClassLatents.of(SHARES, far, 0.1 * torch.eye(2).double().repeat(2, 1, 1), source(5000), prefer=True)
    chosen = torch.tensor([0, 1, 1, 0, 1] * 20)
    coins, seeds = torch.Generator().manual_seed(3), itertools.count(4)
    v = latents.draw(lambda count: source(count, seed=next(seeds)), chosen, coins)
    assert torch.equal(v[:, 0] < 0, chosen == 1)
    assert all(len(v[chosen == number].unique(dim=0)) == int((chosen == number).sum()) for number in (0, 1))


@pytest.mark.parametrize("shares", [[0.5, 0.3, 0.2], [0.98, 0.01, 0.01]])
def test_a_classifier_answers_as_often_as_it_is_asked_to(shares: list[float]) -> None:
    coins = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(4, 3).requires_grad_(False)
    linear.weight.copy_(3 * torch.randn(3, 4, generator=coins))
    head = Head(linear=linear, stretch=torch.ones(4), findings=False)
    v, wanted = torch.randn(500, 6, generator=coins), torch.tensor(shares).double()
    matched = head.with_shares(v, wanted)
    assert torch.allclose(matched.probabilities(v).mean(dim=0).double(), wanted, atol=1e-4)
    # A class gains or loses the same in all images, whose order stays; the head itself is as it was.
    before, after = head.probabilities(v), matched.probabilities(v)
    ratios = (after / before).log()
    assert torch.allclose((ratios[:, 1] - ratios[:, 0]).std(), torch.zeros(()), atol=1e-3)
    assert torch.equal(head.probabilities(v), before)
