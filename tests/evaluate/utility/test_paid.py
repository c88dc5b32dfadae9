"""The paid accuracy: right on average, with an interval that covers, on the account, and never for free."""

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.evaluate.utility.paid import _estimate, paid_accuracy
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import check_chain
from veilset.privacy.vault import Vault


class Bright(torch.nn.Module):
    """Says class 1 for bright images."""

    def forward(self, images):
        light = images.mean(dim=(1, 2, 3))
        return torch.stack([torch.full_like(light, 0.5), light], dim=1)


def records(count=500, wrong=100, groups=None):
    labels = np.arange(count) % 2
    images = np.where(labels[:, None, None, None] == 1, 200, 20) * np.ones((1, 16, 16, 1))
    images[:wrong] = 220 - images[:wrong]
    return ImageSet(images.astype(np.uint8), labels, groups=groups)


def buy(tmp_path, vault, name="run", account=None, **settings):
    account = account or Account(tmp_path / "account.sqlite")
    settings = {"epsilon": 1.0, "delta": None} | settings
    return paid_accuracy(Bright(), vault, account=account, workspace=tmp_path / name, student="bright", **settings)


def test_it_is_near_the_truth_and_paid_for(tmp_path):
    result = buy(tmp_path, Vault(records()))
    account = Account(tmp_path / "account.sqlite")
    assert result.delta == 1e-4
    assert result.epsilon <= 1
    # 0.8 +- 5 deviations of the noise on half the balance, over n
    assert abs(result.accuracy - 0.8) < 5 * result.noise_multiplier / 2 / 500
    assert result.interval[0] < 0.8 < result.interval[1]
    assert [r.method for r in account.reservations] == ["paid test accuracy"]
    events = check_chain(result.ledger)
    assert epsilon_of(events, result.delta) == pytest.approx(result.epsilon)
    assert tuple(events) == account.reservations[0].events
    assert result.to_json()["needs_private_data"] is False


def test_noise_differs_from_call_to_call(tmp_path):
    vault = Vault(records())
    first, second = (buy(tmp_path, vault, name) for name in ("a", "b"))
    assert first.accuracy != second.accuracy
    assert len(Account(tmp_path / "account.sqlite").reservations) == 2


def test_an_account_that_cannot_pay_refuses_before_anything_is_read(tmp_path):
    account = Account(tmp_path / "account.sqlite")
    account.set_limit(Budget(0.5, 1e-4))
    with pytest.raises(BudgetError, match="overdraw"):
        buy(tmp_path, Vault(records()), account=account)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert account.reservations == []


def test_a_group_counts_once(tmp_path):
    vault = Vault(records(600, 0, groups=np.repeat(np.arange(150), 4)), unit="group")
    result = buy(tmp_path, vault, epsilon=8.0)
    assert (result.unit, result.units) == ("group", 150)
    assert result.accuracy > 0.9


def test_an_unfinished_purchase_is_not_made_twice(tmp_path):
    buy(tmp_path, Vault(records()))
    with pytest.raises(InputError, match="its share is spent"):
        buy(tmp_path, Vault(records()))
    assert len(Account(tmp_path / "account.sqlite").reservations) == 1


def test_the_interval_covers_both_errors():
    """Truth 0.7; a test set of 200 and noise of 17 on the balance: 95 % of the intervals hold it."""
    coins, runs, covered = np.random.default_rng(0), 1000, 0
    for _ in range(runs):
        right = coins.binomial(200, 0.7)
        _, (low, high) = _estimate(2 * right - 200 + coins.normal(0, 17), 200, 17.0)
        covered += low <= 0.7 <= high
    assert 0.922 < covered / runs < 0.978  # 0.95 +- 4 standard errors of 1000 runs
    assert _estimate(290, 200, 17.0)[0] == 1.0
