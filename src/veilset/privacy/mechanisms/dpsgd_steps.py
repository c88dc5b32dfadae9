"""The paid steps of a DP-SGD run: a fresh Poisson sample, the callback's clipped sum, noise.

All tensors of a step are one vector and one release. The callback sums in float64, with room for rounding inside its
clip (dpsgd/exact.py). Here the sum is rounded to integers, multiples of 2^-30 clip norms; they are added over
processes exactly and leave with noise of their own grid.

With `bands` in the event, noise is correlated over the steps (privacy/correlation.py): step t samples from group t
modulo bands, and a unit's group is a keyed hash of its own id. The argument is in docs/explanation/engine.md.

Steps are leased from the ledger in chunks before they are taken, so that a run that was cut off cannot repeat one. What
follows from the noisy sums (weights, state of an optimizer) may be kept at the end of a lease; a resumed run goes on
from there without the steps that it leased and lost. Noise is not kept: a resumed run takes none of it back.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from veilset.core.errors import BudgetError, InputError
from veilset.core.progress import SILENT
from veilset.core.settings import require_clip_norm
from veilset.privacy.correlation import CorrelatedNoise, band_weights
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.noise import GRID_BITS, Claim
from veilset.privacy.processes import release_to_all
from veilset.privacy.rows import PerImage, alone
from veilset.privacy.unit_rows import Units

ClippedSum = Callable[..., Sequence[torch.Tensor]]
"""uint8 images (b, H, W, C) or feature rows, and labels (b,) -> sums in which each counts at most the clip norm.

A callback that draws at random takes a third argument, (b, draws) numbers in [0, 1): each row belongs to its unit. It
must draw in no other way, because numbers drawn by position shift for all units when there is one more.
"""

_READ_AT_ONCE = 512
_LARGEST_BATCH = 2**19


class GradientSteps:
    """The steps of one spent event; `step` takes the next."""

    def __init__(self, event: Event, opened: Opened, *, clip_norm: float, features: PerImage | None = None) -> None:
        require_clip_norm(clip_norm, repr(event.label))
        batch = event.sampling_rate / event.bands * opened.facts.units
        if batch > _LARGEST_BATCH:  # the margin that clipped sums leave for rounding is not proven beyond it
            raise InputError(
                f"Expected a batch of at most {_LARGEST_BATCH} units on average, got {batch:.0f} for {event.label!r}. "
                "Use a smaller batch."
            )
        self._features = None if features is None else alone(features, opened.facts)[0]
        self._paid = opened.spending.pay_steps(event)
        self.keep, self.kept = self._paid.keep, self._paid.kept
        self._event, self._clip_norm = event, clip_norm
        self.lease_size = 50
        self.momentum = 0.0  # of the optimizer that follows; the weights of correlated noise are made for it
        self._steps_left = max(0, event.steps - self._paid.begun)
        self._left_in_lease = 0
        self._rows, self._spending = opened.rows, opened.spending
        self._noise, self._progress = opened.noise, opened.progress
        self._own: Units = opened.own_units
        self._declared = opened.facts.units
        self._cache: tuple[torch.Tensor, torch.Tensor, np.ndarray] | None = None
        self._past: CorrelatedNoise | None = None
        self._groups: list[Units] | None = None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied: a copy would take the same paid steps once more."""
        raise BudgetError(f"Paid steps cannot be copied: those of {self._event.label!r} would be taken twice.")

    @property
    def event(self) -> Event:
        """What was paid for."""
        return self._event

    @property
    def clip_norm(self) -> float:
        """How much a unit counts at most."""
        return self._clip_norm

    @property
    def total(self) -> int:
        """All steps of the event."""
        return self._event.steps

    @property
    def steps_left(self) -> int:
        """Steps that are still to come."""
        return self._steps_left

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[torch.Tensor]:
        """One noisy sum over a fresh Poisson sample, in float32. An empty sample is a batch of zero images.

        With `draws`, the callback gets so many random numbers for each unit as its third argument.
        """
        if self._left_in_lease == 0:
            self._left_in_lease = min(max(1, self.lease_size), self.steps_left)
            if self._left_in_lease <= 0:
                raise BudgetError(f"All {self.total} steps of {self.event.label!r} are taken. No data was read.")
            self._paid.lease(self._left_in_lease)
        units = self._units_of(self.total - self._steps_left)
        self._left_in_lease -= 1
        self._steps_left -= 1
        sampled, rows = self._rows.poisson_rows(units, self.event.sampling_rate, self._noise)
        batch = self._read(rows)
        if draws:
            batch += (self._noise.uniforms(len(sampled), draws, self._rows.owners_of(sampled)),)
        sums = clipped_sum(*batch)
        total = torch.cat([part.detach().flatten().double().cpu() for part in sums])
        step = self.clip_norm * 2.0**-GRID_BITS
        # What is not finite is an error of the callback's, but to say so would tell of private rows.
        whole = torch.nan_to_num(total / step, 0.0, 0.0, 0.0).round_().to(torch.int64)
        multiplier = self.event.noise_multiplier
        if self._past is None and self.event.bands > 1:
            self._past = CorrelatedNoise(band_weights(self.event.bands, self.momentum))
        claim = Claim(
            step=step, sensitivity=self.clip_norm, noise_multiplier=multiplier, event=self.event, past=self._past
        )
        noisy = release_to_all(whole, claim, self._noise).float()
        pieces = torch.split(noisy, [part.numel() for part in sums])
        return [piece.view(part.shape).to(part.device) for piece, part in zip(pieces, sums, strict=True)]

    @property
    def keeps_now(self) -> bool:
        """Whether this is the moment to `keep` a state: the next step needs a new lease."""
        return self._left_in_lease == 0

    def _units_of(self, step: int) -> Units:
        """Who may take part in a step, counted from 0 over the whole run: with bands, the units of its group.

        The number of the step counts what was leased and lost, too, so that a unit's turns stay `bands` steps apart.
        """
        bands = self.event.bands
        if bands == 1:
            return self._own
        if self._groups is None:
            key = f"{self._spending.ledger.header['run']}/bands/{self.event.label}".encode()[:64]
            group = self._rows.shard_of_each(bands, key)[self._own]
            self._groups = [self._own[group == number] for number in range(bands)]
        return self._groups[step % bands]

    def _read(self, rows: np.ndarray) -> tuple[torch.Tensor, ...]:
        if self._features is None:
            return self._from_vault(rows)
        if self._cache is None:
            self._cache = self._compute(self._features)
        coded, labels, places = self._cache
        found = torch.from_numpy(places[rows])
        return coded[found], labels[found]

    @torch.no_grad()
    def _compute(self, features: PerImage) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """The features of this process's own rows, each from its own image alone, their labels, and the place of every
        row among them.

        They never leave this object but in a batch.
        """
        total = self._rows.images
        own = self._rows.of_all(self._own)
        places = np.full(total, -1)
        places[own] = np.arange(len(own))
        if not len(own):  # an empty shard looks like any other: no rows of the right width
            black = torch.zeros(1, *self._rows.records.shape, dtype=torch.uint8)
            blank = torch.zeros(1, *self._rows.records.labels.shape[1:], dtype=torch.int64)
            return features(black, blank)[:0].float(), blank[:0], places
        parts, labels = [], []
        # How many units a shard holds is private, and how many images groups hold: only all records show progress.
        progress = self._progress if len(own) == total == self._rows.count else SILENT
        with progress.task(f"features for {self.event.label}", self._declared) as task:
            for start in range(0, len(own), _READ_AT_ONCE):
                batch = self._from_vault(own[start : start + _READ_AT_ONCE])
                parts.append(features(*batch).float())
                labels.append(batch[1])
                task.advance(len(batch[1]))
        return torch.cat(parts), torch.cat(labels), places

    def _from_vault(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self._rows.read(rows)
        return torch.from_numpy(images), torch.from_numpy(labels)
