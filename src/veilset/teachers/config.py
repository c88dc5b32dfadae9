"""What a teacher is made of: the user's wishes, and the recipe that the rules make of them. All of it is public."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from veilset.core.settings import CLIP_NORM, RATE, Auto, Settings, setting
from veilset.privacy.events import Event

Kind = Literal["scattering", "network", "pretrained"]
KindOrAuto = Literal["auto", "scattering", "network", "pretrained"]
Trained = Literal["all", "head"]


class TeacherSettings(Settings):
    """What the user wants of a teacher; `auto` is decided by the rules of planning.py, from public facts alone."""

    kind: KindOrAuto = setting(
        "auto",
        "A linear head on fixed wavelet features (scattering), DP-SGD from random weights (network), or ordinary "
        "training on labelled public images and then DP-SGD (pretrained).",
    )
    network: str = setting("convnet", "A network by name, or your own module:function; for network and pretrained.")
    trained: Trained = setting("head", "What DP-SGD trains of a pretrained network: all, or a new head.")
    directions: int | Auto = setting("auto", "Length of the code that a head reads.", least=1)
    batch: int | Auto = setting("auto", "Units of a step, on average.", least=1)
    steps: int | Auto = setting("auto", "Noisy sums.", least=1)
    clip_norm: float | Auto = setting(
        "auto", "Bound of one unit's gradient; features of a head have length 1.", **CLIP_NORM
    )
    learning_rate: float | Auto = setting("auto", "Of SGD.", **RATE)
    momentum: float = setting(0.9, "Of SGD.", least=0, below=1)
    average_from: float = setting(
        0.7, "Weights are averaged over the steps after this share of them; 1 takes the last.", least=0, most=1
    )
    pretraining_epochs: int | Auto = setting("auto", "Passes over the public images.", least=1)


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


@dataclass(frozen=True, kw_only=True)
class TeacherPlan:
    """A teacher as it will be trained, and what that spends."""

    recipe: Recipe
    event: Event

    @property
    def name(self) -> str:
        """For people: the kind, and the network where there is one."""
        return self.recipe.kind if self.recipe.kind == "scattering" else f"{self.recipe.kind} {self.recipe.network}"
