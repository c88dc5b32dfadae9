"""Sums keep the sensitivity that is claimed in spite of rounding: bits, norms, and movement on neighbours."""

import pytest
import torch
from reference import cross_entropy, flat
from torch import nn

from veilset.dpsgd import ClippedGradients, LinearHeadGradients
from veilset.dpsgd.exact import MARGIN, block_sum, clip_factors, row_squares, row_sum
from veilset.dpsgd.layers.gram import ghost_squares
from veilset.dpsgd.layers.linear import _grams


def network() -> nn.Module:
    """A convolution of each way: gathered, by rows, ghost; a norm and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * 4, 3),
    )


def engines() -> dict[str, tuple[object, torch.Tensor]]:
    steep = lambda outputs, targets: 1e3 * cross_entropy(outputs, targets)  # noqa: E731
    return {
        "network": (ClippedGradients(network(), steep, 0.5), torch.randn(75, 1, 8, 8)),
        "written": (ClippedGradients(network(), steep, 0.5, keep_fraction=0.9), torch.randn(75, 1, 8, 8)),
        "head": (LinearHeadGradients(nn.Linear(20, 3), 0.01), torch.randn(300, 20)),
    }


@pytest.mark.parametrize("name", ["network", "written", "head"])
def test_what_a_unit_adds_has_the_same_bits_in_any_company(name):
    engine, inputs = engines()[name]
    targets = torch.arange(len(inputs)) % 3
    alone = flat(engine.sum(inputs[:1], targets[:1]))
    zeros = torch.full_like(inputs, torch.nan)  # units that count as nothing
    for place in (1, 31, len(inputs) - 1):
        company = zeros.clone()
        company[place] = inputs[0]
        assert torch.allclose(flat(engine.sum(company, targets * 0)), alone, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["network", "written", "head"])
def test_neighbours_are_no_further_apart_than_the_clip_norm(name):
    engine, inputs = engines()[name]
    targets = torch.arange(len(inputs)) % 3
    whole = flat(engine.sum(inputs, targets))
    for left in (0, 17, len(inputs) - 1):
        kept = torch.arange(len(inputs)) != left
        moved = float((whole - flat(engine.sum(inputs[kept], targets[kept]))).norm())
        assert engine.sensitivity * (1 - MARGIN) * (1 - 1e-5) <= moved <= engine.sensitivity


def test_large_rows_before_a_small_one_do_not_swallow_it():
    """In single precision the sum of these rows moved by several clip norms when one of them was left out."""
    count = 20_000
    rows = torch.zeros(count, 50)
    rows[:, 0] = 1.0
    rows[1:, 1:] = 1e-4 * torch.randn(count - 1, 49, generator=torch.Generator().manual_seed(0))
    blocks = torch.zeros(count, dtype=torch.int64)
    whole = block_sum(rows, blocks, 1, 1.0)
    moved = float((whole - block_sum(rows[1:], blocks[1:], 1, 1.0)).norm())
    assert moved <= 1.0
    assert moved == pytest.approx(1 - MARGIN, rel=1e-5)
    assert block_sum(rows[:0], blocks[:0], 3, 1.0).shape == (3, 50)


@pytest.mark.parametrize("width", [3, 64, 1000, 100_003])
def test_a_norm_is_never_called_smaller_than_it_is(width):
    coins = torch.Generator().manual_seed(width)
    rows = torch.randn(20, width, generator=coins).pow_(5).mul_(1e3)
    true = rows.double().norm(dim=1)
    factors = clip_factors(row_squares(rows), torch.zeros(20, dtype=torch.float64), 0.1)
    assert float((factors * true).max()) <= 0.1 * (1 - MARGIN)
    assert float((factors * true).min()) >= 0.1 * (1 - MARGIN) * (1 - 1e-5)


@pytest.mark.parametrize("cancelling", [0.0, 1e-4, 1e-8])
def test_a_ghost_norm_is_never_smaller_than_it_is(cancelling):
    """Two positions whose outer products almost cancel."""
    coins = torch.Generator().manual_seed(1)
    values = torch.randn(30, 2, 40, generator=coins)
    upstream = torch.randn(30, 2, 50, generator=coins)
    values[:, 1] = values[:, 0]
    upstream[:, 1] = -upstream[:, 0] * (1 + cancelling)
    squares, gross = ghost_squares(_grams, values, upstream)
    true = torch.bmm(upstream.double().transpose(1, 2), values.double()).flatten(1).square().sum(1)
    assert bool((squares >= true).all())
    assert bool((squares <= true + 1e-12 * gross).all())


def test_a_unit_whose_terms_are_huge_and_cancel_is_scaled_by_their_size():
    squares, gross = torch.tensor([1.0, 1.0], dtype=torch.float64), torch.tensor([1.0, 1e12], dtype=torch.float64)
    factors = clip_factors(squares, gross, 1.0)
    assert float(factors[0]) == pytest.approx(1 - MARGIN, rel=1e-5)
    assert float(factors[1]) * 1e6 <= 2**6


def test_a_factor_of_zero_drops_what_is_no_number():
    rows = torch.ones(3, 200_000)
    rows[1] = torch.nan
    total = row_sum(rows, torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64))
    assert torch.equal(total, torch.full((200_000,), 2.5, dtype=torch.float64))


class ByPlace(nn.Module):
    """Adds something that depends on a row's place in the batch, in its last bits alone."""

    def forward(self, x):
        return x + 1e-6 * torch.arange(len(x))[:, None]


def test_a_network_whose_bits_depend_on_places_goes_one_by_one():
    model = nn.Sequential(nn.Linear(4, 4), ByPlace(), nn.Linear(4, 3))
    engine = ClippedGradients(model, cross_entropy, 0.5)
    engine.sum(torch.rand(5, 4), torch.zeros(5, dtype=torch.int64))
    assert engine._units_at_once == engine._last_units == 1
