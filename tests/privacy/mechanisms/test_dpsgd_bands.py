"""DP-SGD steps with noise over bands: who takes part when, what is leased, and what a stop leaves behind."""

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError
from veilset.data.images import ImageSet
from veilset.dpsgd.exact import block_sum
from veilset.privacy.budget import Budget
from veilset.privacy.correlation import band_weights
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.release.certifying import ledger_problems

UNITS, BANDS = 24, 3
EVENT = Event(label="steps", noise_multiplier=1.0, sampling_rate=1.0, count=4, bands=BANDS)


class Units(NoiseSource):
    """No noise but ones, so that the steps show how it is combined."""

    def normal(self, count):
        return torch.ones(count, dtype=torch.float64)


def dots():
    """Each unit has a pixel of its own."""
    images = np.zeros((UNITS, UNITS, 1, 1), dtype=np.uint8)
    images[np.arange(UNITS), np.arange(UNITS)] = 255
    return ImageSet(images, np.arange(UNITS) % 2, ("a", "b"))


def pixels(images, labels):
    return [block_sum(images.flatten(1) / 255, labels * 0, 1, 1.0)]


@pytest.fixture
def open_steps(tmp_path):
    def start(event=EVENT, *, noise=None, run="run"):
        path = tmp_path / run / "ledger.jsonl"
        plan = Plan(budget=Budget(1e6, 1e-5), events=(event,))
        header = {"run": run, "plan": [event.to_json()]}
        ledger = Ledger.reopen(path) if path.exists() else Ledger.create(path, header)
        session = Session(Vault(dots()), plan, ledger, noise or NoiseSource(1), workspace=path.parent)
        return session.gradient_steps(event, clip_norm=1.0), ledger

    return start


def who(released):
    """The units whose pixel is about one more than the middle one."""
    numbers = released[0].flatten()
    return set(torch.nonzero(numbers > numbers.min() + 0.5).flatten().tolist())


def test_a_unit_takes_part_once_in_any_bands_steps(open_steps):
    steps, ledger = open_steps(noise=Units(1))
    assert (steps.total, steps.steps_left) == (12, 12)
    turns = [who(steps.step(pixels)) for _ in range(12)]
    assert set.union(*turns[:BANDS]) == set(range(UNITS))
    assert sum(map(len, turns[:BANDS])) == UNITS, "groups are disjoint"
    assert turns == turns[:BANDS] * 4, "groups take turns"
    assert ledger_problems(ledger.lines, ledger.events) == []
    with pytest.raises(BudgetError, match="All 12 steps"):
        steps.step(pixels)
    ledger.close()


def test_groups_follow_from_own_ids_and_the_run(open_steps):
    turns = []
    for run in ("one", "other"):
        steps, ledger = open_steps(noise=Units(1), run=run)
        turns.append([who(steps.step(pixels)) for _ in range(BANDS)])
        ledger.close()
    assert turns[0] != turns[1]


def test_noise_takes_back_a_part_of_the_noise_before_it(open_steps):
    """With fresh noise of ones throughout, the noise of steps follows from the weights alone."""
    event = Event(label="steps", noise_multiplier=1.0, sampling_rate=1e-9, count=2, bands=BANDS)
    steps, ledger = open_steps(event, noise=Units(1))
    steps.momentum = 0.9
    weights = band_weights(BANDS, 0.9)
    seen = [float(steps.step(pixels)[0].flatten()[0]) for _ in range(6)]
    for step in range(6):
        combined = sum(weights[lag] * seen[step - lag] for lag in range(min(BANDS, step + 1)))
        assert combined == pytest.approx(1.0, abs=0.01)
    ledger.close()


def test_a_stop_leaves_no_noise_behind_and_turns_go_on(open_steps, tmp_path):
    steps, ledger = open_steps(noise=Units(1))
    steps.lease_size = 4
    before = [steps.step(pixels) for _ in range(4)]
    assert steps.keeps_now
    steps.keep({"weights": torch.zeros(3)})
    steps.step(pixels)  # of the next lease, which is lost
    ledger.close()
    kept = [path.name for path in (tmp_path / "run").iterdir() if path.name != "ledger.jsonl"]
    assert len(kept) == 1, "the state of the training and nothing else"
    steps, ledger = open_steps(noise=Units(1))
    assert set(steps.kept() or {}) == {"weights"}
    assert steps.steps_left == 4, "what was leased and lost is not taken again"
    after = [steps.step(pixels) for _ in range(4)]
    turns = [who(step) for step in before[:BANDS]]
    assert [who(step) for step in after] == [turns[number % BANDS] for number in range(8, 12)]
    assert float(after[0][0].min()) == pytest.approx(float(before[0][0].min()), abs=0.01), "as at the first step"
    assert ledger_problems(ledger.lines, ledger.events) == []
    ledger.close()


def test_more_leases_than_steps_are_noticed(open_steps):
    steps, ledger = open_steps()
    steps.step(pixels)
    ledger.lease(EVENT, 1, 1)
    assert "leases more steps" in " ".join(ledger_problems(ledger.lines, ledger.events))
    ledger.close()
