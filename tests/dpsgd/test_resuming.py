"""A run that was cut off: it goes on from its last state, takes no step that it has not paid for, and ends."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from veilset.core.errors import BudgetError
from veilset.data.images import ImageSet
from veilset.dpsgd import PrivateTraining, train_private
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault

STEPS, LEASE = 130, 50


class CutOff(BaseException):
    """Stands for a kill: nothing handles it."""


class NoNoise(NoiseSource):
    def normal(self, count):
        return torch.zeros(count, dtype=torch.float64)


class Watched(ImageSet):
    """Notes the weights at the beginning of every step, and cuts the run off at one of them."""

    def watch(self, model, cut_off_at=None):
        self.model, self.cut_off_at, self.seen = model, cut_off_at, []
        return self

    def read(self, rows):
        if len(self.seen) == self.cut_off_at:
            raise CutOff
        self.seen.append(torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone())
        return super().read(rows)


def recipe(**changes):
    return PrivateTraining(**{"learning_rate": 0.1, **changes})


@pytest.fixture
def run(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 6, 6, 1), dtype=np.uint8)
    seeds = itertools.count()

    def start(config, cut_off_at=None, *, folder="run", workspace=True, seed=None):
        """Train a model of new first weights; returns it with what its session read and the ledger's lines."""
        torch.manual_seed(next(seeds) if seed is None else seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
        records = Watched(images, np.arange(30) % 2, ("a", "b")).watch(model, cut_off_at)
        path = tmp_path / folder / "ledger.jsonl"
        ledger = Ledger.reopen(path) if path.exists() else Ledger.create(path, {"run": folder})
        event = Event(label="dp-sgd", noise_multiplier=0.5, sampling_rate=1.0, count=STEPS)
        plan = Plan(budget=Budget(1e6, 1e-5), events=(event,))
        session = Session(Vault(records), plan, ledger, NoNoise(1), workspace=path.parent if workspace else None)
        try:
            train_private(session, model, event, config)
            session.finish()
        except CutOff:
            assert cut_off_at is not None
        finally:
            ledger.close()
        assert check_chain(ledger.lines) == [event], "paid once"
        leases = [line["body"]["steps"] for line in ledger.lines if line["kind"] == "lease"]
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), records.seen, leases

    return start


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_it_goes_on_from_the_last_state_with_the_steps_that_are_left(run, optimizer):
    config = recipe(optimizer=optimizer)
    _, before, leases = run(config, cut_off_at=75)
    assert leases == [50, 50]
    _, after, leases = run(config)
    assert leases == [50, 50, 30], "what was leased and lost is not taken again"
    assert len(after) == 30
    assert torch.equal(after[0], before[LEASE]), "the weights are those of the end of the first lease"
    assert torch.equal(after[1], before[LEASE + 1]), "so is the optimizer's state: the next step is the same"


def test_cut_off_again_and_again_it_ends_and_is_never_overdrawn(run):
    taken = 0
    for cut in (10, 10, 10, None):
        weights, seen, leases = run(recipe(average_from=0.0), cut_off_at=cut)
        taken += len(seen)
        assert sum(leases) <= STEPS
    assert taken == 30
    assert leases == [50, 50, 30]
    assert bool(weights.isfinite().all())


def test_averages_go_on_too(run):
    """Cut off right after the first lease: the average is over its 50 iterates and those of the last 30 steps."""
    ends = []
    for folder, average_from in (("averaged", 0.0), ("last", 1.0)):
        _, before, _ = run(recipe(average_from=average_from), cut_off_at=LEASE, folder=folder, seed=5)
        weights, after, _ = run(recipe(average_from=average_from), folder=folder)
        ends.append(weights)
    iterates = [*before[1:], *after, ends[1]]
    assert len(iterates) == LEASE + 30
    torch.testing.assert_close(ends[0], torch.stack(iterates).mean(0))


def test_a_finished_lease_without_steps_left_gives_the_kept_weights(run):
    config = recipe()
    _, before, leases = run(config, cut_off_at=129)
    assert sum(leases) == STEPS
    weights, after, _ = run(config)
    assert after == []
    assert torch.equal(weights, before[100])


def test_without_a_workspace_nothing_is_kept(run, tmp_path):
    run(recipe(), cut_off_at=75, workspace=False)
    _, after, leases = run(recipe(), workspace=False)
    assert leases == [50, 50, 30]
    assert len(after) == 30
    assert not list(tmp_path.rglob("*.pt"))


def test_the_state_of_another_run_is_not_taken(run, tmp_path):
    _, before, _ = run(recipe(), cut_off_at=75)
    (tmp_path / "other").mkdir()
    for place in (tmp_path / "run").glob("steps-*.pt"):
        (tmp_path / "other" / place.name).write_bytes(place.read_bytes())
    _, after, _ = run(recipe(), folder="other")
    assert len(after) == STEPS
    assert not torch.equal(after[0], before[LEASE])


def test_a_damaged_state_is_refused(run, tmp_path):
    run(recipe(), cut_off_at=75)
    (place,) = (tmp_path / "run").glob("steps-*.pt")
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(BudgetError, match="is damaged or of another run"):
        run(recipe())


def test_two_events_that_are_alike_take_their_own_steps_and_go_on_from_their_own_states(tmp_path):
    """Steps, leases and states belong to the line that paid, not to the label that two events may share."""
    event = Event(label="dp-sgd", noise_multiplier=0.5, sampling_rate=1.0, count=60)
    plan = Plan(budget=Budget(1e6, 1e-5), events=(event, event))
    images = np.random.default_rng(0).integers(0, 256, (30, 6, 6, 1), dtype=np.uint8)
    path = tmp_path / "ledger.jsonl"

    def part(cut_off_at):
        """Two trainings of one plan; how many steps each took, until the one that is cut off."""
        ledger = Ledger.reopen(path) if path.exists() else Ledger.create(path, {"run": "twins"})
        taken = []
        try:
            session = Session(
                Vault(ImageSet(images, np.arange(30) % 2, ("a", "b"))), plan, ledger, NoNoise(1), workspace=tmp_path
            )
            for number in range(2):
                steps = session.gradient_steps(event, clip_norm=1.0)
                kept = steps.kept()
                assert kept is None or kept["number"] == number, "the state of the other event"
                taken.append(0)
                while steps.steps_left and (number, taken[-1]) != cut_off_at:
                    steps.step(lambda images, labels: [torch.zeros(2)])
                    taken[-1] += 1
                    if steps.keeps_now:
                        steps.keep({"number": number})
        finally:
            ledger.close()
        return taken

    assert part((1, 20)) == [60, 20]
    assert part(None) == [0, 10], "the lease of 50 that was cut off is lost, and no step of the other event with it"
