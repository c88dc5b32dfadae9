"""The only ways to touch a vault. Each call is one act: check the plan, write the ledger, read, clip, sum, add noise.

A `Session` is a vault opened for one plan, and its mechanisms take the plan's events. An event that is not in the plan,
or not in it any more, or of another shard, raises before anything is read. What a call returned is kept in the run's
workspace: it is paid for, so a resumed run gets it again.
"""

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.dpsgd_steps import ClippedSum, GradientSteps
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.mechanisms.shard_critics import Critic, Critics
from veilset.privacy.mechanisms.shard_votes import Ensemble, TrainShard
from veilset.privacy.mechanisms.sums import Edges, noisy_sum, one_hot_rows
from veilset.privacy.noise import NoiseSource
from veilset.privacy.processes import RunLedger, rank_and_size, require_alike
from veilset.privacy.rows import BATCH, PerImage
from veilset.privacy.spending import Spending, require_all_units
from veilset.privacy.unit_rows import Units
from veilset.privacy.vault import PublicFacts, Vault, contents_of

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
        self.facts: PublicFacts = vault.facts
        self.plan = plan
        self._rows = contents_of(vault)
        self._units: Units = self._rows.units
        self._rank, self._size = rank_and_size()
        self._spending = Spending(plan, ledger, workspace, keeps=self._rank == 0)
        self._is_own: NDArray[np.bool_] | None = None  # of all units, where others are read by other processes
        if self._size > 1:
            require_alike(self._rows.order())
            key = f"{ledger.header['run']}/processes".encode()[:64]
            self._is_own = self._rows.shard_of_each(self._size, key) == self._rank
        self._noise = noise
        self._progress = progress

    def gaussian_sum(
        self, per_image: PerImage, event: Event, *, clip_norm: float, by_class: bool = False, batch: int = BATCH
    ) -> torch.Tensor:
        """The sum of `per_image` over the vault, or over a Poisson sample of it, with Gaussian noise.

        Returns (d,) or, `by_class`, (classes, d) with each image's numbers in the row of its class; of findings, in the
        rows of all that it has, which together are one vector with one clip. A group counts as the average of its
        images. `batch` images are given to `per_image` at once, never more and never fewer.

        Privacy: unit as in the vault; relation add/remove-one; sensitivity `clip_norm` in L2 over the whole result (the
        contribution of a unit is clipped as one vector, whatever classes it touches); event one Gaussian with the noise
        and the sampling rate of `event`, whose count must be 1; assumes that `per_image` treats every image alone, to
        the last bit in batches of one shape, which is tried on random images first (privacy/rows.py). Rows with a
        number that is not finite, or beyond 1e150, count as zero.
        """
        return noisy_sum(per_image, event, self._opened(), clip_norm=clip_norm, by_class=by_class, batch=batch)

    def histogram(self, bin_of: PerImage, bins: int, event: Event, *, batch: int = BATCH) -> torch.Tensor:
        """How many units fall into each of `bins` bins, with Gaussian noise. `bin_of` gives one bin number per image.

        Privacy: as `gaussian_sum` of one-hot rows, sensitivity 1. Numbers outside 0..bins-1 count nowhere.
        """
        return self.gaussian_sum(one_hot_rows(bin_of, bins), event, clip_norm=1.0, batch=batch)

    def quantile(
        self, value_of: PerImage, fraction: float, edges: Sequence[float], event: Event, *, batch: int = BATCH
    ) -> float:
        """The edge below which about `fraction` of the units' values lie, from a noisy histogram over public `edges`.

        Privacy: as `histogram` over all units; picking the edge is post-processing.
        """
        bounds = Edges(edges, fraction, event.label)
        require_all_units(event)
        counts = self.histogram(bounds.bin_of(value_of), bounds.bins, event, batch=batch)
        return bounds.reached(counts, self.facts.units)

    def shards(self, count: int, *, partition: str) -> list["Session"]:
        """Sessions on `count` disjoint shards of the vault; their events compose in parallel.

        Privacy: a unit's shard is a keyed hash of its own id (privacy/unit_rows.py), so one unit touches one shard. How
        many units a shard holds is private: divide by units/count.
        """
        if not 2 <= count <= self.facts.units:
            raise InputError(f"Expected 2 to {self.facts.units} shards, got {count}.")
        spendings = self._spending.of_shards(partition, count, "shards")
        key = str(self._spending.ledger.header["run"]).encode() + b"/" + partition.encode()
        owner = self._rows.shard_of_each(count, key[:64])
        return [self._shard(own, self._rows.units[owner == shard]) for shard, own in enumerate(spendings)]

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> GradientSteps:
        """A DP-SGD run of `event.count` noisy sums over fresh Poisson samples; all of it is spent at once.

        With `features`, a fixed function of each image alone, its rows are computed once, kept inside, and handed to
        the callback instead of the images.

        Privacy: unit as in the vault (a sampled group gives one uniformly drawn image); relation add/remove-one;
        sensitivity `clip_norm`; event as many Poisson-sampled Gaussians as `event` counts, with
        independent noise or with its `bands` (docs/explanation/engine.md); assumes that the callback
        clips each image's contribution to `clip_norm`, over all returned tensors together (dpsgd does and is tested for
        it).
        """
        return GradientSteps(event, self._opened(), clip_norm=clip_norm, features=features)

    def ensemble(self, train: TrainShard, features: PerImage, *, teachers: int) -> Ensemble:
        """Models of `teachers` disjoint shards, trained inside on the rows of `features` when first asked.

        Privacy: as `Ensemble` says; nothing is read or spent here, every answer pays for itself.
        """
        return Ensemble(train, features, self._opened(), teachers=teachers)

    def critics(
        self,
        critic: Critic,
        features: PerImage,
        events: Sequence[Event],
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> Critics:
        """Critics of disjoint shards, which answer at `events` of the plan; all of them are spent at once.

        Privacy: as `Critics` says.
        """
        return Critics(critic, features, events, self._opened(), critics=critics, shape=shape, clip_norm=clip_norm)

    def records_without_guarantee(self) -> Records:
        """The private records themselves, for a method that runs `--as-published`.

        Privacy: none. It is refused unless the ledger's header says that the run is as published, which makes the
        guarantee of its release `none`.
        """
        if self._spending.ledger.header.get("as_published") is not True:
            raise BudgetError("Private records are handed out in a run --as-published only. No data was read.")
        return self._rows.records

    def finish(self) -> None:
        """Refuse to end with a plan that was not spent as written."""
        if self._spending.unspent:
            names = ", ".join(event.label for event in self._spending.unspent)
            raise VeilsetError(
                f"The method ended without spending {names}; its plan and its ledger disagree. Report this."
            )

    def _opened(self) -> Opened:
        return Opened(
            facts=self.facts,
            rows=self._rows,
            own_units=self._units if self._is_own is None else self._units[self._is_own[self._units]],
            rank=self._rank,
            size=self._size,
            spending=self._spending,
            noise=self._noise,
            progress=self._progress,
        )

    def _shard(self, spending: Spending, units: Units) -> "Session":
        session = copy.copy(self)
        session._units, session._spending = units, spending
        return session
