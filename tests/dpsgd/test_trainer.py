"""The loop: what reaches the session, what the optimizer sees, and what is post-processing."""

import numpy as np
import pytest
import torch
from reference import cross_entropy, difference, flat
from torch import nn

from veilset.core.errors import BudgetError, InputError
from veilset.data.tensors import to_inputs
from veilset.dpsgd import (
    ClippedGradients,
    LinearHeadGradients,
    PrivateTraining,
    sampling_rate_for,
    train_private,
)
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.training.augment import AugmentConfig
from veilset.training.settings import WeightAverage

UNITS = 90


class Stripes:
    """Three classes of 6x6 images: a bright third, left, middle or right."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.labels = np.arange(UNITS) % 3
        self.images = random.integers(0, 60, (UNITS, 6, 6, 1), dtype=np.uint8)
        for row, label in enumerate(self.labels):
            self.images[row, :, 2 * label : 2 * label + 2] += 150
        self.groups, self.class_names, self.shape, self.reads = None, ("a", "b", "c"), (6, 6, 1), 0

    def read(self, rows):
        self.reads += 1
        return self.images[rows]

    def digests(self):
        return np.zeros((UNITS, 32), dtype=np.uint8)


class NoNoise(NoiseSource):
    def normal(self, count):
        return torch.zeros(count, dtype=torch.float64)


def recipe(**changes) -> PrivateTraining:
    return PrivateTraining(**{"learning_rate": 1.0, **changes})


def paid(**changes) -> Event:
    return Event(**{"label": "dp-sgd", "noise_multiplier": 0.5, "sampling_rate": 0.4, "count": 25, **changes})


EVENT = paid()


@pytest.fixture
def session(tmp_path):
    numbers = iter(range(100))

    def make(event: Event = EVENT, noise: NoiseSource | None = None) -> tuple[Session, Stripes]:
        records = Stripes()
        plan = Plan(budget=Budget(1e6, 1e-5), events=(event,))
        ledger = Ledger.create(tmp_path / f"{next(numbers)}.jsonl", {"run": "a-run"})
        return Session(Vault(records), plan, ledger, noise or NoiseSource(1)), records

    return make


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def accuracy(model: nn.Module) -> float:
    records = Stripes()
    with torch.no_grad():
        found = model(to_inputs(torch.from_numpy(records.images))).argmax(1)
    return float((found == torch.from_numpy(records.labels)).float().mean())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "learning_rate": 0.02},
        {"schedule": "cosine", "warmup": 0.1},
        {"schedule": "linear", "average_from": 0.5},
        {"ema_decay": 0.9},
        {"mode": "automatic"},
        {"mode": "per_layer"},
        {"keep_fraction": 0.9},
        {"keep_signs": 20},
        {"copies": 2, "augmentation": AugmentConfig(erase=0.0), "max_rows": 16},
    ],
    ids=str,
)
def test_learns_and_spends_its_plan(session, changes):
    opened, _ = session()
    model = train_private(opened, network(), EVENT, recipe(**changes))
    opened.finish()
    assert accuracy(model) > 0.9
    assert not model.training
    assert all(value.grad is None for value in model.parameters())


def test_a_step_is_the_clipped_sum_over_the_expected_batch(session):
    event = paid(sampling_rate=1.0, count=1)
    opened, records = session(event, NoNoise(1))
    model = network()
    before = flat(list(model.parameters())).detach()
    images, labels = to_inputs(torch.from_numpy(records.images)), torch.from_numpy(records.labels)
    total = flat(ClippedGradients(model, cross_entropy, 0.3).sum(images, labels))
    train_private(opened, model, event, recipe(learning_rate=0.7, clip_norm=0.3))
    moved = before - flat(list(model.parameters())).detach()
    # The privacy layer rounds to cells of 2^-10 noise deviations, even where a test takes the noise away.
    assert torch.allclose(moved, 0.7 * total / UNITS, atol=0.7 * 0.15 * 2**-10 / UNITS)


def test_a_linear_model_takes_the_fast_path_and_learns(session):
    training = recipe(clip_norm=0.5, learning_rate=4.0)
    opened, _ = session()
    head = nn.Linear(36, 3)
    train_private(opened, head, EVENT, training, prepare=lambda images: to_inputs(images).flatten(1))
    assert accuracy(nn.Sequential(nn.Flatten(), head)) > 0.9


def test_the_callers_own_optimizer_and_loss(session):
    opened, _ = session()

    def scores(outputs, targets):
        return cross_entropy(outputs, targets) + outputs.square().mean(1)

    model = train_private(
        opened,
        network(),
        EVENT,
        recipe(learning_rate=0.01),
        loss=scores,
        make_optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    )
    assert accuracy(model) > 0.8


def test_a_bad_model_fails_before_anything_is_read_or_paid(session):
    opened, records = session()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(InputError, match="BatchNorm2d at '1' mixes records"):
        train_private(opened, model, EVENT, recipe())
    assert records.reads == 0
    train_private(opened, network(), EVENT, recipe())


def test_what_the_plan_does_not_hold_is_not_spent(session):
    opened, records = session()
    with pytest.raises(BudgetError):
        train_private(opened, network(), paid(noise_multiplier=0.4), recipe())
    assert records.reads == 0


def test_the_same_seeds_give_the_same_weights(session):
    event, training = paid(count=5), recipe(augmentation=AugmentConfig(), copies=2)
    weights = []
    for _ in range(2):
        torch.manual_seed(5)
        weights.append(flat(list(train_private(session(event)[0], network(), event, training, seed=3).parameters())))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 1e-43}, r"Expected clip_norm to be a number of at least 1e-09 and of at most 1e\+09, got 1e-43"),
        ({"clip_norm": float("nan")}, "Expected clip_norm to be a number of at least 1e-09"),
        ({"learning_rate": float("inf")}, r"Expected learning_rate .* at least 1e-12 .* 1e\+06, got infinity"),
        ({"learning_rate": 8e-315}, "Expected learning_rate to be a number of at least 1e-12"),
        ({"momentum": 1.5}, "Expected momentum to be"),
        ({"weight_decay": -0.1}, "Expected weight_decay to be"),
        ({"keep_fraction": 0.0}, "Expected keep_fraction to be a number above 0"),
        ({"copies": 0}, "Expected copies to be a whole number of at least 1"),
        ({"mode": "ghost"}, "Expected mode to be one of flat, automatic, per_layer, got 'ghost'"),
        ({"steps": 5}, "Unknown setting 'steps'"),
        ({"optimizer": "lion"}, "Expected optimizer to be one of sgd, adam, got 'lion'"),
        ({"schedule": "steps"}, "Expected schedule to be one of"),
        ({"ema_decay": 1.5}, "Expected ema_decay to be a number of at least 0 and of at most 1"),
        ({"ema_decay": 0.9, "average_from": 0.5}, "got both"),
    ],
)
def test_recipes_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_rate": 1.5}, "Expected sampling_rate from 1e-09 to 1, got 1.5"),
        ({"count": 0}, "Expected count from 1"),
        ({"noise_multiplier": float("inf")}, "Expected noise_multiplier from"),
    ],
)
def test_events_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        paid(**changes)


def test_a_recipe_keeps_its_augmentation_and_can_be_written_down():
    change = AugmentConfig(flip=True)
    training = recipe(augmentation=change, copies=2)
    assert training.augmentation == change
    assert training.changed(copies=3).augmentation == change
    assert training.plain()["augmentation"]["flip"] is True


def test_a_batch_larger_than_the_vault():
    assert sampling_rate_for(32, 64) == 0.5
    with pytest.raises(InputError, match="Expected a batch of 1 to 64 units, got 65"):
        sampling_rate_for(65, 64)


def test_schedules_start_and_end_where_they_should():
    rates = [recipe(schedule="cosine", warmup=0.2, learning_rate=2.0).rate_at(step, 25) for step in range(25)]
    assert rates[4] == pytest.approx(2.0)
    assert max(rates) == pytest.approx(2.0)
    assert rates[-1] < 0.05
    assert recipe(schedule="linear").rate_at(0, 25) == pytest.approx(1.0)


def test_averages():
    network = nn.Linear(2, 1, bias=False)
    plain, moving = WeightAverage(network, None), WeightAverage(network, 0.5)
    for step, number in enumerate((1.0, 2.0, 6.0)):
        network.weight.data.fill_(number)
        plain.update(network, step)
        moving.update(network, step)
    assert plain.state["weight"].flatten().tolist() == pytest.approx([3.0, 3.0])
    assert 3.0 < float(moving.state["weight"][0, 0]) < 6.0


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", ["flat", "automatic"])
@pytest.mark.parametrize("soft", [True, False])
def test_linear_head_equals_the_engine(bias, mode, soft):
    head = nn.Linear(7, 4, bias=bias)
    features = 3 * torch.randn(20, 7)
    targets = torch.rand(20, 4) if soft else torch.randint(0, 4, (20,))
    engine = ClippedGradients(head, cross_entropy, 0.6, mode=mode).sum(features, targets)
    fast = LinearHeadGradients(head, 0.6, automatic=mode == "automatic")
    assert difference(flat(fast.sum(features, targets)), flat(engine)) < 1e-5
    assert not flat(fast.sum(features[:0], targets[:0])).any()


def test_linear_head_refuses():
    with pytest.raises(InputError, match=r"Expected clip_norm > 0, from 1e-09 to .*, got 0"):
        LinearHeadGradients(nn.Linear(2, 2), 0)
    with pytest.raises(InputError, match=r"Expected features \(b, 2\)"):
        LinearHeadGradients(nn.Linear(2, 2), 1.0).sum(torch.rand(3, 4), torch.zeros(3, dtype=torch.int64))
