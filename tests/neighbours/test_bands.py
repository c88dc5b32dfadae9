"""DP-SGD with correlated noise on datasets that differ by one unit, and the twin without groups."""

from dataclasses import replace

import pytest
from torch import nn

from veilset.audit.mechanisms import CLIP_NORM, priced, small_network
from veilset.audit.neighbour_methods import WORLDS
from veilset.audit.neighbours import NeighbourSubject, neighbour_run, session_play
from veilset.audit.sabotage_neighbours import neighbour_sabotages
from veilset.dpsgd import PrivateTraining, train_private
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.dpsgd_steps import GradientSteps
from veilset.privacy.session import Session

BANDED = Event(label="dp-sgd", noise_multiplier=1.0, sampling_rate=0.5, count=2, bands=3)


def training(world: str) -> NeighbourSubject:
    """A short training of a small network."""
    worlds = replace(WORLDS[world](), places=("first", "middle"))
    plan: Plan = priced(4.0, BANDED)

    def spend(session: Session) -> dict[str, bytes]:
        model = nn.Sequential(nn.AvgPool2d(4), small_network())
        recipe = PrivateTraining(clip_norm=CLIP_NORM, learning_rate=0.1)
        train_private(session, model, plan.events[0], recipe)
        session.finish()
        return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}

    return NeighbourSubject(name="banded", plan=plan, play=session_play(worlds, plan, spend), worlds=worlds)


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_a_training(world: str) -> None:
    subject = training(world)
    assert neighbour_run(subject.play, subject.worlds) == []


def test_without_groups_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler that every other training has: coins over all units."""
    monkeypatch.setattr(GradientSteps, "_units_of", lambda self, _: self._own)
    subject = training("plain")
    found = neighbour_run(subject.play, subject.worlds)
    assert any("3 of 3 steps of 'dp-sgd' in a row moved, one was paid for" in one.what for one in found)
    assert subject.finding().contradicted


def test_groups_by_position_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradientSteps, "_units_of", lambda self, step: self._own[step % 3 :: 3])
    subject = training("plain")
    assert subject.finding().contradicted


def test_the_twin_is_caught() -> None:
    (twin,) = (subject for subject in neighbour_sabotages() if subject.name == "bands without groups")
    assert twin.finding().contradicted
