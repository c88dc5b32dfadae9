"""The sum of clipped per-unit gradients, without noise: what a DP-SGD step hands to the privacy layer.

One forward and one backward pass over each micro-batch (tape.py), any network (capture.py), and nothing about a unit
survives the call. Passes have one or two public shapes, the last one filled up with zeros, so that a unit's gradient
does not depend on its company to the last bit; sums are in float64, and rounding is part of the clip (exact.py).
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError, VeilsetError
from veilset.core.settings import CLIP_NORM, require_clip_norm
from veilset.dpsgd.exact import STABILISER, clip_factors
from veilset.dpsgd.passes import Inputs, Loss, Route, run_pass
from veilset.dpsgd.probe import equal_bits, made_up, probe, steady_bits
from veilset.dpsgd.tape import Tape
from veilset.privacy.rows import fixed_batches

Mode = Literal["flat", "automatic", "per_layer"]

_ROWS = 64  # of a pass; more would hardly be faster
_SMALLER = (32, 16, 8, 4, 2, 1)
_LAST_ROWS = (16, 32)  # of a pass for the last few units: what is filled up is in vain
_MEMORY = 2 * 2**30  # bytes that activations and per-unit gradients of a micro-batch may take, unless told


class ClippedGradients:
    """Clips the gradient of each unit and sums them.

    Args:
        model: any network that treats records alone. Its parameters that require a gradient are those of the result.
        loss: outputs and targets to one loss per row.
        clip_norm: the largest L2 norm of one unit's contribution.
        mode: "flat" scales down what is longer than `clip_norm`; "automatic" scales everything to g * C / (|g| +
            `stabiliser`) (Bu et al. 2022); "per_layer" clips each of the L modules with parameters to C / sqrt(L).
        keep_fraction: of each unit's gradient only this share of the coordinates, the largest, is kept before clipping.
        keep_signs: k > 0 takes of each unit the signs of its k largest coordinates and nothing else (TOPAGG), each
            C / sqrt(k) long: whatever the gradient is, the row has length at most C.
        copies: augmented copies of a unit; inputs then have units * copies rows, unit after unit, and the mean of a
            unit's gradients is clipped (De et al. 2022).
        max_rows: the most rows of a pass; None chooses by memory.
        stabiliser: of automatic clipping.

    Privacy: unit one record (its copies together); relation add/remove-one; sensitivity `clip_norm` in L2 over all
    returned tensors together, rounding included; event none, as no noise is added here; assumes that no row's loss
    depends on other rows, which a probe on random data tries before the first batch, and at most 2^20 units. A unit
    whose loss or gradient is not finite counts as zero, and no error depends on private rows.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip_norm: float,
        *,
        mode: Mode = "flat",
        keep_fraction: float = 1.0,
        keep_signs: int = 0,
        copies: int = 1,
        max_rows: int | None = None,
        stabiliser: float = STABILISER,
    ) -> None:
        _check_settings(clip_norm, mode, keep_fraction, copies, max_rows, stabiliser)
        _check_signs(keep_signs, mode, keep_fraction)
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        if not named:
            raise InputError("Expected a model with trainable parameters, found none. Set requires_grad on some.")
        self.model = model
        self.parameters: list[nn.Parameter] = [value for _, value in named]
        self.steps_done = 0
        self._loss, self._clip_norm, self._mode = loss, float(clip_norm), mode
        self._keep_fraction, self._copies, self._max_rows = keep_fraction, copies, max_rows
        self._stabiliser, self._keep_signs = stabiliser, keep_signs
        self._written_out = keep_fraction < 1 or keep_signs > 0
        owners = [name.rpartition(".")[0] for name, _ in named]
        layers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        self._layer_of = torch.tensor([layers[owner] for owner in owners], device=self.parameters[0].device)
        self._route: Route | None = None
        self._modes = _modes(model)
        self._units_at_once = self._last_units = self._most_units(1.0)

    @property
    def sensitivity(self) -> float:
        """The L2 bound of one unit's contribution to the sum."""
        return self._clip_norm

    def check(self, inputs: Tensor | Inputs, targets: Tensor) -> None:
        """Try model and loss on PUBLIC rows, at least three for each copy: records must not mix.

        `sum` does this by itself on random rows of the shape it is given; call it earlier to fail before data is read.
        """
        self._route, self._modes = None, _modes(self.model)
        public = _together(inputs)
        route, bytes_per_unit = probe(
            self.model,
            self._loss,
            self.parameters,
            public,
            targets,
            self._copies,
            write_out=self._written_out,
        )
        self._choose_shapes(public, targets, route, self._most_units(bytes_per_unit))
        self._route = route

    def _choose_shapes(self, inputs: Inputs, targets: Tensor, route: Route, most: int) -> None:
        """How many units a pass holds: so many that a unit's bits do not depend on the others, nor on the shape."""

        def bits(units: int) -> list[Tensor] | None:
            tape = Tape(self.parameters, units, write_out=self._written_out)
            return steady_bits(self.model, self._loss, tape, inputs, targets, self._copies, route)

        kept = None
        for self._units_at_once in (most, *(size for size in _SMALLER if size < most)):
            kept = bits(self._units_at_once)
            if kept is not None:
                break
        self._last_units = self._units_at_once
        for units in (rows // self._copies for rows in _LAST_ROWS):
            found = bits(units) if kept is not None and 0 < units <= self._units_at_once // 2 else None
            if kept and found and len(kept) == len(found) and all(map(equal_bits, kept, found)):
                self._last_units = units
                break

    @torch.no_grad()
    def sum(self, inputs: Tensor | Inputs, targets: Tensor) -> list[Tensor]:
        """The sum of clipped gradients, one tensor for each trainable parameter; zeros for an empty batch.

        A model of several arguments (images and their classes) takes a tuple of inputs.
        """
        inputs = _together(inputs)
        for side in inputs:
            if len(side) % self._copies or len(side) != len(targets):
                raise InputError(
                    f"Expected {self._copies} rows for each unit and as many targets, got {len(side)} rows and "
                    f"{len(targets)} targets."
                )
        self._require_finite_weights()
        if self._route is None or self._modes != _modes(self.model):
            self.check(*made_up(inputs, targets, 3 * self._copies))
        self.steps_done += 1
        totals = self._zeros()
        rest = len(targets) // self._copies % self._units_at_once
        cut = len(targets) - (rest * self._copies if rest <= self._units_at_once // 2 else 0)
        for here, units in ((slice(cut), self._units_at_once), (slice(cut, None), self._last_units)):
            rows = tuple(side[here] for side in (*inputs, targets))
            for (*sides, wanted), real in fixed_batches(rows, units * self._copies):
                for total, part in zip(totals, self._clipped_part(tuple(sides), wanted, real), strict=True):
                    total += part
        return totals

    def _most_units(self, bytes_per_unit: float) -> int:
        by_rows = _ROWS if self._max_rows is None else min(_ROWS, self._max_rows)
        return max(1, min(by_rows // self._copies, int(_MEMORY / bytes_per_unit)))

    def _clipped_part(self, inputs: Inputs, targets: Tensor, real: int) -> Sequence[Tensor]:
        """The clipped sum of one pass, whose first `real` rows count."""
        with Tape(self.parameters, len(targets) // self._copies, write_out=self._written_out) as tape:
            losses = run_pass(self.model, self._loss, tape, inputs, targets, self._route or Route())
            if self._keep_signs:
                tape.put_back(_signs(tape.written_out(), self._keep_signs, self._clip_norm))
            elif self._keep_fraction < 1:
                tape.put_back(_compressed(tape.written_out(), self._keep_fraction))
            squares, gross = tape.squares()
            counts = torch.isfinite(losses).view(tape.units, -1).all(1) & torch.isfinite(squares.sum(0))
            counts &= torch.arange(tape.units, device=counts.device) < real // self._copies
            return tape.weighted_sums(torch.where(counts, self._factors(squares, gross), 0.0))

    def _require_finite_weights(self) -> None:
        """The weights follow from noisy sums, so that this may be said; a private loss that is not finite may not."""
        if not all(bool(torch.isfinite(value.sum())) for value in self.parameters):
            raise VeilsetError(
                f"The weights are not finite after {self.steps_done} steps. Lower the learning rate; the steps so far "
                "are spent."
            )

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros_like(value, dtype=torch.float64, requires_grad=False) for value in self.parameters]

    def _factors(self, squares: Tensor, gross: Tensor) -> Tensor:
        """(parameters, units) what each unit's gradient of each parameter is multiplied by."""
        bound = self._clip_norm
        if self._mode != "per_layer":
            automatic = self._mode == "automatic"
            factors = clip_factors(
                squares.sum(0), gross.sum(0), bound, automatic=automatic, stabiliser=self._stabiliser
            )
            return factors.expand_as(squares)
        layers = int(self._layer_of.max()) + 1
        by_layer = [
            parts.new_zeros(layers, parts.shape[1]).index_add_(0, self._layer_of, parts) for parts in (squares, gross)
        ]
        return clip_factors(by_layer[0], by_layer[1], bound / math.sqrt(layers))[self._layer_of]


def _together(inputs: Tensor | Inputs) -> Inputs:
    return (inputs,) if isinstance(inputs, Tensor) else inputs


def _modes(model: nn.Module) -> list[bool]:
    """Which modules are training: another network, as far as the probe goes."""
    return [module.training for module in model.modules()]


def _compressed(rows: Tensor, keep_fraction: float) -> Tensor:
    """Each row with all but its largest coordinates set to zero, in place."""
    width = rows.shape[1]
    kept = max(1, round(keep_fraction * width))
    # Whichever side is smaller is looked for.
    if 2 * kept <= width:
        places = rows.abs().topk(kept, dim=1, sorted=False).indices
        return torch.zeros_like(rows).scatter_(1, places, rows.gather(1, places))
    places = rows.abs().topk(width - kept, dim=1, largest=False, sorted=False).indices
    return rows.scatter_(1, places, 0.0)


def _signs(rows: Tensor, kept: int, clip_norm: float) -> Tensor:
    """The signs of each row's `kept` largest coordinates, of length `clip_norm` together where none is zero.

    A row that is not finite stays so, and counts as zero like any other.
    """
    kept = min(kept, rows.shape[1])
    places = rows.abs().topk(kept, dim=1, sorted=False).indices
    signs = rows.gather(1, places).sign() * (clip_norm / math.sqrt(kept))
    finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    return torch.where(finite, torch.zeros_like(rows).scatter_(1, places, signs), torch.nan)


def _check_signs(keep_signs: int, mode: str, keep_fraction: float) -> None:
    if keep_signs < 0:
        raise InputError(f"Expected keep_signs >= 0, got {keep_signs}.")
    if keep_signs and (mode != "flat" or keep_fraction < 1):
        raise InputError("keep_signs is a rule of its own. Leave mode at flat and keep_fraction at 1.")


def _check_settings(
    clip_norm: float, mode: str, keep_fraction: float, copies: int, max_rows: int | None, stabiliser: float
) -> None:
    require_clip_norm(clip_norm, "clipped gradients")
    if mode not in get_args(Mode):
        raise InputError(f"Expected mode to be one of {', '.join(get_args(Mode))}, got {mode!r}.")
    if not 0 < keep_fraction <= 1:
        raise InputError(f"Expected 0 < keep_fraction <= 1, got {keep_fraction}.")
    if copies < 1:
        raise InputError(f"Expected copies >= 1, got {copies}.")
    if max_rows is not None and max_rows < copies:
        raise InputError(f"Expected max_rows >= copies={copies}, got {max_rows}: the copies of a unit stay together.")
    least, most = CLIP_NORM["least"], CLIP_NORM["most"]
    if not least <= stabiliser <= most:  # where it could vanish or overflow
        raise InputError(f"Expected stabiliser from {least:g} to {most:g}, got {stabiliser}.")
