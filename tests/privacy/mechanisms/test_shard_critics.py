"""Critics of shards: what one record can move over several visits, who sees whose rows, what is paid and refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.progress import SILENT
from veilset.dpsgd.trainer import each_step, resume
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.shard_critics import Critics, Query, State
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session

OpenSession = Callable[..., Session]

CRITICS, STEPS, SHAPE, CLIP = 4, 3, (2, 16), 0.5
TOGETHER = [Event(label="critics", noise_multiplier=1.0, count=STEPS)]
IN_TURN = [
    Event(label="critics", noise_multiplier=1.0, count=2, partition="critics", shard=shard) for shard in range(CRITICS)
]
# A release is rounded to cells of 2^-10 deviations after the noise, which blurs a comparison.
ROUNDING = 1.005
SHOWN = 200  # rows that a critic is shown at a visit: enough to see all of a shard
QUERY = {
    "points": torch.ones(SHAPE),
    "fakes": torch.zeros(1, SHOWN, 16),
    "fake_labels": torch.arange(SHOWN)[None] % 3,
}


def pixels(images: Tensor, labels: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


class Remembering:
    """A critic that adds up what it saw at every visit and answers with something wild that depends on all of it."""

    def start(self) -> State:
        return {"seen": torch.zeros(16)}

    def learn(self, state: State, rows: Tensor, known: Tensor, *_: Tensor) -> State:
        return {"seen": state["seen"] + (rows * known[:, None]).sum(dim=0)}

    def answer(self, state: State, held: Tensor, query: Query) -> Tensor:
        return torch.sin(1000 * state["seen"]) * query["points"]


class Saying(Remembering):
    """A critic that always says the same."""

    def __init__(self, said: Tensor) -> None:
        self.said = said

    def answer(self, state: State, held: Tensor, query: Query) -> Tensor:
        return self.said + 0 * state["seen"].sum()


def opened(session: Session, **changes: Any) -> Critics:
    settings = {"critics": CRITICS, "shape": SHAPE, "clip_norm": CLIP} | changes
    events = settings.pop("events", session.plan.events)
    return session.critics(settings.pop("critic", Remembering()), pixels, events, **settings)


def without(data: Any, fewer: Any, place: int) -> Any:
    fewer.images, fewer.labels = np.delete(data.images, place, axis=0), np.delete(data.labels, place)
    return fewer


@pytest.mark.parametrize("events", [TOGETHER, IN_TURN], ids=["together", "in turn"])
def test_one_record_moves_every_answer_by_the_diameter_at_most(
    events: list[Event], records: Any, open_session: OpenSession, make_silent: Callable[[], NoiseSource]
) -> None:
    data = records(40)
    count = sum(event.count for event in events)
    critics = opened(open_session(data, events, noise=make_silent()))
    whole = [critics.step(QUERY) for _ in range(count)]
    largest = 0.0
    for place in range(10):
        critics = opened(open_session(without(data, records(40), place), events, noise=make_silent()))
        moved = [float((critics.step(QUERY) - before).norm()) for before in whole]
        assert max(moved) <= 2 * CLIP * ROUNDING
        largest = max(largest, *moved)
        if events is IN_TURN:
            changed = {step % CRITICS for step, distance in enumerate(moved) if distance > 1e-3}
            assert len(changed) == 1  # one record is in one shard, and that shard has visits of its own
    assert largest > CLIP  # more than a clip norm: an answer turns round, it does not only appear


def test_no_critic_sees_another_shard(records: Any, open_session: OpenSession, silent_noise: NoiseSource) -> None:
    class Keeping(Remembering):
        def start(self) -> State:
            return {"shown": torch.zeros(SHOWN, 16), "seen": torch.zeros(16)}

        def learn(self, state: State, rows: Tensor, known: Tensor, *_: Tensor) -> State:
            return {"shown": rows, "seen": state["seen"]}

    data = records(40)
    critics = opened(open_session(data, TOGETHER, noise=silent_noise), critic=Keeping())
    critics.step(QUERY)
    shown = [{tuple(row) for row in part.tolist() if any(row)} for part in critics._state["shown"]]
    everything = {tuple(row) for row in pixels(torch.from_numpy(data.images), torch.zeros(40)).tolist()}
    assert set.union(*shown) == everything
    assert sum(map(len, shown)) == 40, "a row is in one shard"


def test_noise_has_twice_the_clip_norm_as_its_unit(records: Any, open_session: OpenSession) -> None:
    event = [Event(label="critics", noise_multiplier=3.0, count=20)]
    critics = opened(open_session(records(40), event), shape=(50, 16), critic=Saying(torch.zeros(50, 16)))
    drawn = torch.stack([critics.step(QUERY) for _ in range(20)])
    assert float(drawn.std()) == pytest.approx(3.0 * 2 * CLIP, rel=0.03)


def test_an_answer_that_is_not_finite_counts_as_zero(
    records: Any, open_session: OpenSession, silent_noise: NoiseSource
) -> None:
    broken = Saying(torch.full(SHAPE, float("nan")))
    critics = opened(open_session(records(40), TOGETHER, noise=silent_noise), critic=broken)
    assert float(critics.step(QUERY).abs().max()) == 0


def test_a_shard_without_units_counts_as_zero(
    records: Any, open_session: OpenSession, silent_noise: NoiseSource
) -> None:
    session = open_session(records(6), TOGETHER, noise=silent_noise)
    critics = opened(session, critics=6, critic=Saying(torch.ones(SHAPE)))
    total = critics.step(QUERY)
    held = [bool(part.any()) for part in critics._shards.counts]  # type: ignore[union-attr]
    assert False in held, "six units leave one of six shards empty, or choose another seed"
    assert float(total.norm()) == pytest.approx(sum(held) * CLIP, rel=1e-2)


def test_a_step_is_leased_before_anything_is_read(records: Any, open_session: OpenSession) -> None:
    data = records(40)
    session = open_session(data, TOGETHER)
    critics = opened(session)
    kinds: list[str] = []
    data.on_read = lambda: kinds.append(session._spending.ledger.lines[-1]["kind"])
    critics.step(QUERY)
    assert kinds[0] == "lease"


def test_no_step_beyond_the_plan(records: Any, open_session: OpenSession) -> None:
    critics = opened(open_session(records(40), TOGETHER))
    for _ in range(STEPS):
        critics.step(QUERY)
    assert critics.steps_left == 0
    with pytest.raises(BudgetError, match="are taken"):
        critics.step(QUERY)


def test_a_resumed_run_goes_on_after_its_leases(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    events = [Event(label="critics", noise_multiplier=1.0, count=25)]
    first = open_session(records(40), events, workspace=tmp_path)
    critics = opened(first)
    for _ in range(10):
        critics.step(QUERY)
    critics.keep({"done": 10})
    critics.step(QUERY)  # after what was kept, so it is lost
    again = open_session(records(40), events, workspace=tmp_path, ledger=first._spending.ledger)
    resumed = opened(again)
    assert resumed.kept() == {"done": 10}
    assert resumed.steps_left == 14


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"critics": 1}, InputError, "2 to 40 critics"),
        ({"critics": 41}, InputError, "2 to 40 critics"),
        ({"clip_norm": 0.0}, InputError, "clip_norm > 0"),
        ({"clip_norm": 1e-43}, InputError, "clip_norm > 0"),
        ({"clip_norm": float("inf")}, InputError, "clip_norm > 0"),
        ({"events": [Event(label="other", noise_multiplier=1.0)]}, BudgetError, "No data was read"),
        ({"events": []}, BudgetError, "No data was read"),
    ],
)
def test_what_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, records: Any, open_session: OpenSession
) -> None:
    with pytest.raises(error, match=message):
        opened(open_session(records(40), TOGETHER), **changes)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([replace(TOGETHER[0], source="earlier")], "was spent by an earlier run"),
        ([replace(TOGETHER[0], sampling_rate=0.5)], "claims a sample at the rate 0.5"),
        ([replace(event, sampling_rate=0.5) for event in IN_TURN], "claims a sample at the rate 0.5"),
        (IN_TURN[:1], "one event for all critics, or one for the turns of each"),
        (IN_TURN[:3], "one event for all critics, or one for the turns of each"),
        (IN_TURN[::-1], "one event for all critics, or one for the turns of each"),
        ([*IN_TURN[:3], replace(IN_TURN[3], count=4)], "one event for all critics, or one for the turns of each"),
        ([*IN_TURN[:3], replace(IN_TURN[3], partition="other")], "is an event of shard 3 of 'other'"),
        (TOGETHER * 2, "one event for all critics, or one for the turns of each"),
    ],
)
def test_planned_events_that_are_not_what_critics_do_are_refused(
    events: list[Event], message: str, records: Any, open_session: OpenSession
) -> None:
    data = records(40)
    session = open_session(data, events)
    with pytest.raises(BudgetError, match=f"{message}.*No data was read"):
        opened(session)
    assert data.reads == 0
    assert not [line for line in session._spending.ledger.lines if line["kind"] == "spend"]


def test_critics_and_shards_do_not_share_a_partition(records: Any, open_session: OpenSession) -> None:
    session = open_session(records(40), IN_TURN)
    session.shards(CRITICS, partition="critics")
    with pytest.raises(BudgetError, match="divided in another way already"):
        opened(session)


def test_a_shard_has_no_critics(records: Any, open_session: OpenSession) -> None:
    with pytest.raises(InputError, match="cannot be divided again"):
        opened(open_session(records(40), TOGETHER).shards(2, partition="p")[0])


class Follower:
    """A training that counts the steps that it followed."""

    def __init__(self) -> None:
        self.done = 0
        self.states: list[int] = []

    def state(self) -> dict[str, Any]:
        self.states.append(self.done)
        return {"done": self.done}

    def load(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def test_one_loop_takes_keeps_and_resumes(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    events = [Event(label="critics", noise_multiplier=1.0, count=25)]
    first, follower, numbers = open_session(records(40), events, workspace=tmp_path), Follower(), []
    critics = opened(first)
    critics.keep_every = 4
    assert not resume(critics, follower)
    for number in each_step(critics, follower, SILENT, "learning"):
        numbers.append(number)
        critics.step(QUERY)
        follower.done += 1
        if number == 9:
            break
    assert follower.states == [4, 8]
    again = opened(open_session(records(40), events, workspace=tmp_path, ledger=first._spending.ledger))
    resumed = Follower()
    again.keep_every = 4
    assert resume(again, resumed)
    assert resumed.done == 8
    for number in each_step(again, resumed, SILENT, "learning"):
        numbers.append(number)
        again.step(QUERY)
        resumed.done += 1
    assert numbers == list(range(25))
    assert resumed.states == [12, 16, 20]


@pytest.mark.parametrize("taken", [0, 2])
def test_a_loop_that_takes_no_step_or_two_is_refused(taken: int, records: Any, open_session: OpenSession) -> None:
    critics = opened(open_session(records(40), TOGETHER))
    loop = each_step(critics, Follower(), SILENT, "learning")
    next(loop)
    for _ in range(taken):
        critics.step(QUERY)
    with pytest.raises(VeilsetError, match=f"Expected one step of 'learning' .* got {taken}"):
        next(loop)


def test_answers_of_another_shape_are_refused(records: Any, open_session: OpenSession) -> None:
    with pytest.raises(VeilsetError, match="shape"):
        opened(open_session(records(40), TOGETHER), shape=(3, 16)).step(QUERY)
