"""What a teacher is made of: the user's wishes, and the recipe that the rules make of them. All of it is public."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from veilset.core.errors import InputError
from veilset.core.ranges import RATES

Kind = Literal["scattering", "network", "pretrained"]
KindOrAuto = Literal["auto", "scattering", "network", "pretrained"]
Trained = Literal["all", "head"]


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """What the user wants of a teacher. None is decided by the rules of planning.py, from public facts alone.

    Args:
        kind: "scattering" (a linear head on fixed wavelet features), "network" (DP-SGD from random weights),
            "pretrained" (ordinary training on labelled public images, then DP-SGD), or "auto".
        network: a name of `veilset.models` or the user's own `module:function`, for the last two.
        trained: what DP-SGD trains of a pretrained network: "all" of it, or a new "head" on its fixed features.
        directions: length of the code that a head reads.
        batch: units of a step, on average.
        steps: noisy sums.
        clip_norm: bound of one unit's gradient; features of a head have length 1.
        learning_rate: of SGD.
        momentum: of SGD.
        average_from: the weights are averaged over the steps after this share of them; 1 takes the last.
        noise_multiplier: given, instead of the one that spends the whole budget.
        pretraining_epochs: passes over the public images.
        label: of the event in plan and ledger.
    """

    kind: KindOrAuto = "auto"
    network: str = "convnet"
    trained: Trained = "head"
    directions: int | None = None
    batch: int | None = None
    steps: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.9
    average_from: float = 0.7
    noise_multiplier: float | None = None
    pretraining_epochs: int | None = None
    label: str = "teacher"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, get_args(KindOrAuto)),
            ("trained", self.trained, get_args(Trained)),
        ):
            if value not in known:
                raise InputError(f"Expected {name} to be one of {', '.join(known)}, got {value!r}.")
        for name in ("directions", "batch", "steps", "pretraining_epochs"):
            count = getattr(self, name)
            if count is not None and (count < 1 or count != int(count)):
                raise InputError(f"Expected {name} to be a whole number of at least 1, got {count}.")
        for name in ("clip_norm", "learning_rate", "noise_multiplier"):
            size = getattr(self, name)
            if size is not None and not RATES[0] <= size <= RATES[1]:
                low, high = RATES
                raise InputError(
                    f"Expected {name} > 0, got {size}. Leave it out for the rule's choice, or take {low:g} to {high:g}."
                )
        if not 0 <= self.momentum < 1:
            raise InputError(f"Expected momentum in [0, 1), got {self.momentum}.")
        if not 0 <= self.average_from <= 1:
            raise InputError(f"Expected average_from between 0 and 1, got {self.average_from}.")
        if not self.label:
            raise InputError("Expected a label for the event, got none.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A teacher with nothing left to decide; noise, sampling rate and steps are in its event."""

    kind: Kind
    network: str
    trained: Trained
    directions: int
    clip_norm: float
    learning_rate: float
    momentum: float
    average_from: float
    pretraining_epochs: int | None

    @property
    def head_only(self) -> bool:
        """Whether DP-SGD trains a linear head on fixed features."""
        return self.kind == "scattering" or (self.kind == "pretrained" and self.trained == "head")

    def to_json(self) -> Mapping[str, Any]:
        """The recipe as JSON-ready data."""
        return asdict(self)
