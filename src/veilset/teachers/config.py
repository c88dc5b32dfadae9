"""What a teacher is made of: the user's wishes, and the recipe that the rules make of them. All of it is public."""

from dataclasses import dataclass
from typing import Literal

from veilset.core.registry import unknown_name
from veilset.core.settings import CLIP_NORM, RATE, Auto, Settings, setting
from veilset.models.features import FEATURES
from veilset.models.features.weights import PUBLISHED, weights_of
from veilset.privacy.events import Event

Kind = Literal["head", "network", "pretrained"]
KindOrAuto = Literal["auto", "head", "network", "pretrained"]
Trained = Literal["all", "head"]
Clipping = Literal["flat", "automatic"]


class TeacherSettings(Settings):
    """What the user wants of a teacher; `auto` is decided by the rules of planning.py, from public facts alone."""

    kind: KindOrAuto = setting(
        "auto",
        "A linear head on fixed features (head), DP-SGD from random weights (network), or ordinary training on "
        "labelled public images and then DP-SGD (pretrained).",
    )
    features: str = setting(
        "auto",
        "Of the kind head: wavelets, lite0, lite1 or lite2 (networks trained on ImageNet; needs the extra pretrained), "
        "lite0-maps (its middle depths alone, which keep positions), several joined as in lite0+wavelets, or your own "
        "module:function.",
    )
    side: int | Auto = setting("auto", "Of the square images that pretrained features see.", least=32, most=1024)
    network: str = setting("convnet", "A network by name, or your own module:function; for network and pretrained.")
    trained: Trained = setting("head", "What DP-SGD trains of a pretrained network: all, or a new head.")
    directions: int | Auto = setting("auto", "Length of the code that a head reads.", least=1)
    batch: int | Auto = setting("auto", "Units of a step, on average.", least=1)
    steps: int | Auto = setting("auto", "Noisy sums.", least=1)
    clip_norm: float | Auto = setting(
        "auto", "Bound of one unit's gradient; features of a head have length 1.", **CLIP_NORM
    )
    clipping: Clipping = setting(
        "flat", "Longer gradients are shortened to the bound (flat), or all are scaled to it (automatic)."
    )
    bands: int | Auto = setting(
        "auto",
        "Steps over which noise is correlated, for network and pretrained with trained=all; 1 is independent noise. "
        "auto takes what leaves the weights with the least noise by the plan.",
        least=1,
        most=64,
    )
    learning_rate: float | Auto = setting("auto", "Of SGD.", **RATE)
    momentum: float = setting(0.9, "Of SGD.", least=0, below=1)
    average_from: float = setting(
        0.7, "Weights are averaged over the steps after this share of them; 1 takes the last.", least=0, most=1
    )
    pretraining_epochs: int | Auto = setting("auto", "Passes over the public images.", least=1)

    def check(self) -> None:
        """Features are of a known name or the user's own."""
        super().check()
        if self.features != "auto" and ":" not in self.features:
            for part in self.features.split("+"):
                if part not in FEATURES:
                    raise unknown_name("features", part, ["auto", *FEATURES])


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A teacher with nothing left to decide; noise, sampling rate and steps are in its event."""

    kind: Kind
    features: str
    side: int
    network: str
    trained: Trained
    directions: int
    clip_norm: float
    clipping: Clipping
    learning_rate: float
    momentum: float
    average_from: float
    pretraining_epochs: int | None

    @property
    def head_only(self) -> bool:
        """Whether DP-SGD trains a linear head on fixed features."""
        return self.kind == "head" or (self.kind == "pretrained" and self.trained == "head")


@dataclass(frozen=True, kw_only=True)
class TeacherPlan:
    """A teacher as it will be trained, and what that spends."""

    recipe: Recipe
    event: Event

    @property
    def public_weights(self) -> dict[str, str]:
        """The published weights that the features are made of, and their SHA-256."""
        names = self.recipe.features.split("+") if self.recipe.kind == "head" else []
        return {weights: PUBLISHED[weights].sha256 for name in names if (weights := weights_of(name)) is not None}

    @property
    def name(self) -> str:
        """For people: the kind, and its features or its network; published weights with the begin of their hash."""
        recipe = self.recipe
        if recipe.kind != "head":
            return f"{recipe.kind} {recipe.network}"
        known = [sha256[:12] for sha256 in self.public_weights.values()]
        return f"head on {recipe.features}" + (f" (SHA-256 {' '.join(known)})" if known else "")
