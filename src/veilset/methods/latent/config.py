"""The public settings of the method latent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.methods.base import Config
from veilset.methods.latent.distance import DistanceName, require_distance
from veilset.methods.latent.generators.making import GeneratorKind
from veilset.methods.latent.moments import Repair, Restore
from veilset.methods.latent.search import SearchName
from veilset.models.generators.files import generator_file
from veilset.privacy.vault import PublicFacts


@dataclass(frozen=True, kw_only=True)
class LatentConfig(Config):
    """Public settings of the method.

    Args:
        generator: a file of `veilset generator train` or `convert`, or the folder of a release, which is verified and
            whose cost counts; empty trains one on the public images.
        generator_is_of_others: declare that this release is of other people; the certificate says that you did.
        generator_kind: "style" (trained against a critic) or "eigen" (public images along their principal directions).
        generator_preset: of the training of a style generator: "fast", "default" or "large".
        generator_steps: of that training; 0 leaves it to the preset.
        mirrored: let that training mirror half of the images.
        search: "ff" (the inversion network), "opt", "opt_a", "opt_b" (descent from its answer, without penalty, with a
            weak and with a strong one) or "average" (descent from the average latent).
        distance: that a descent makes small: "wavelets", or "lpips" where that package is installed.
        inversion_steps: at most so many steps of the inversion network.
        dimensions: directions to estimate; 0 leaves it to a rule on units, classes and noise.
        components: Gaussians of each class, of one covariance; more than one by expectation-maximisation.
        rounds: of that, each one more release.
        clip: "public" (a quantile of public samples) or "private" (a paid quantile of the private lengths).
        clip_quantile: that quantile.
        clip_share: share of the privacy for a private quantile.
        repair: of the noisy covariance: "replace" (the paper's), "linear" or "spiked" (methods/latent/moments.py).
        restore: what the inversion loses: "none", "spread" (the variance), "mean" (shifts of the mean, too) or "shift"
            (also of the covariance).
        draws: samples start from the generator's own latents that fit ("chosen"), any ("own") or normal ("gaussian").
        truncation: below 1 pulls samples towards their class' mean.
        balanced: draw all classes alike; False draws them as often as the noisy counts say.
    """

    generator: str = ""
    generator_is_of_others: bool = False
    generator_kind: GeneratorKind = "eigen"
    generator_preset: Literal["fast", "default", "large"] = "default"
    generator_steps: int = 0
    mirrored: bool = False
    search: SearchName = "ff"
    distance: DistanceName = "wavelets"
    inversion_steps: int = 2000
    dimensions: int = 0
    components: int = 1
    rounds: int = 3
    clip: Literal["public", "private"] = "public"
    clip_quantile: float = 0.9
    clip_share: float = 0.1
    repair: Repair = "linear"
    restore: Restore = "shift"
    draws: Literal["chosen", "own", "gaussian"] = "chosen"
    truncation: float = 1.0
    balanced: bool = True

    def __post_init__(self) -> None:
        for name, kind in (
            ("generator_kind", GeneratorKind),
            ("search", SearchName),
            ("distance", DistanceName),
            ("repair", Repair),
            ("restore", Restore),
        ):
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"Expected {name} to be one of {', '.join(get_args(kind))}.")
        require_distance(self.distance)
        if self.inversion_steps < 1 or min(self.dimensions, self.generator_steps) < 0:
            raise InputError(
                "Expected inversion_steps >= 1, dimensions >= 0 and generator_steps >= 0, "
                f"got {self.inversion_steps}, {self.dimensions} and {self.generator_steps}."
            )
        if min(self.components, self.rounds) < 1:
            raise InputError(f"Expected components >= 1 and rounds >= 1, got {self.components} and {self.rounds}.")
        for name in ("clip_quantile", "clip_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.truncation <= 2:
            raise InputError(f"Expected truncation between 0 and 2, got {self.truncation}.")

    def certified(self, facts: PublicFacts) -> dict[str, Any]:
        """The settings, with the name and the SHA-256 of the generator's file for its path."""
        place = generator_file(Path(self.generator))
        known = {"generator": place.name, "generator_sha256": sha256_of(place)} if self.generator else {}
        return super().certified(facts) | known
