import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.progress import SILENT
from veilset.dpsgd.trainer import each_step, resume
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger, read_ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.rows import BATCH
from veilset.privacy.session import Session
from veilset.privacy.spending import Spending

OpenSession = Callable[..., Session]


def pixels(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return images.flatten(1).double() / 255


def huge(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return pixels(images, labels) * 1e6


SUM = Event(label="sum", noise_multiplier=1.0)


def total_of(session: Session, function: Any = pixels, event: Event = SUM, **options: Any) -> torch.Tensor:
    return session.gaussian_sum(function, event, **({"clip_norm": 1.0} | options))


def class_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return labels.double()[:, None]


# --- One act: plan, ledger, read ----------------------------------------------------------------------------------


def test_the_ledger_is_written_before_the_data_is_read(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "seen.jsonl", {"run": "x"})
    seen: list[int] = []
    data.on_read = lambda: seen.append(sum(line["kind"] == "spend" for line in read_ledger(ledger.path)))
    total_of(open_session(data, [SUM], ledger=ledger))
    assert seen
    assert set(seen) == {1}


@pytest.mark.parametrize(
    "overspend",
    [
        lambda s: total_of(s, event=replace(SUM, noise_multiplier=0.5)),
        lambda s: total_of(s, event=replace(SUM, label="another")),
        lambda s: total_of(s, event=replace(SUM, sampling_rate=0.5)),
        lambda s: s.gradient_steps(replace(SUM, count=2), clip_norm=1.0),
        lambda s: s.histogram(class_of, 3, Event(label="h", noise_multiplier=1.0)),
        lambda s: s.quantile(class_of, 0.5, [0, 1, 2], Event(label="h", noise_multiplier=1.0)),
        lambda s: total_of(s.shards(2, partition="p")[0]),
        lambda s: total_of(s.shards(2, partition="p")[0], event=replace(SUM, partition="p", shard=0)),
    ],
)
def test_what_is_not_in_the_plan_raises_before_a_read(records: Any, open_session: OpenSession, overspend: Any) -> None:
    data = records()
    with pytest.raises(BudgetError, match="No data was read"):
        overspend(open_session(data, [SUM]))
    assert data.reads == 0


OF_SHARD = replace(SUM, partition="p", shard=0)
WAYS = {
    "sum": lambda s, event: s.gaussian_sum(pixels, event, clip_norm=1.0),
    "histogram": lambda s, event: s.histogram(class_of, 3, event),
    "quantile": lambda s, event: s.quantile(class_of, 0.5, [0, 1, 2], event),
    "steps": lambda s, event: s.gradient_steps(event, clip_norm=1.0),
}


def refused(session: Session, spend: Any, event: Event, data: Any, message: str) -> None:
    """The event is in the plan, and yet nothing is spent or read for it."""
    with pytest.raises(BudgetError, match=f"{message}.*No data was read"):
        spend(session, event)
    assert data.reads == 0
    assert not [line for line in session._spending.ledger.lines if line["kind"] == "spend"]


@pytest.mark.parametrize("way", WAYS)
def test_an_event_of_a_shard_is_not_spent_on_the_whole_vault(way: str, records: Any, open_session: OpenSession) -> None:
    """It would touch all units and be accounted as if it touched one shard."""
    data = records()
    session = open_session(data, [OF_SHARD])
    refused(session, WAYS[way], OF_SHARD, data, "is an event of shard 0 of 'p' and was asked of the whole vault")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", [SUM, replace(OF_SHARD, shard=1), replace(OF_SHARD, partition="q")], ids=str)
def test_a_shard_spends_its_own_events_only(way: str, event: Event, records: Any, open_session: OpenSession) -> None:
    data = records()
    shard = open_session(data, [event, OF_SHARD]).shards(2, partition="p")[0]
    refused(shard, WAYS[way], event, data, "and was asked of shard 0 of 'p'")
    WAYS[way](shard, OF_SHARD)


@pytest.mark.parametrize("way", WAYS)
def test_an_event_of_an_earlier_run_is_not_spent_again(way: str, records: Any, open_session: OpenSession) -> None:
    data, event = records(), replace(SUM, source="an earlier release")
    refused(open_session(data, [event]), WAYS[way], event, data, "was spent by an earlier run")


@pytest.mark.parametrize("way", ["sum", "histogram", "quantile"])
def test_one_sum_is_not_paid_as_many(way: str, records: Any, open_session: OpenSession) -> None:
    data, event = records(), replace(SUM, count=2)
    refused(open_session(data, [event]), WAYS[way], event, data, "stands for 2 sums, and 1 would be released")


def test_a_quantile_of_all_units_is_not_paid_as_one_of_a_sample(records: Any, open_session: OpenSession) -> None:
    data, event = records(), replace(SUM, sampling_rate=0.5)
    refused(open_session(data, [event]), WAYS["quantile"], event, data, "claims a sample at the rate 0.5")


def test_a_partition_is_divided_in_one_way(records: Any, open_session: OpenSession) -> None:
    """Of two ways, a unit could be in shard 0 of one and in shard 1 of the other, which compose in parallel."""
    session = open_session(records(), [SUM])
    first, again = (session.shards(2, partition="p") for _ in range(2))
    assert [shard._units.tolist() for shard in first] == [shard._units.tolist() for shard in again]
    with pytest.raises(BudgetError, match="divided in another way already"):
        session.shards(3, partition="p")
    assert len(session.shards(3, partition="q")) == 3
    with pytest.raises(InputError, match="cannot be divided again"):
        first[0].shards(2, partition="r")


def test_an_event_is_spent_once(records: Any, open_session: OpenSession) -> None:
    data = records()
    session = open_session(data, [SUM])
    total_of(session)
    reads = data.reads
    with pytest.raises(BudgetError, match="spent already"):
        total_of(session)
    assert data.reads == reads


def test_a_plan_that_is_not_spent_is_an_error(records: Any, open_session: OpenSession) -> None:
    session = open_session(records(), [SUM, Event(label="rest", noise_multiplier=2.0)])
    total_of(session)
    with pytest.raises(VeilsetError, match="without spending rest"):
        session.finish()


# --- Sensitivity on neighbouring datasets -------------------------------------------------------------------------


def neighbours(records: Any, groups: np.ndarray | None = None) -> tuple[Any, Any]:
    """The same records with and without the last unit."""
    whole, less = records(groups=groups), records(groups=groups)
    keep = np.arange(60) < 59 if groups is None else groups != groups[-1]
    less.images, less.labels = less.images[keep], less.labels[keep]
    less.groups = None if groups is None else groups[keep]
    return whole, less


@pytest.mark.parametrize("function", [pixels, huge])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("unit", ["record", "group"])
def test_one_unit_moves_a_sum_by_at_most_the_clip_norm(
    records: Any, open_session: OpenSession, silent_noise: NoiseSource, function: Any, by_class: bool, unit: str
) -> None:
    groups = np.repeat(np.arange(12), 5) if unit == "group" else None
    with_it, without_it = (
        total_of(open_session(data, [SUM], noise=silent_noise, unit=unit), function, clip_norm=0.7, by_class=by_class)
        for data in neighbours(records, groups)
    )
    # What silent noise leaves of the final rounding is half a cell of 2^-10 standard deviations on either side.
    rounding = 0.7 * 2**-10 * np.sqrt(with_it.numel())
    moved = float((with_it - without_it).norm())
    assert moved <= 0.7 + rounding
    assert moved >= 0.7 - rounding, "these rows are longer than the clip norm, so the bound is reached"


def test_a_histogram_moves_by_at_most_one(records: Any, open_session: OpenSession, silent_noise: NoiseSource) -> None:
    event = Event(label="classes", noise_multiplier=1.0)
    with_it, without_it = (
        open_session(data, [event], noise=silent_noise).histogram(class_of, 3, event) for data in neighbours(records)
    )
    assert float((with_it - without_it).norm()) == pytest.approx(1.0, abs=2**-8)
    assert with_it.tolist() == pytest.approx([20, 20, 20], abs=2**-8)


def test_shards_are_disjoint_and_a_unit_keeps_its_shard(
    records: Any, open_session: OpenSession, silent_noise: Any
) -> None:
    def per_shard(data: Any) -> torch.Tensor:
        events = [Event(label="n", noise_multiplier=1.0, partition="p", shard=shard) for shard in range(4)]
        shards = open_session(data, events, noise=silent_noise).shards(4, partition="p")
        sums = [
            shard.gaussian_sum(lambda i, k: torch.ones(len(k), 1), event, clip_norm=1.0)
            for shard, event in zip(shards, events, strict=True)
        ]
        return torch.stack([one[0] for one in sums])

    whole, less = (per_shard(data) for data in neighbours(records))
    assert float(whole.sum()) == pytest.approx(60, abs=0.1)
    assert min(whole) > 3, "a keyed hash spreads units evenly"
    moved = (whole - less).abs()
    assert float(moved.max()) == pytest.approx(1, abs=0.01)
    assert int((moved > 0.5).sum()) == 1, "one unit touches one shard, and no other unit changes place"


def test_a_group_counts_as_the_average_of_its_images(
    records: Any, open_session: OpenSession, silent_noise: Any
) -> None:
    groups = np.array([0, 0, 0, 1])
    data = records(4, groups=groups)
    data.labels = np.array([0, 0, 1, 2])
    result = total_of(open_session(data, [SUM], noise=silent_noise, unit="group"), clip_norm=100.0, by_class=True)
    flat = torch.from_numpy(data.images.reshape(4, -1)).double() / 255
    expected = torch.stack([(flat[0] + flat[1]) / 3, flat[2] / 3, flat[3]])
    torch.testing.assert_close(result, expected, atol=0.1, rtol=0)


def test_groups_larger_than_a_batch_are_read_whole(records: Any, open_session: OpenSession, silent_noise: Any) -> None:
    groups = np.repeat(np.arange(6), 10)
    small, large = (
        total_of(open_session(records(groups=groups), [SUM], noise=silent_noise, unit="group"), batch=batch)
        for batch in (3, 500)
    )
    assert torch.equal(small, large), "sums on the grid are exact, whatever the batches"


def test_rows_that_are_not_finite_count_as_zero(records: Any, open_session: OpenSession, silent_noise: Any) -> None:
    def poisoned(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = pixels(images, labels)
        rows[images.flatten(1).double().mean(1) > 128] = torch.nan
        return torch.nan_to_num(rows, nan=torch.inf)

    data = records()
    data.images = np.concatenate([np.full((1, 4, 4, 1), 255, np.uint8), np.full((59, 4, 4, 1), 10, np.uint8)])
    data.labels = np.arange(60) % 3
    result = total_of(open_session(data, [SUM], noise=silent_noise), poisoned, clip_norm=10.0)
    torch.testing.assert_close(result, torch.full((16,), 59 * 10 / 255, dtype=torch.float64), atol=0.05, rtol=0)


def test_a_function_that_mixes_records_is_refused(records: Any, open_session: OpenSession) -> None:
    data = records()
    with pytest.raises(VeilsetError, match="Treat images alone"):
        total_of(
            open_session(data, [SUM]), lambda images, labels: pixels(images, labels) - pixels(images, labels).mean(0)
        )
    with pytest.raises(VeilsetError, match="one row of numbers per image"):
        total_of(open_session(data, [SUM]), lambda images, labels: pixels(images, labels).sum(0))
    assert data.reads == 0


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf"), 1e-43, 8e-315])
def test_a_clip_norm_must_be_positive_and_of_this_world(
    records: Any, open_session: OpenSession, clip_norm: float
) -> None:
    with pytest.raises(InputError, match="clip_norm > 0"):
        total_of(open_session(records(), [SUM]), clip_norm=clip_norm)


# --- Noise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip_norm", "noise_multiplier"), [(1.0, 1.0), (0.2, 5.0)])
def test_each_mechanism_adds_the_noise_that_its_event_claims(
    records: Any, open_session: OpenSession, clip_norm: float, noise_multiplier: float
) -> None:
    width = 40_000
    whole = Event(label="sum", noise_multiplier=noise_multiplier)
    sampled = Event(label="some", noise_multiplier=noise_multiplier, sampling_rate=0.5)
    steps = Event(label="train", noise_multiplier=noise_multiplier, sampling_rate=0.3, count=1)
    session = open_session(records(), [whole, sampled, steps], noise=NoiseSource())

    def nothing(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(labels), width)

    training = session.gradient_steps(steps, clip_norm=clip_norm)
    released = [
        session.gaussian_sum(nothing, whole, clip_norm=clip_norm),
        session.gaussian_sum(nothing, sampled, clip_norm=clip_norm),
        training.step(lambda images, labels: [torch.zeros(width)])[0],
    ]
    for result in released:
        spread = float(result.double().std()) / (clip_norm * noise_multiplier)
        # Six standard deviations of an estimate from 40,000 draws.
        assert abs(spread - 1) < 6 / np.sqrt(2 * width)
    assert not torch.equal(released[0], released[1]), "no noise is used twice"


# --- Quantiles ----------------------------------------------------------------------------------------------------


def test_a_quantile_lies_where_it_should(records: Any, open_session: OpenSession) -> None:
    data = records(3000)
    data.images = np.repeat(np.arange(3000) % 100, 16).reshape(3000, 4, 4, 1).astype(np.uint8)
    event = Event(label="q", noise_multiplier=2.0)
    session = open_session(data, [event])
    found = session.quantile(
        lambda images, labels: images.flatten(1).double().mean(1, keepdim=True),
        0.9,
        [0, 20, 40, 60, 70, 80, 85, 90, 95, 100],
        event,
    )
    assert found in (85.0, 90.0, 95.0)


# --- Gradient steps -----------------------------------------------------------------------------------------------

STEPS = Event(label="train", noise_multiplier=1.0, sampling_rate=0.3, count=60)


def test_steps_end_when_they_are_spent(records: Any, open_session: OpenSession) -> None:
    steps = open_session(records(), [STEPS]).gradient_steps(STEPS, clip_norm=1.0)
    sizes: list[int] = []
    for _ in range(60):
        (noisy,) = steps.step(lambda images, labels: [torch.full((2, 3), float(sizes.append(len(images)) or 0))])
        assert noisy.shape == (2, 3)
    with pytest.raises(BudgetError, match="All 60 steps"):
        steps.step(lambda images, labels: [])
    # 3600 coins of .3: six standard deviations are 165.
    assert abs(sum(sizes) - 1080) < 165


def test_a_sampled_group_gives_one_image(records: Any, open_session: OpenSession) -> None:
    data = records(groups=np.repeat(np.arange(12), 5))
    data.images[:] = np.repeat(np.arange(12), 5)[:, None, None, None]
    steps = open_session(data, [STEPS], unit="group").gradient_steps(STEPS, clip_norm=1.0)
    for _ in range(60):
        drawn: list[int] = []
        steps.step(lambda images, labels, drawn=drawn: drawn.extend(images[:, 0, 0, 0].tolist()) or [torch.zeros(1)])
        assert len(drawn) == len(set(drawn)), "two images of one group in a step would be twice its sensitivity"


def test_features_are_computed_once_and_stand_for_the_images(records: Any, open_session: OpenSession) -> None:
    data = records()
    calls: list[int] = []

    def features(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return pixels(images, labels) + labels[:, None]

    steps = open_session(data, [STEPS]).gradient_steps(STEPS, clip_norm=1.0, features=features)
    calls.clear()
    for _ in range(60):
        seen: list[torch.Tensor] = []
        steps.step(lambda rows, labels, seen=seen: seen.extend((rows, labels)) or [torch.zeros(1)])
        rows, labels = seen
        expected = {
            tuple((image.flatten() / 255 + k).tolist()) for image, k in zip(data.images, data.labels, strict=True)
        }
        assert rows.shape == (len(labels), 16)
        assert all(min(np.abs(np.array(list(expected)) - row.numpy()).max(1)) < 1e-6 for row in rows)
    assert calls == [BATCH], "each image once, not once a step, in a batch of one shape"
    with pytest.raises(VeilsetError, match="Treat images alone"):
        open_session(data, [STEPS]).gradient_steps(
            STEPS, clip_norm=1.0, features=lambda i, k: pixels(i, k) - pixels(i, k).mean(0)
        )


def test_a_shard_computes_its_own_features_only(records: Any, open_session: OpenSession) -> None:
    data, seen = records(), []

    def features(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.extend(image for image in images if bool(image.any()))  # batches are filled up with black
        return pixels(images, labels)

    events = [replace(STEPS, partition="halves", shard=shard) for shard in (0, 1)]
    for shard, event in zip(open_session(data, events).shards(2, partition="halves"), events, strict=True):
        steps = shard.gradient_steps(event, clip_norm=1.0, features=features)
        own = len(shard._units)
        seen.clear()
        steps.step(lambda rows, labels: [torch.zeros(1)])
        assert steps._cache is not None
        assert len(steps._cache[0]) == len(seen) == own < 60


def test_a_shard_without_units_has_rows_of_the_right_width(records: Any, open_session: OpenSession) -> None:
    session = open_session(records(), [STEPS])
    session._units = session._units[:0]
    steps, shapes = session.gradient_steps(STEPS, clip_norm=1.0, features=pixels), []
    steps.step(lambda rows, labels: shapes.append(rows.shape) or [torch.zeros(1)])
    assert shapes == [(0, 16)]


def test_a_resumed_run_cannot_repeat_a_step(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "l.jsonl", {"run": "x"})
    steps = open_session(data, [STEPS], ledger=ledger).gradient_steps(STEPS, clip_norm=1.0)
    for _ in range(7):
        steps.step(lambda images, labels: [torch.zeros(1)])
    ledger.close()
    resumed = open_session(data, [STEPS], ledger=Ledger.reopen(ledger.path)).gradient_steps(STEPS, clip_norm=1.0)
    assert resumed.steps_left == 60 - resumed.lease_size


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


class Counted:
    """Progress that is counted."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int]] = []
        self.done = 0

    def task(self, label: str, total: int) -> Any:
        self.tasks.append((label, total))
        return nullcontext(self)

    def advance(self, amount: int = 1) -> None:
        self.done += amount

    def note(self, text: str) -> None:
        raise AssertionError(text)


def test_one_loop_takes_keeps_and_resumes(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    def zeros(images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros(1)]

    first, follower, numbers = open_session(records(), [STEPS], workspace=tmp_path), Follower(), []
    steps, progress = first.gradient_steps(STEPS, clip_norm=1.0), Counted()
    steps.lease_size = 20
    assert not resume(steps, follower)
    for number in each_step(steps, follower, progress, "learning"):
        numbers.append(number)
        steps.step(zeros)
        follower.done += 1
        if number == 29:  # within the second lease, whose other steps are lost
            break
    assert follower.states == [20]
    assert (progress.tasks, progress.done) == ([("learning", 60)], 29)
    again = open_session(records(), [STEPS], workspace=tmp_path, ledger=first._spending.ledger)
    steps, resumed = again.gradient_steps(STEPS, clip_norm=1.0), Follower()
    assert resume(steps, resumed)
    assert resumed.done == 20
    for number in each_step(steps, resumed, progress, "learning"):
        numbers.append(number)
        steps.step(zeros)
        resumed.done += 1
    assert numbers == [*range(30), *range(40, 60)], "counted over the whole event"
    assert resumed.states == [40]
    assert progress.tasks[1:] == [("learning", 20)]
    assert steps.steps_left == 0


@pytest.mark.parametrize("taken", [0, 2])
def test_a_loop_that_takes_no_step_or_two_is_refused(taken: int, records: Any, open_session: OpenSession) -> None:
    steps = open_session(records(), [STEPS]).gradient_steps(STEPS, clip_norm=1.0)
    loop = each_step(steps, Follower(), SILENT, "learning")
    next(loop)
    for _ in range(taken):
        steps.step(lambda images, labels: [torch.zeros(1)])
    with pytest.raises(VeilsetError, match=f"Expected one step of 'learning' .* got {taken}"):
        next(loop)


def test_an_event_has_its_own_steps_beside_another_of_its_name(
    records: Any, open_session: OpenSession, tmp_path: Path
) -> None:
    short = replace(STEPS, count=5)
    session = open_session(records(), [STEPS, short])
    session.gradient_steps(STEPS, clip_norm=1.0).step(lambda images, labels: [torch.zeros(1)])
    steps = session.gradient_steps(short, clip_norm=1.0)
    for _ in range(5):
        steps.step(lambda images, labels: [torch.zeros(1)])
    with pytest.raises(BudgetError, match="are taken"):
        steps.step(lambda images, labels: [torch.zeros(1)])


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_paid_steps_cannot_be_copied(records: Any, open_session: OpenSession, how: Any) -> None:
    steps = open_session(records(), [STEPS]).gradient_steps(STEPS, clip_norm=1.0)
    with pytest.raises(BudgetError, match="cannot be copied"):
        how(steps)


@pytest.mark.parametrize(("name", "value"), [("event", STEPS), ("clip_norm", 2.0), ("steps_left", 9)])
def test_what_was_paid_for_cannot_be_changed(records: Any, open_session: OpenSession, name: str, value: object) -> None:
    steps = open_session(records(), [STEPS]).gradient_steps(STEPS, clip_norm=1.0)
    with pytest.raises(AttributeError):
        setattr(steps, name, value)


def test_no_more_steps_are_leased_than_were_paid_for(records: Any, open_session: OpenSession) -> None:
    data = records()
    session = open_session(data, [STEPS])
    steps = session.gradient_steps(STEPS, clip_norm=1.0)
    steps._steps_left = 10 * STEPS.count  # a mistake in the counting of steps
    for _ in range(STEPS.count // steps.lease_size):
        steps._paid.lease(steps.lease_size)
    reads = data.reads
    with pytest.raises(BudgetError, match="paid steps are left"):
        steps.step(lambda images, labels: [torch.zeros(1)])
    assert data.reads == reads


# --- Resuming -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_gets_what_it_paid_for(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "l.jsonl", {"run": "x"})
    first = total_of(open_session(data, [SUM], ledger=ledger, workspace=tmp_path, noise=NoiseSource()))
    ledger.close()
    reads = data.reads
    ledger = Ledger.reopen(ledger.path)
    second = total_of(open_session(data, [SUM], ledger=ledger, workspace=tmp_path, noise=NoiseSource()))
    assert torch.equal(first, second)
    assert data.reads == reads
    assert ledger.events == [SUM]


def test_a_share_that_was_cut_off_while_reading_is_lost(
    records: Any, open_session: OpenSession, tmp_path: Path
) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "l.jsonl", {"run": "x"})

    def power_cut() -> None:
        raise KeyboardInterrupt

    data.on_read = power_cut
    with pytest.raises(KeyboardInterrupt):
        total_of(open_session(data, [SUM], ledger=ledger, workspace=tmp_path))
    ledger.close()
    data.on_read = lambda: None
    with pytest.raises(BudgetError, match="that share is spent"):
        total_of(open_session(data, [SUM], ledger=Ledger.reopen(ledger.path), workspace=tmp_path))


class SlyPlan(Plan):
    """Says that it holds events which it does not hold."""

    @property
    def own(self):
        return (Event(label="sum", noise_multiplier=1e-6),)


class SlyEvent(Event):
    """Equal to whatever it is compared with."""

    def __eq__(self, other):
        return True

    __hash__ = Event.__hash__


def test_a_plan_or_an_event_of_another_kind_pays_for_nothing(records: Any, open_session: OpenSession) -> None:
    data = records()
    session = open_session(data, [SUM])
    sly_plan = SlyPlan(budget=session.plan.budget, events=(SUM,))
    session._spending.unspent = Spending(sly_plan, session._spending.ledger, None).unspent
    for sly in (Event(label="sum", noise_multiplier=1e-6), SlyEvent(label="sum", noise_multiplier=1e-6)):
        with pytest.raises(BudgetError, match="No data was read"):
            total_of(session, event=sly)
    assert data.reads == 0
