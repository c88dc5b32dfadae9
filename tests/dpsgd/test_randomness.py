"""Random numbers inside a private step: drawn for each unit by the session, or refused by name."""

import hashlib

import numpy as np
import pytest
import torch
from reference import cross_entropy, flat
from torch import nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.dpsgd import ClippedGradients, PrivateTraining, train_private
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.training.augment import AugmentConfig


class Rough(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return functional.dropout(self.layer(x), 0.5, self.training)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), r"Dropout at '1' draws random numbers.*Set p=0"),
        (nn.Sequential(nn.Linear(4, 3), nn.AlphaDropout(0.1)), "AlphaDropout at '1' draws random numbers"),
        (nn.Sequential(nn.Linear(4, 3), nn.RReLU()), "RReLU at '1' draws random numbers"),
        (nn.Sequential(nn.Linear(4, 3), Rough()), "Rough at '1' draws random numbers"),
        (Functional(), "Functional at '' draws random numbers"),
    ],
    ids=str,
)
def test_a_model_that_draws_is_refused_by_name(model, message):
    engine = ClippedGradients(model, cross_entropy, 1.0)
    with pytest.raises(InputError, match=message):
        engine.sum(torch.rand(5, 4), torch.zeros(5, dtype=torch.int64))


class Slopes(nn.Module):
    """Draws for numbers below zero only, and not by a module that is known to."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return functional.rrelu(self.layer(x), training=self.training)


@pytest.mark.parametrize("seed", range(60))
def test_what_draws_below_zero_only_is_refused_whatever_the_weights(seed):
    engine = ClippedGradients(Slopes(seed), cross_entropy, 1.0)
    with pytest.raises(InputError, match="draws random numbers"):
        engine.sum(torch.rand(5, 4), torch.zeros(5, dtype=torch.int64))


def test_a_loss_that_draws_is_refused():
    engine = ClippedGradients(nn.Linear(4, 3), lambda o, t: cross_entropy(o, t) * torch.rand(len(o)), 1.0)
    with pytest.raises(InputError, match="The loss draws random numbers"):
        engine.sum(torch.rand(5, 4), torch.zeros(5, dtype=torch.int64))


def test_dropout_that_is_off_is_no_dropout():
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    targets = torch.zeros(5, dtype=torch.int64)
    engine = ClippedGradients(model.eval(), cross_entropy, 1.0)
    engine.sum(torch.rand(5, 4), targets)
    model.train()
    with pytest.raises(InputError, match="Dropout at '1' draws random numbers"):
        engine.sum(torch.rand(5, 4), targets)
    model[1].p = 0.0
    engine.sum(torch.rand(5, 4), targets)


def test_sums_do_not_depend_on_the_global_seed():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.PReLU(4), nn.Flatten(), nn.Linear(64, 3))
    inputs, targets = torch.rand(7, 1, 6, 6), torch.arange(7) % 3
    engine, totals = ClippedGradients(model, cross_entropy, 0.5), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        totals.append(flat(engine.sum(inputs, targets)))
    assert torch.equal(*totals)


class Tied(NoiseSource):
    """Every unit is sampled, draws by its own id, and exact sums are kept."""

    def __init__(self):
        super().__init__(1)
        self.sums = []

    def coins(self, count, rate, owners=None):
        return np.ones(count, dtype=bool)

    def uniforms(self, count, width, owners=None):
        seeds = [int.from_bytes(hashlib.sha256(owner).digest()[:4], "big") for owner in owners()]
        rows = [torch.rand(width, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return torch.stack(rows) if rows else torch.zeros(0, width)

    def noisy(self, value, standard_deviation):
        self.sums.append(value.double().flatten())
        return value

    def release(self, total, claim):
        self.sums.append(total.double().flatten() * claim.step)
        return total.double() * claim.step


@pytest.mark.parametrize("copies", [1, 3])
def test_one_unit_more_leaves_the_changes_of_all_others(tmp_path, copies):
    """By position, the first unit would shift the draws of all others: the sum moved by many clip norms."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (60, 6, 6, 1), dtype=np.uint8), np.arange(60) % 3
    config = PrivateTraining(
        clip_norm=0.1,
        copies=copies,
        augmentation=AugmentConfig(shift=0.3, rotation=90.0, erase=0.5, noise=0.5, flip=True),
    )
    event = Event(label="dp-sgd", noise_multiplier=1.0, sampling_rate=1.0, count=1)
    sums = []
    for first in (0, 1):
        ledger = Ledger.create(tmp_path / f"{first}.jsonl", {"run": "a-run"})
        vault, noise = Vault(ImageSet(images[first:], labels[first:])), Tied()
        session = Session(vault, Plan(budget=Budget(1e6, 1e-5), events=(event,)), ledger, noise)
        torch.manual_seed(3)
        train_private(session, nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), event, config, seed=4)
        sums.append(torch.cat(noise.sums))
    assert 0.05 < float((sums[0] - sums[1]).norm()) <= 0.1
