"""Holes that were found in this code once, put back: the neighbour run has to catch every one.

Each twin is a small run with a claim. It does one thing that the real code did, or could do, and that noise on the sums
does not make good. As in sabotage.py, nothing but the audit's command may import them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from veilset.audit.neighbours import Neighbours, NeighbourSubject, Play
from veilset.audit.recorder import SPOKEN
from veilset.core.errors import VeilsetError
from veilset.data.images import ImageSet
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.noise import NoiseSource

_SHARDS = 4
_STEP = Event(label="sum", noise_multiplier=4.0)
_OVER_BANDS = Event(label="steps", noise_multiplier=4.0, bands=3)
_IN_SHARDS = tuple(
    Event(label="sum", noise_multiplier=4.0, partition="shards", shard=shard) for shard in range(_SHARDS)
)


def _toys(count: int = 41, *, bright: bool = False) -> Neighbours:
    """Images of random dots; the unit in question is one more of them, or an image that is white all over."""
    images = np.random.default_rng(6).integers(0, 256, (count, 4, 4, 1), dtype=np.uint8)
    if bright:
        images[-1] = 255
    records = ImageSet(images, np.arange(count) % _SHARDS, tuple("0123"), may_lack_classes=True)
    return Neighbours(records=records.subset(np.arange(count - 1)), unit=records.subset(np.array([count - 1])))


def _rows(records: ImageSet) -> Tensor:
    """A row of length 1 for each image."""
    rows = torch.from_numpy(records.images.reshape(len(records), -1).astype(np.float64)) + 1
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit


def _release(rows: Tensor, noise: NoiseSource, event: Event = _STEP) -> Tensor:
    """The real way out for rows that are clipped to length 1."""
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=1.0)
    total = GridSum(1, rows.shape[1], 1.0)
    total.add(rows / lengths * (1 - 2.0**-40), torch.zeros(len(rows), dtype=torch.int64))
    return total.release(noise, event.noise_multiplier, event=event)[0]


def split_by_position(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """A federation's sites, or shards, that are slices of the list: a record removed moves all that follow it."""
    for shard, event in enumerate(_IN_SHARDS):
        _release(_rows(records)[shard::_SHARDS], noise, event)
    return {}


def bands_without_groups(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """Correlated noise on samples of all units: a unit takes part twice where one part was paid for."""
    for _ in range(_OVER_BANDS.steps):
        _release(_rows(records), noise, _OVER_BANDS)
    return {}


def limit_by_shuffle(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """The first N after a shuffle with a public seed: one record more, and another N is chosen."""
    chosen = np.random.default_rng(0).permutation(len(records))[:20]
    _release(_rows(records)[chosen], noise)
    return {}


def augmentation_by_position(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """Images are turned over by draws from a published seed, one after the other: a record added shifts all draws."""
    coins = torch.Generator().manual_seed(0)
    centred = _rows(records) - 0.25
    turned = torch.randint(0, 2, (len(records), 1), generator=coins) * 2 - 1
    _release(centred / centred.norm(dim=1, keepdim=True) * turned, noise)
    return {}


def dropout_by_position(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """A network with dropout whose seed is published."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _release(torch.nn.functional.dropout(_rows(records), 0.5), noise)
    return {}


def rows_that_see_their_batch(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """Last bits that change with the size of the batch, and a vote that hangs on them: every tie turns over."""
    rows = _rows(records).float()
    bit = torch.finfo(torch.float32).eps * (len(rows) % 2 - 0.5)
    scores = torch.stack([rows.sum(dim=1), rows.sum(dim=1) * (1 + 4 * bit)], dim=1)
    _release(torch.nn.functional.one_hot(scores.argmax(dim=1), 2).double(), noise)
    return {}


def rows_less_their_mean(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """Rows from which a part of their common mean is taken: the sum moves by less than is claimed, here."""
    rows = _rows(records)
    _release(0.5 * (rows - 0.5 * rows.mean(dim=0)), noise)
    return {}


def notes_of_private_counts(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """A note to the person who waits says how many images there are."""
    SPOKEN.note(f"{len(records)} images")
    _release(_rows(records), noise)
    return {}


def float_sums(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """Sums of single precision in blocks, as matrix products make them: a record shifts who is rounded with whom."""
    many = np.random.default_rng(0).random(1 << 20)
    rows = np.concatenate([np.ones(len(records)), many, np.zeros(-len(records) % 4)]).astype(np.float32)
    blocks = rows.reshape(-1, 4).sum(axis=1, dtype=np.float32)
    summed = float(np.add.accumulate(blocks, dtype=np.float32)[-1])
    total = GridSum(1, 1, 1.0)
    total.add(torch.tensor([[summed]], dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    total.release(noise, _STEP.noise_multiplier, event=_STEP)
    return {}


def private_images_as_public(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """A method that starts from public images is handed the private ones."""
    _release(_rows(records), noise)
    return {"images": records.images[-10:].tobytes()}


def laundered_release(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
    """A release without a guarantee is the start of a run that claims one, whose events are all that is counted."""
    (workspace.parent / "other-release.npy").write_bytes(records.images.mean(axis=0).tobytes())
    _release(_rows(records), noise)
    return {"images": (workspace.parent / "other-release.npy").read_bytes()}


def clock_in_the_ledger(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """Lines say when they were written, and a large image takes longer. The clock here counts bright pixels."""
    _release(_rows(records), noise)
    return {"certificate": f"time {int((records.images > 250).sum())}".encode()}


def error_on_private_values(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """Training stops with a message when the loss of some record is not finite."""
    losses = 1 / (255.0 - records.images.reshape(len(records), -1).mean(axis=1, dtype=np.float64) + 1e-300)
    if losses.max() > 1e200:
        raise VeilsetError("The loss is not finite at step 1.")
    _release(_rows(records), noise)
    return {}


def padded_to_the_longest(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """Shards are padded to the longest, and all draw from one public stream of that shape: one grows, all move."""
    owner = records.labels % _SHARDS
    longest = int(np.bincount(owner, minlength=_SHARDS).max())
    draws = torch.rand(_SHARDS, longest, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for shard, event in enumerate(_IN_SHARDS):
        rows = _rows(records)[owner == shard]
        _release(rows * draws[shard, : len(rows), None], noise, event)
    return {}


def shared_step_size(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """A search whose step length is chosen for the whole batch: every result moves with every other image."""
    rows = _rows(records) * 100
    steps = 1 / rows.var(dim=0).max()
    _release(torch.sin(rows / steps), noise)
    return {}


def warning_from_counts(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """A warning about rare classes, from the counts themselves."""
    _release(_rows(records), noise)
    return {"warnings": f"Classes have {np.bincount(records.labels).tolist()} records.".encode()}


def checkpoint_without_noise(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
    """A checkpoint that keeps the sum as it was before the noise."""
    rows = _rows(records)
    _release(rows, noise)
    (workspace / "steps.npy").write_bytes(rows.sum(dim=0).numpy().tobytes())
    return {}


def steps_by_private_size(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """As many releases as there are batches of records: the number of events tells the number of records."""
    for start in range(0, len(records), 20):
        _release(_rows(records)[start : start + 20], noise)
    return {}


def all_shards_moved(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
    """Shards that are filled up evenly, the fullest last: each sum moves by one record, but many of them do."""
    order = np.argsort(records.digests()[:, 0], kind="stable")
    size = -(-len(records) // _SHARDS)
    for shard, event in enumerate(_IN_SHARDS):
        _release(_rows(records)[order[shard * size : (shard + 1) * size]] / 4, noise, event)
    return {}


def _findings_toys() -> Neighbours:
    """As `_toys`, with four findings, of which the unit in question has all."""
    toys = _toys()
    count = len(toys.records)
    matrix = np.random.default_rng(7).integers(0, 2, (count, _SHARDS))
    names = tuple("ABCD")
    return Neighbours(
        records=ImageSet(toys.records.images, matrix, names, may_lack_classes=True),
        unit=ImageSet(toys.unit.images, np.ones((1, _SHARDS), np.int64), names, may_lack_classes=True),
    )


def _released_as_claimed(rows: Tensor, noise: NoiseSource) -> None:
    """Rows that are said to have length 1, and are summed without a look."""
    total = GridSum(1, rows.shape[1], 1.0)
    total.add(rows * (1 - 2.0**-40), torch.zeros(len(rows), dtype=torch.int64))
    total.release(noise, _STEP.noise_multiplier, event=_STEP)


def findings_clipped_alone(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """The gradient of each finding is clipped by itself: F of them together are sqrt(F) long."""
    has = torch.tensor(records.labels, dtype=torch.float64)
    _released_as_claimed((has[:, :, None] * _rows(records)[:, None, :]).flatten(1), noise)
    return {}


def findings_counted_as_classes(
    records: ImageSet,
    noise: NoiseSource,
    workspace: Path,  # noqa: ARG001
) -> Mapping[str, bytes]:
    """A count of findings with the sensitivity of a count of classes, of which a record has one."""
    _released_as_claimed(torch.tensor(records.labels, dtype=torch.float64), noise)
    return {}


_TWINS: dict[str, tuple[Play, Callable[[], Neighbours]]] = {
    "shards by row number": (split_by_position, _toys),
    "bands without groups": (bands_without_groups, _toys),
    "shards of equal size": (all_shards_moved, _toys),
    "a limit by a shuffle": (limit_by_shuffle, _toys),
    "augmentation from a public seed": (augmentation_by_position, _toys),
    "dropout from a public seed": (dropout_by_position, _toys),
    "rows that see their batch": (rows_that_see_their_batch, _toys),
    "rows less their mean": (rows_less_their_mean, _toys),
    "a note from private counts": (notes_of_private_counts, _toys),
    "sums in single precision": (float_sums, _toys),
    "private images taken as public": (private_images_as_public, _toys),
    "a laundered release": (laundered_release, _toys),
    "a clock in the ledger": (clock_in_the_ledger, lambda: _toys(bright=True)),
    "an error that speaks of private values": (error_on_private_values, lambda: _toys(bright=True)),
    "padded to the longest shard": (padded_to_the_longest, _toys),
    "a step size shared by a batch": (shared_step_size, _toys),
    "a warning from private counts": (warning_from_counts, _toys),
    "a checkpoint without noise": (checkpoint_without_noise, _toys),
    "releases counted by private size": (steps_by_private_size, _toys),
    "findings clipped one by one": (findings_clipped_alone, _findings_toys),
    "findings counted as classes": (findings_counted_as_classes, _findings_toys),
}


def neighbour_sabotages() -> list[NeighbourSubject]:
    """The twins, each with the claim that it breaks."""
    return [
        NeighbourSubject(name=name, plan=_plan(play), play=play, worlds=toys()) for name, (play, toys) in _TWINS.items()
    ]


def sound_twin() -> NeighbourSubject:
    """The same toys summed as they should be: it must not be caught."""

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:  # noqa: ARG001
        released = _release(_rows(records), noise)
        return {"images": released.numpy().tobytes()}

    return NeighbourSubject(name="the sound sum", plan=_plan(play), play=play, worlds=_toys())


def _plan(play: Play) -> Plan:
    whole = _OVER_BANDS if play is bands_without_groups else _STEP
    sharded = play in (split_by_position, all_shards_moved, padded_to_the_longest)
    return Plan(budget=Budget(10.0, 1e-5), events=_IN_SHARDS if sharded else (whole,))
