"""The only ways to touch a vault. Each call is one act: check the plan, write the ledger, read, clip, sum, add noise.

A `Session` is a vault opened for one plan. A call whose event is not in the plan, or not in it any more, raises before
anything is read. What a call returned is kept in the run's workspace: it is paid for, so a resumed run gets it again.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.dpsgd_steps import ClippedSum, GradientSteps, PerImage, require_batch
from veilset.privacy.mechanisms.shard_critics import Critic, Critics
from veilset.privacy.mechanisms.shard_votes import Ensemble, TrainShard
from veilset.privacy.noise import GridSum, NoiseSource
from veilset.privacy.processes import RunLedger, rank_and_size
from veilset.privacy.rows import BATCH, LARGEST_NUMBER, alone, below, require_alone, require_clip_norm, squared_lengths
from veilset.privacy.sampling import Units, poisson_sample, shard_of_each
from veilset.privacy.spending import Purse
from veilset.privacy.vault import PublicFacts, UnitRows, Vault, contents_of

__all__ = ["ClippedSum", "Critics", "Ensemble", "GradientSteps", "PerImage", "Session"]


class Session:
    """A vault opened to spend one plan through mechanisms, and in no other way."""

    def __init__(
        self,
        vault: Vault,
        plan: Plan,
        ledger: RunLedger,
        noise: NoiseSource,
        *,
        workspace: Path | None = None,
        progress: Progress = SILENT,
    ) -> None:
        plan.budget.check_against(vault.facts.units)
        self.facts: PublicFacts = vault.facts
        self.plan = plan
        self._rows = contents_of(vault)
        self._units: Units = np.arange(self._rows.count)
        self._purse = Purse(plan, ledger, workspace)
        self._noise = noise
        self._progress = progress
        self._branch: tuple[str | None, int | None] = (None, None)

    def planned(self, label: str) -> Event:
        """The event called `label` in the plan, so that a method takes its noise from the plan and nowhere else."""
        for event in self.plan.own:
            if event.label == label:
                return event
        raise BudgetError(f"There is no {label!r} in the plan. No data was read.")

    def gaussian_sum(
        self,
        per_image: PerImage,
        *,
        label: str,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float = 1.0,
        by_class: bool = False,
        batch: int = BATCH,
    ) -> torch.Tensor:
        """The sum of `per_image` over the vault, or over a Poisson sample of it, with Gaussian noise.

        Returns (d,) or, `by_class`, (classes, d) with each image's numbers in the row of its class. A group counts as
        the average of its images. `batch` images are given to `per_image` at once, never more and never fewer.

        Privacy: unit as in the vault; relation add/remove-one; sensitivity `clip_norm` in L2 over the whole result (the
        contribution of a unit is clipped as one vector, whatever classes it touches); event one Gaussian with
        `noise_multiplier`, Poisson-sampled at `sampling_rate`; assumes that `per_image` treats every image alone, to
        the last bit in batches of one shape, which is tried on random images first (privacy/rows.py). Rows with a
        number that is not finite, or beyond 1e150, count as zero.
        """
        require_clip_norm(clip_norm, repr(label))
        row_of, width = alone(per_image, self.facts, batch)
        event = self._event(label, noise_multiplier, sampling_rate)
        kept = self._purse.pay(event)
        if kept is not None:
            return kept
        blocks = self.facts.classes if by_class else 1
        total = GridSum(blocks, width, clip_norm)
        rank, size = rank_and_size()
        units = poisson_sample(self._rows, self._units[rank::size], sampling_rate, self._noise)
        # How many units a sample or a shard holds is private, so only a full sum shows its progress.
        progress = self._progress if sampling_rate == 1.0 and self._branch[0] is None else SILENT
        with progress.task(label, self.facts.units) as task, torch.no_grad():
            for members, rows, count in _unit_batches(self._rows, units, batch):
                images, labels = self._read(rows)
                values = row_of(images, labels).double()
                vectors, owners, places = _unit_vectors(values, members, labels if by_class else labels * 0, blocks)
                scale = below(clip_norm, blocks * width) / _norms(vectors, owners).clamp(min=clip_norm)
                total.add(vectors * scale[owners, None], places)
                task.advance(count * size)
        released = total.release(self._noise, noise_multiplier, event=event)
        return self._purse.keep(released if by_class else released[0])

    def histogram(
        self,
        bin_of: PerImage,
        bins: int,
        *,
        label: str,
        noise_multiplier: float,
        sampling_rate: float = 1.0,
        batch: int = BATCH,
    ) -> torch.Tensor:
        """How many units fall into each of `bins` bins, with Gaussian noise. `bin_of` gives one bin number per image.

        Privacy: as `gaussian_sum` of one-hot rows, sensitivity 1. Numbers outside 0..bins-1 count nowhere.
        """

        def one_hot(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (bin_of(images, labels).reshape(-1, 1) == torch.arange(bins)).double()

        return self.gaussian_sum(
            one_hot,
            label=label,
            clip_norm=1.0,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            batch=batch,
        )

    def quantile(
        self,
        value_of: PerImage,
        fraction: float,
        edges: Sequence[float],
        *,
        label: str,
        noise_multiplier: float,
        batch: int = BATCH,
    ) -> float:
        """The edge below which about `fraction` of the units' values lie, from a noisy histogram over public `edges`.

        Privacy: as `histogram`; picking the edge is post-processing.
        """
        if not 0 < fraction < 1:
            raise InputError(f"Expected 0 < fraction < 1, got {fraction} for {label!r}.")
        bounds = torch.as_tensor(edges, dtype=torch.float64)
        if len(bounds) < 2 or not bool((bounds[1:] > bounds[:-1]).all()):
            raise InputError(f"Expected at least two rising edges for {label!r}.")

        def bin_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            values = value_of(images, labels).double().reshape(-1).contiguous()
            return torch.bucketize(values.clamp(bounds[0], bounds[-1]), bounds[1:-1])

        counts = self.histogram(bin_of, len(bounds) - 1, label=label, noise_multiplier=noise_multiplier, batch=batch)
        below = counts.cumsum(0) / self.facts.units
        reached = torch.nonzero(below >= fraction)
        return float(bounds[int(reached[0]) + 1] if len(reached) else bounds[-1])

    def shards(self, count: int, *, partition: str) -> list["Session"]:
        """Sessions on `count` disjoint shards of the vault; their events compose in parallel.

        Privacy: a unit's shard is a keyed hash of its own id (privacy/sampling.py), so one unit touches one shard. How
        many units a shard holds is private: divide by units/count.
        """
        if not 2 <= count <= self.facts.units:
            raise InputError(f"Expected 2 to {self.facts.units} shards, got {count}.")
        if self._branch[0] is not None:
            raise InputError("A shard cannot be divided again.")
        key = str(self._purse.ledger.header["run"]).encode() + b"/" + partition.encode()
        owner = shard_of_each(self._rows, count, key[:64])
        return [self._shard(partition, shard, np.flatnonzero(owner == shard)) for shard in range(count)]

    def gradient_steps(
        self,
        *,
        label: str,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float,
        steps: int,
        features: PerImage | None = None,
    ) -> GradientSteps:
        """A DP-SGD run of `steps` noisy sums over fresh Poisson samples; all of it is spent at once.

        With `features`, a fixed function of each image alone, its rows are computed once, kept inside, and handed to
        the callback instead of the images.

        Privacy: unit as in the vault (a sampled group gives one uniformly drawn image); relation add/remove-one;
        sensitivity `clip_norm`; event `steps` Poisson-sampled Gaussians; assumes that the callback clips each image's
        contribution to `clip_norm`, over all returned tensors together (dpsgd does and is tested for it).
        """
        require_clip_norm(clip_norm, repr(label))
        require_batch(sampling_rate, self.facts.units, label)
        if features is not None:
            features, _ = alone(features, self.facts)
        event = replace(self._event(label, noise_multiplier, sampling_rate), count=steps)
        self._purse.pay_steps(event)
        return GradientSteps(
            event, clip_norm, self._rows, self._units, self._purse, self._noise, features, self._progress
        )

    def ensemble(self, train: TrainShard, features: PerImage, *, teachers: int) -> Ensemble:
        """Models of `teachers` disjoint shards, trained inside on the rows of `features` when first asked.

        Privacy: as `Ensemble` says; nothing is read or spent here, every answer pays for itself.
        """
        if self._branch[0] is not None:
            raise InputError("A shard cannot be divided again.")
        require_alone(features, self.facts)
        return Ensemble(train, features, teachers, self.facts, self._rows, self._purse, self._noise, self._progress)

    def critics(
        self,
        critic: Critic,
        features: PerImage,
        *,
        label: str,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> Critics:
        """Critics of disjoint shards, which answer the events `label` of the plan; all of them are spent at once.

        Privacy: as `Critics` says.
        """
        if self._branch[0] is not None:
            raise InputError("A shard cannot be divided again.")
        require_alone(features, self.facts)
        events = [event for event in self.plan.own if event.label == label]
        if not events or (events[0].shard is not None and [event.shard for event in events] != list(range(critics))):
            raise BudgetError(f"Expected one {label!r} in the plan, or one for each shard. No data was read.")
        return Critics(
            critic,
            features,
            events,
            critics=critics,
            shape=shape,
            clip_norm=clip_norm,
            facts=self.facts,
            rows=self._rows,
            purse=self._purse,
            noise=self._noise,
            progress=self._progress,
        )

    def records_without_guarantee(self) -> Records:
        """The private records themselves, for a method that runs `--as-published`.

        Privacy: none. It is refused unless the ledger's header says that the run is as published, which makes the
        guarantee of its release `none`.
        """
        if self._purse.ledger.header.get("as_published") is not True:
            raise BudgetError("Private records are handed out in a run --as-published only. No data was read.")
        return self._rows.records

    def finish(self) -> None:
        """Refuse to end with a plan that was not spent as written."""
        if self._purse.unspent:
            names = ", ".join(event.label for event in self._purse.unspent)
            raise VeilsetError(
                f"The method ended without spending {names}; its plan and its ledger disagree. Report this."
            )

    def _event(self, label: str, noise_multiplier: float, sampling_rate: float) -> Event:
        partition, shard = self._branch
        return Event(
            label=label,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            partition=partition,
            shard=shard,
        )

    def _shard(self, partition: str, shard: int, units: Units) -> "Session":
        session = copy.copy(self)
        session._units = units
        session._branch = (partition, shard)
        return session

    def _read(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self._rows.read(rows)
        return torch.from_numpy(images), torch.from_numpy(labels)


def _unit_batches(rows: UnitRows, units: Units, batch: int) -> Iterator[tuple[torch.Tensor, np.ndarray, int]]:
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


def _unit_vectors(
    values: torch.Tensor, members: torch.Tensor, labels: torch.Tensor, blocks: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def _norms(vectors: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
    """The L2 norm of each unit over all of its vectors."""
    squares = torch.zeros(int(owners.max()) + 1, dtype=vectors.dtype)
    squares.index_add_(0, owners, squared_lengths(vectors))
    return squares.sqrt()
