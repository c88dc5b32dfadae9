"""Sums of rows over all units or a Poisson sample of them: clip each unit as one vector, add on a grid, add noise.

Histograms and quantiles are such sums: of one-hot rows, and of one-hot rows over public edges.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.progress import SILENT
from veilset.core.settings import require_clip_norm
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.noise import GRID_BITS, Claim, NoiseSource
from veilset.privacy.processes import release_to_all
from veilset.privacy.rows import LARGEST_NUMBER, PerImage, alone, clipped


def noisy_sum(
    per_image: PerImage, event: Event, opened: Opened, *, clip_norm: float, by_class: bool, batch: int
) -> Tensor:
    """The act behind `Session.gaussian_sum`: try the function, pay, read, clip, sum, add noise, keep.

    Privacy: as said there.
    """
    require_clip_norm(clip_norm, repr(event.label))
    row_of, width = alone(per_image, opened.facts, batch)
    kept = opened.spending.pay(event, sampled=True)
    if kept is not None:
        return kept
    spread = by_class and opened.facts.findings  # a row stands in the block of each finding: one long vector
    blocks = opened.facts.classes if by_class and not spread else 1
    width *= opened.facts.classes if spread else 1
    total = GridSum(blocks, width, clip_norm)
    units = opened.rows.poisson_sample(opened.own_units, event.sampling_rate, opened.noise)
    # How many units a sample, a shard or one of several processes holds is private: only a full sum shows its progress.
    is_full = event.sampling_rate == 1.0 and event.shard is None and opened.size == 1
    progress = opened.progress if is_full else SILENT
    with progress.task(event.label, opened.facts.units) as task, torch.no_grad():
        for sides in opened.rows.in_batches(units, batch):
            members, images, labels = map(torch.from_numpy, sides)
            values = row_of(images, labels).double()
            values = _in_blocks(values, labels) if spread else values
            places = labels if blocks > 1 else torch.zeros(len(labels), dtype=torch.int64)
            vectors, owners, places = _unit_vectors(values, members, places, blocks)
            total.add(clipped(vectors, owners, clip_norm, numbers=blocks * width), places)
            task.advance(int(members[-1]) + 1)
    released = total.release(opened.noise, event.noise_multiplier, event=event)
    if spread:
        released = released.reshape(opened.facts.classes, -1)
    return opened.spending.keep(released if by_class else released[0])


class GridSum:
    """An exact sum of rows whose L2 norm is at most `clip_norm`, and its noisy release.

    Privacy: adding or removing one row of norm at most `clip_norm` moves the exact sum by at most `clip_norm` in L2;
    `release` adds normal noise of `noise_multiplier * clip_norm` per coordinate.
    """

    def __init__(self, blocks: int, width: int, clip_norm: float) -> None:
        self._clip_norm = clip_norm
        self._step = clip_norm * 2.0**-GRID_BITS
        self._total = torch.zeros(blocks, width, dtype=torch.int64)

    def add(self, rows: Tensor, blocks: Tensor) -> None:
        """Add each row (float64, already clipped) to its block."""
        whole = torch.trunc(rows / self._step)
        # Integers below 2^53 add exactly in float64, and one product does all rows of a batch.
        share = torch.zeros(len(self._total), len(rows), dtype=torch.float64)
        share[blocks, torch.arange(len(rows))] = 1.0
        self._total += (share @ whole).to(torch.int64)

    def release(
        self,
        noise: NoiseSource,
        noise_multiplier: float,
        *,
        sensitivity: float | None = None,
        parts: int = 1,
        event: Event | None = None,
    ) -> Tensor:
        """The sum with noise, in float64.

        Each row is a unit's own, and may move the sum by the clip norm. Where rows are the answers of shards,
        `sensitivity` says how far one unit may move each of `parts` equal parts of the sum, each paid for on its own.
        """
        claim = Claim(
            step=self._step,
            sensitivity=self._clip_norm if sensitivity is None else sensitivity,
            noise_multiplier=noise_multiplier,
            parts=parts,
            event=event,
            of_units=sensitivity is None,
        )
        return release_to_all(self._total, claim, noise)


def one_hot_rows(bin_of: PerImage, bins: int) -> PerImage:
    """Rows (b, bins) with a one in the bin of each image; zeros where `bin_of` names a bin that is not there."""

    def one_hot(images: Tensor, labels: Tensor) -> Tensor:
        return (bin_of(images, labels).reshape(-1, 1) == torch.arange(bins)).double()

    return one_hot


class Edges:
    """Public edges of bins, in which a quantile of private values is looked for."""

    def __init__(self, edges: Sequence[float], fraction: float, of: str) -> None:
        if not 0 < fraction < 1:
            raise InputError(f"Expected 0 < fraction < 1, got {fraction} for {of!r}.")
        self._bounds = torch.as_tensor(edges, dtype=torch.float64)
        if len(self._bounds) < 2 or not bool((self._bounds[1:] > self._bounds[:-1]).all()):
            raise InputError(f"Expected at least two rising edges for {of!r}.")
        self._fraction = fraction
        self.bins = len(self._bounds) - 1

    def bin_of(self, value_of: PerImage) -> PerImage:
        """The bin of each image's value; values beyond the edges fall into the first or the last."""
        bounds = self._bounds

        def found(images: Tensor, labels: Tensor) -> Tensor:
            values = value_of(images, labels).double().reshape(-1).contiguous()
            return torch.bucketize(values.clamp(bounds[0], bounds[-1]), bounds[1:-1])

        return found

    def reached(self, counts: Tensor, units: int) -> float:
        """The edge below which the fraction of `units` lies, by noisy counts of the bins."""
        reached = torch.nonzero(counts.cumsum(0) / units >= self._fraction)
        return float(self._bounds[int(reached[0]) + 1] if len(reached) else self._bounds[-1])


def _in_blocks(values: Tensor, findings: Tensor) -> Tensor:
    """Rows (n, d) in the block of each finding that an image has, as one vector (n, F d): it is clipped as one."""
    kept = torch.where((values.abs() < LARGEST_NUMBER).all(dim=1, keepdim=True), values, 0.0)
    return (findings[:, :, None] * kept[:, None, :]).flatten(1)


def _unit_vectors(values: Tensor, members: Tensor, labels: Tensor, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Average the images of each unit and class: the vectors, the unit of each, the class of each.

    `index_add_` adds one row after the other, here in the unit's own order, so that its average is its own to the last
    bit.
    """
    values = torch.where((values.abs() < LARGEST_NUMBER).all(dim=1, keepdim=True), values, 0.0)
    sizes = torch.bincount(members)
    if bool((sizes == 1).all()):
        return values, members, labels
    pairs, position = torch.unique(members * blocks + labels, return_inverse=True)
    vectors = torch.zeros(len(pairs), values.shape[1], dtype=values.dtype)
    vectors.index_add_(0, position, values / sizes[members, None])
    return vectors, pairs // blocks, pairs % blocks
