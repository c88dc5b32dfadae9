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
from veilset.privacy.noise import NoiseSource
from veilset.privacy.rows import BATCH
from veilset.privacy.session import Session

OpenSession = Callable[..., Session]


def pixels(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return images.flatten(1).double() / 255


def huge(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return pixels(images, labels) * 1e6


def total_of(session: Session, function: Any = pixels, **options: Any) -> torch.Tensor:
    return session.gaussian_sum(function, **({"label": "sum", "clip_norm": 1.0, "noise_multiplier": 1.0} | options))


SUM = Event(label="sum", noise_multiplier=1.0)


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
        lambda s: total_of(s, noise_multiplier=0.5),
        lambda s: total_of(s, label="another"),
        lambda s: total_of(s, sampling_rate=0.5),
        lambda s: s.gradient_steps(label="sum", clip_norm=1.0, noise_multiplier=1.0, sampling_rate=1.0, steps=2),
        lambda s: s.histogram(lambda i, k: k.double()[:, None], 3, label="h", noise_multiplier=1.0),
        lambda s: s.shards(2, partition="p")[0].gaussian_sum(pixels, label="sum", clip_norm=1.0, noise_multiplier=1.0),
    ],
)
def test_what_is_not_in_the_plan_raises_before_a_read(records: Any, open_session: OpenSession, overspend: Any) -> None:
    data = records()
    with pytest.raises(BudgetError, match="No data was read"):
        overspend(open_session(data, [SUM]))
    assert data.reads == 0


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
        open_session(data, [event], noise=silent_noise).histogram(
            lambda images, labels: labels.double()[:, None], 3, label="classes", noise_multiplier=1.0
        )
        for data in neighbours(records)
    )
    assert float((with_it - without_it).norm()) == pytest.approx(1.0, abs=2**-8)
    assert with_it.tolist() == pytest.approx([20, 20, 20], abs=2**-8)


def test_shards_are_disjoint_and_a_unit_keeps_its_shard(
    records: Any, open_session: OpenSession, silent_noise: Any
) -> None:
    def per_shard(data: Any) -> torch.Tensor:
        events = [Event(label="n", noise_multiplier=1.0, partition="p", shard=shard) for shard in range(4)]
        shards = open_session(data, events, noise=silent_noise).shards(4, partition="p")
        options = {"label": "n", "clip_norm": 1.0, "noise_multiplier": 1.0}
        return torch.stack([s.gaussian_sum(lambda i, k: torch.ones(len(k), 1), **options)[0] for s in shards])

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
    options = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier}
    whole = Event(label="sum", noise_multiplier=noise_multiplier)
    sampled = Event(label="some", noise_multiplier=noise_multiplier, sampling_rate=0.5)
    steps = Event(label="train", noise_multiplier=noise_multiplier, sampling_rate=0.3, count=1)
    session = open_session(records(), [whole, sampled, steps], noise=NoiseSource())

    def nothing(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(labels), width)

    training = session.gradient_steps(label="train", sampling_rate=0.3, steps=1, **options)
    released = [
        session.gaussian_sum(nothing, label="sum", **options),
        session.gaussian_sum(nothing, label="some", sampling_rate=0.5, **options),
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
    session = open_session(data, [Event(label="q", noise_multiplier=2.0)])
    found = session.quantile(
        lambda images, labels: images.flatten(1).double().mean(1, keepdim=True),
        0.9,
        [0, 20, 40, 60, 70, 80, 85, 90, 95, 100],
        label="q",
        noise_multiplier=2.0,
    )
    assert found in (85.0, 90.0, 95.0)


# --- Gradient steps -----------------------------------------------------------------------------------------------

STEPS = Event(label="train", noise_multiplier=1.0, sampling_rate=0.3, count=60)
OPTIONS = {"label": "train", "clip_norm": 1.0, "noise_multiplier": 1.0, "sampling_rate": 0.3, "steps": 60}


def test_steps_end_when_they_are_spent(records: Any, open_session: OpenSession) -> None:
    steps = open_session(records(), [STEPS]).gradient_steps(**OPTIONS)
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
    steps = open_session(data, [STEPS], unit="group").gradient_steps(**OPTIONS)
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

    steps = open_session(data, [STEPS]).gradient_steps(**OPTIONS, features=features)
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
        open_session(data, [STEPS]).gradient_steps(**OPTIONS, features=lambda i, k: pixels(i, k) - pixels(i, k).mean(0))


def test_a_shard_computes_its_own_features_only(records: Any, open_session: OpenSession) -> None:
    data, seen = records(), []

    def features(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.extend(image for image in images if bool(image.any()))  # batches are filled up with black
        return pixels(images, labels)

    events = [replace(STEPS, partition="halves", shard=shard) for shard in (0, 1)]
    for shard in open_session(data, events).shards(2, partition="halves"):
        steps = shard.gradient_steps(**OPTIONS, features=features)
        own = len(shard._units)
        seen.clear()
        steps.step(lambda rows, labels: [torch.zeros(1)])
        assert steps._cache is not None
        assert len(steps._cache[0]) == len(seen) == own < 60


def test_a_shard_without_units_has_rows_of_the_right_width(records: Any, open_session: OpenSession) -> None:
    session = open_session(records(), [STEPS])
    session._units = session._units[:0]
    steps, shapes = session.gradient_steps(**OPTIONS, features=pixels), []
    steps.step(lambda rows, labels: shapes.append(rows.shape) or [torch.zeros(1)])
    assert shapes == [(0, 16)]


def test_a_resumed_run_cannot_repeat_a_step(records: Any, open_session: OpenSession, tmp_path: Path) -> None:
    data = records()
    ledger = Ledger.create(tmp_path / "l.jsonl", {"run": "x"})
    steps = open_session(data, [STEPS], ledger=ledger).gradient_steps(**OPTIONS)
    for _ in range(7):
        steps.step(lambda images, labels: [torch.zeros(1)])
    ledger.close()
    resumed = open_session(data, [STEPS], ledger=Ledger.reopen(ledger.path)).gradient_steps(**OPTIONS)
    assert resumed.steps_left == 60 - resumed.lease_size


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
