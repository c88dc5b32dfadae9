"""Sums of rows over all units or a Poisson sample of them: clip each unit as one vector, add on a grid, add noise.

Histograms and quantiles are such sums: of one-hot rows, and of one-hot rows over public edges.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.progress import SILENT
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.noise import GridSum
from veilset.privacy.processes import rank_and_size
from veilset.privacy.rows import LARGEST_NUMBER, PerImage, alone, below, require_clip_norm, squared_lengths
from veilset.privacy.sampling import Units, poisson_sample
from veilset.privacy.vault import UnitRows


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
    blocks = opened.facts.classes if by_class else 1
    total = GridSum(blocks, width, clip_norm)
    rank, size = rank_and_size()
    units = poisson_sample(opened.rows, opened.units[rank::size], event.sampling_rate, opened.noise)
    # How many units a sample or a shard holds is private, so only a full sum shows its progress.
    progress = opened.progress if event.sampling_rate == 1.0 and event.shard is None else SILENT
    with progress.task(event.label, opened.facts.units) as task, torch.no_grad():
        for members, rows, count in _unit_batches(opened.rows, units, batch):
            images, labels = (torch.from_numpy(side) for side in opened.rows.read(rows))
            values = row_of(images, labels).double()
            vectors, owners, places = _unit_vectors(values, members, labels if by_class else labels * 0, blocks)
            scale = below(clip_norm, blocks * width) / _norms(vectors, owners).clamp(min=clip_norm)
            total.add(vectors * scale[owners, None], places)
            task.advance(count * size)
    released = total.release(opened.noise, event.noise_multiplier, event=event)
    return opened.spending.keep(released if by_class else released[0])


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


def _unit_batches(rows: UnitRows, units: Units, batch: int) -> Iterator[tuple[Tensor, np.ndarray, int]]:
    """Whole units, as many as `batch` images hold: the place of each image's unit, the rows, how many units."""
    sizes = rows.starts[units + 1] - rows.starts[units]
    ends = np.cumsum(sizes)
    start = 0
    while start < len(units):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + batch, side="right")))
        chosen = units[start:stop]
        members = np.repeat(np.arange(stop - start), sizes[start:stop])
        yield torch.from_numpy(members), np.concatenate([rows.of(unit) for unit in chosen]), stop - start
        start = stop


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


def _norms(vectors: Tensor, owners: Tensor) -> Tensor:
    """The L2 norm of each unit over all of its vectors."""
    squares = torch.zeros(int(owners.max()) + 1, dtype=vectors.dtype)
    squares.index_add_(0, owners, squared_lengths(vectors))
    return squares.sqrt()
