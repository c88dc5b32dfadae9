"""Several findings per image, on datasets that differ by one unit that has all of them."""

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from veilset.audit.neighbour_methods import (
    FINDINGS_WORLDS,
    configured_neighbours,
    plain,
    preset_neighbours,
)
from veilset.audit.neighbours import Neighbours, neighbour_run, session_play
from veilset.core.errors import InputError
from veilset.dpsgd import FindingsLoss, PrivateTraining, train_private
from veilset.dpsgd.linear_head import LinearHeadGradients
from veilset.methods import METHODS
from veilset.methods.evolve.voting import Ballot
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms import sums
from veilset.privacy.session import Session
from veilset.teachers.counts import noisy_counts

TAKERS = [name for name in sorted(METHODS) if METHODS.get(name).takes_findings]


def takes(name: str, preset: str, settings: Mapping[str, Any]) -> bool:
    """Whether a method takes findings with these settings, too."""
    try:
        METHODS.get(name).configure(preset, settings).plan(FINDINGS_WORLDS["findings"]().facts, Budget(4.0, 1e-5))
    except InputError:
        return False
    return True


CASES = [
    (name, number)
    for name in TAKERS
    for number, form in enumerate(METHODS.get(name).forms)
    if takes(name, "fast", form.settings)
]
PRESETS = [(name, preset) for name in TAKERS for preset in METHODS.get(name).presets if takes(name, preset, {})]
EVENT = Event(label="sum", noise_multiplier=4.0)
PLAN = Plan(budget=Budget(10.0, 1e-5), events=(EVENT,))


@pytest.mark.parametrize("world", sorted(FINDINGS_WORLDS))
@pytest.mark.parametrize(("name", "form"), CASES, ids=lambda value: str(value))
def test_a_method(name: str, form: int, world: str) -> None:
    kind = METHODS.get(name)
    subject = configured_neighbours(
        kind, "fast", kind.forms[form].form, kind.forms[form].settings, FINDINGS_WORLDS[world]()
    )
    assert subject.worlds.facts.findings
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset(name: str, preset: str) -> None:
    subject = preset_neighbours(name, preset, FINDINGS_WORLDS["findings in groups"]())
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name


def moved_furthest(worlds: Neighbours, spend: object) -> list[str]:
    return [one.what for one in neighbour_run(session_play(worlds, PLAN, spend), worlds)]  # type: ignore[arg-type]


@pytest.mark.parametrize("world", sorted(FINDINGS_WORLDS))
def test_sums_by_finding_and_counts(world: str) -> None:
    worlds = FINDINGS_WORLDS[world]()

    def by_finding(session: Session) -> None:
        released = session.gaussian_sum(lambda i, _: i.flatten(1) / 255, EVENT, clip_norm=1.0, by_class=True)
        assert released.shape == (3, 256)

    def count(session: Session) -> None:
        assert noisy_counts(session, EVENT).deviation == pytest.approx(4 * math.sqrt(3))

    assert moved_furthest(worlds, by_finding) == []
    assert moved_furthest(worlds, count) == []


def test_a_sum_that_clips_each_finding_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are clipped and then put into the blocks of three findings: sqrt(3) times as long as claimed."""
    monkeypatch.setattr(sums, "clipped", lambda vectors, *_, **__: vectors)
    real = sums._in_blocks

    def blocks(values: Tensor, has: Tensor) -> Tensor:
        return real(values / values.norm(dim=1, keepdim=True), has)

    monkeypatch.setattr(sums, "_in_blocks", blocks)

    def by_finding(session: Session) -> None:
        session.gaussian_sum(lambda i, _: i.flatten(1) / 255, EVENT, clip_norm=1.0, by_class=True)

    found = moved_furthest(FINDINGS_WORLDS["findings"](), by_finding)
    assert found
    assert all("moved by 1.73" in what for what in found)


def test_a_head_that_clips_each_finding_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(session: Session) -> None:
        head = torch.nn.Linear(256, 3)
        torch.nn.init.zeros_(head.weight)
        training = PrivateTraining(clip_norm=0.1)
        train_private(session, head, EVENT, training, loss=FindingsLoss(), features=lambda i, _: i.flatten(1) / 255)

    def alone(self: LinearHeadGradients, inputs: Tensor, targets: Tensor, real: int) -> list[Tensor]:
        errors = self._errors(self.head(inputs), targets).double()
        lengths = errors.abs() * (inputs.double().square().sum(1, keepdim=True) + 1).sqrt()
        scaled = errors * (self.sensitivity / lengths.clamp_min(self.sensitivity))
        scaled[real:] = 0.0
        return [scaled.t() @ inputs.double(), scaled.sum(0)]

    worlds = FINDINGS_WORLDS["findings"]()
    assert moved_furthest(worlds, train) == []
    monkeypatch.setattr(LinearHeadGradients, "_clipped_part", alone)
    found = moved_furthest(worlds, train)
    assert found
    assert all("moved by 1.73" in what for what in found), found


def test_every_taker_has_a_case() -> None:
    assert {name for name, _ in CASES} == set(TAKERS) == {"evolve", "imgsyn", "latent", "merf"}
    assert not takes("evolve", "fast", {"teacher_share": 0.0})
    assert not takes("latent", "fast", {"components": 2})


def test_three_votes_of_an_image_with_every_finding() -> None:
    kind = METHODS.get("evolve")
    worlds = FINDINGS_WORLDS["findings in groups"]()
    subject = configured_neighbours(kind, "fast", "three votes", {**kind.smallest, "votes": 3}, worlds)
    assert neighbour_run(subject.play, subject.worlds) == []


@pytest.mark.parametrize("name", ["evolve", "latent", "merf"])
def test_findings_that_are_not_clipped_as_one_vector_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image with all of three findings that counts in full in each of its blocks: sqrt(4), or sqrt(3), too much."""
    monkeypatch.setattr(sums, "clipped", lambda vectors, *_, **__: vectors * (1 - 2.0**-20))

    def in_full(rows: Tensor, findings: Tensor) -> Tensor:
        has = torch.cat([torch.ones_like(findings[:, :1]), findings], dim=1).to(rows)
        return (has[:, :, None] * rows[:, None, :]).flatten(1)

    real = Ballot._cast
    if name == "evolve":
        monkeypatch.setattr(Ballot, "_cast", lambda self, near: real(self, near) * math.sqrt(3))
    else:
        monkeypatch.setattr(importlib.import_module(f"veilset.methods.{name}.method"), "in_all_blocks", in_full)
    kind = METHODS.get(name)
    subject = configured_neighbours(kind, "fast", "in full", kind.smallest, FINDINGS_WORLDS["findings"]())
    found = [one.what for one in neighbour_run(subject.play, subject.worlds)]
    # A row of latent moments need not be as long as the bound, so it moves the sum by a little less than twice that.
    moved = [float(match.group(1)) for what in found if (match := re.search(r"moved by ([\d.]+) sens", what))]
    assert max(moved, default=0.0) > 1.7, found


def test_a_paid_count_of_classes() -> None:
    worlds = replace(plain(), places=("middle",))
    subject = configured_neighbours(METHODS.get("imgsyn"), "fast", "count", {"count_share": 0.1}, worlds)
    assert subject.plan.events[0].label == "count"
    assert neighbour_run(subject.play, subject.worlds) == []
