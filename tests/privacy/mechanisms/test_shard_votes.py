"""Models of shards: what one record can move, what is paid, and what is refused."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger, read_ledger
from veilset.privacy.mechanisms.shard_votes import Ensemble
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session

OpenSession = Callable[..., Session]

QUERIES, CLASSES, TEACHERS = 6, 3, 5
SHAPE = (QUERIES, CLASSES)
VOTES = Event(label="votes", noise_multiplier=1.0, count=QUERIES)
ONCE = Event(label="once", noise_multiplier=1.0)


def pixels(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return images.flatten(1).double() / 255


def volatile(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A model that is another one altogether as soon as a single number of its shard changes."""
    seed = hash(tuple(rows.flatten().tolist())) % 2**31
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def answers(
    session: Session, kind: str, train: Any = volatile, teachers: int = TEACHERS, event: Event | None = None
) -> torch.Tensor:
    event = event or EVENT[kind]
    ensemble = session.ensemble(train, pixels, teachers=teachers)

    def itself(model: torch.Tensor) -> torch.Tensor:
        return model

    if kind == "votes":
        return ensemble.votes(itself, event, classes=CLASSES)
    if kind == "agreement":
        return ensemble.agreement(itself, event, classes=CLASSES)
    if kind == "gradient":
        return ensemble.gradient(itself, event, shape=SHAPE, norm_bound=0.5)
    return ensemble.signs(itself, event, shape=SHAPE, keep=4)


EVENT = {"votes": VOTES, "agreement": VOTES, "gradient": ONCE, "signs": ONCE}
# A release is rounded to cells of 2^-10 deviations after the noise, which is post-processing and blurs a comparison.
ROUNDING = 1.005
SENSITIVITY = {
    "votes": math.sqrt(2 * QUERIES),
    "agreement": math.sqrt(QUERIES),
    "gradient": 2 * 0.5,
    "signs": 2 * math.sqrt(4),
}


@pytest.mark.parametrize("kind", list(EVENT))
def test_one_record_moves_the_sum_by_the_sensitivity_at_most(
    kind: str, records: Any, open_session: OpenSession, silent_noise: NoiseSource
) -> None:
    data = records(40)
    whole = answers(open_session(data, [EVENT[kind]], noise=silent_noise), kind)
    moved = []
    for left_out in range(12):
        fewer = records(40)
        fewer.images, fewer.labels = np.delete(data.images, left_out, axis=0), np.delete(data.labels, left_out)
        without = answers(open_session(fewer, [EVENT[kind]], noise=silent_noise), kind)
        moved.append(float((whole - without).norm()))
    assert max(moved) <= SENSITIVITY[kind] * ROUNDING
    assert max(moved) > 0.3 * SENSITIVITY[kind]


@pytest.mark.parametrize("kind", ["votes", "gradient", "signs"])
def test_the_worst_case_is_reached(
    kind: str, records: Any, open_session: OpenSession, silent_noise: NoiseSource
) -> None:
    """A model that turns round when one certain record is there: the bound is not loose."""
    data = records(40)
    data.images[0] = 255
    fewer = records(40)
    fewer.images, fewer.labels = data.images[1:], data.labels[1:]

    def turning(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        side = torch.tensor([1.0, -1.0, 0.0]).repeat(QUERIES, 1)
        return side if bool((rows == 1).all(dim=1).any()) else -side

    with_record = answers(open_session(data, [EVENT[kind]], noise=silent_noise), kind, turning)
    without = answers(open_session(fewer, [EVENT[kind]], noise=silent_noise), kind, turning)
    assert float((with_record - without).norm()) == pytest.approx(SENSITIVITY[kind], rel=ROUNDING - 1)


@pytest.mark.parametrize("kind", list(EVENT))
def test_the_noise_has_the_size_of_the_sensitivity(kind: str, records: Any, open_session: OpenSession) -> None:
    """Models that answer nothing finite count as zero, so that the release is noise alone."""

    def broken(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.full(SHAPE, torch.nan)

    draws = torch.cat(
        [
            answers(open_session(records(20), [EVENT[kind]], noise=NoiseSource(seed)), kind, broken).flatten()
            for seed in range(120)
        ]
    )
    per_query = math.sqrt(QUERIES) if kind in ("votes", "agreement") else 1.0
    # The deviation of n normal draws is known to within 1/sqrt(2n); five of those is a chance of one in a million.
    assert float(draws.std()) == pytest.approx(SENSITIVITY[kind] / per_query, rel=5 / math.sqrt(2 * len(draws)))
    assert abs(float(draws.mean())) < 5 * float(draws.std()) / math.sqrt(len(draws))


def test_it_pays_before_it_reads(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "seen.jsonl", {"run": "x"})
    seen: list[int] = []
    data.on_read = lambda: seen.append(sum(line["kind"] == "spend" for line in read_ledger(ledger.path)))
    answers(open_session(data, [ONCE], ledger=ledger), "gradient")
    assert set(seen) == {1}


def test_what_is_not_planned_is_not_answered(records: Any, open_session: OpenSession) -> None:
    data = records()
    with pytest.raises(BudgetError, match="No data was read"):
        answers(open_session(data, [VOTES]), "gradient")
    assert data.reads == 0


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("votes", {"partition": "p", "shard": 0}, "is an event of shard 0 of 'p' and was asked of the whole vault"),
        ("signs", {"partition": "p", "shard": 0}, "is an event of shard 0 of 'p' and was asked of the whole vault"),
        ("agreement", {"source": "earlier"}, "was spent by an earlier run"),
        ("gradient", {"source": "earlier"}, "was spent by an earlier run"),
        ("votes", {"sampling_rate": 0.5}, "claims a sample at the rate 0.5"),
        ("agreement", {"sampling_rate": 0.5}, "claims a sample at the rate 0.5"),
        ("gradient", {"sampling_rate": 0.5}, "claims a sample at the rate 0.5"),
        ("signs", {"sampling_rate": 0.5}, "claims a sample at the rate 0.5"),
        ("gradient", {"count": 3}, "stands for 3 sums, and 1 would be released"),
        ("signs", {"count": 3}, "stands for 3 sums, and 1 would be released"),
    ],
)
def test_a_planned_event_that_is_of_another_kind_is_refused(
    kind: str, changes: dict[str, Any], message: str, records: Any, open_session: OpenSession
) -> None:
    data, event = records(), replace(EVENT[kind], **changes)
    session = open_session(data, [event])
    with pytest.raises(BudgetError, match=f"{message}.*No data was read"):
        answers(session, kind, event=event)
    assert data.reads == 0
    assert not [line for line in session._spending.ledger.lines if line["kind"] == "spend"]


def test_a_shard_has_no_teachers(records: Any, open_session: OpenSession) -> None:
    shard = open_session(records(), [ONCE]).shards(2, partition="p")[0]
    with pytest.raises(InputError, match="cannot be divided again"):
        answers(shard, "gradient")


def test_teachers_are_trained_once(records: Any, open_session: OpenSession) -> None:
    trained = []

    def train(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        trained.append(len(rows))
        return torch.ones(SHAPE)

    ensemble = open_session(records(30), [ONCE, ONCE]).ensemble(train, pixels, teachers=4)
    for _ in range(2):
        ensemble.gradient(lambda model: model, ONCE, shape=SHAPE, norm_bound=1.0)
    assert len(trained) <= 4
    assert sum(trained) == 30


def test_images_of_a_group_are_in_one_shard(records: Any, open_session: OpenSession) -> None:
    groups = np.arange(40) % 10
    data = records(40, groups=groups)
    data.images[:, 0, 0, 0] = groups
    shards: list[set[int]] = []

    def train(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        shards.append({round(float(value) * 255) for value in rows[:, 0]})
        return torch.ones(SHAPE)

    answers(open_session(data, [ONCE], unit="group"), "gradient", train, teachers=3)
    assert sum(len(shard) for shard in shards) == len(set.union(*shards)) == 10


@pytest.mark.parametrize("teachers", [0, 1, 61])
def test_too_few_teachers_or_records(teachers: int, records: Any, open_session: OpenSession) -> None:
    with pytest.raises(InputError, match="Expected 2 to 60 teachers"):
        open_session(records(60), [ONCE]).ensemble(volatile, pixels, teachers=teachers)


def test_answers_of_another_shape_are_refused(records: Any, open_session: OpenSession) -> None:
    with pytest.raises(VeilsetError, match="the shape"):
        answers(open_session(records(), [ONCE]), "gradient", lambda rows, labels: torch.ones(2, 2))


def test_models_cannot_be_reached_by_name() -> None:
    assert not [name for name in vars(Ensemble) if not name.startswith("_") and "model" in name]
