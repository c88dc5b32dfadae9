"""DP-MERF: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import RATE, Settings, setting
from veilset.methods.base import AuditForm, Method, MethodPlan
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts

CODE_PART, FEATURES_PART, COUNT_PART = (part / math.sqrt(0.9) for part in (0.5, 0.8, 0.1))
"""Lengths of a record's parts in the class sums: its code, its random features, its count of one. Together 1."""

FEWEST_IMAGES_OF_A_CLASS = 8


class MerfSettings(Settings):
    """Public settings of DP-MERF."""

    features: Literal["scattering", "pixels"] = setting("scattering", "What the kernel sits on.")
    random_features: int = setting(2048, "Random Fourier features.", least=4, multiple_of=4)
    code_size: int = setting(256, "Length of the code whose second moments make the classifier.", least=2)
    moment_share: float = setting(
        0.36, "Share of the privacy for second moments; 0 leaves them and the classifier out.", least=0, below=1
    )
    pictures: int = setting(
        3000, "Drawn pictures that fix scales and projections, beside at most as many public images.", least=3
    )
    steps: int = setting(1200, "Generator steps.", least=1)
    batch: int = setting(200, "Generated images of a step.", least=FEWEST_IMAGES_OF_A_CLASS)
    learning_rate: float = setting(0.002, "Of the generator, falling to 0 as half a cosine.", **RATE)
    latent_size: int = setting(64, "Length of the generator's latent vector.", least=1)
    width: int = setting(64, "Of the generator.", least=1)
    memory: float = setting(
        0.9, "How much of the mean of earlier steps' images a step keeps; 0 is the plain batch mean.", least=0, below=1
    )
    classifier_weight: float = setting(0.003, "Weight of the classifier's loss on generated images.", least=0)

    def check(self) -> None:
        """A code needs more pictures than it has numbers; a classifier needs moments."""
        super().check()
        if self.code_size >= self.pictures:
            raise InputError(f"Expected code_size below pictures={self.pictures}, got {self.code_size}.")
        if self.classifier_weight > 0 and self.moment_share == 0:
            raise InputError(f"Expected classifier_weight=0 where moment_share=0, got {self.classifier_weight}.")


@dataclass(frozen=True, kw_only=True)
class MerfPlan(MethodPlan):
    """One Gaussian for the class sums and, with a share for moments, one for those."""

    settings: MerfSettings
    class_sums: Event
    moments: Event | None


class Merf(Method):
    """DP-MERF on scattering features."""

    name = "merf"
    title = "Mean embeddings with random features (DP-MERF)"
    paper = "Harder, Adamczewski, Park, AISTATS 2021, https://arxiv.org/abs/2002.11603"
    claim_of_paper = "The claim holds: one Gaussian release of mean embeddings, and nothing is read after it."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    settings_type = MerfSettings
    settings: MerfSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 150, "random_features": 1024, "code_size": 128, "pictures": 1000},
        "paper": {"features": "pixels", "moment_share": 0.0, "classifier_weight": 0.0, "memory": 0.0},
    }
    smallest: ClassVar[Mapping[str, Any]] = {
        "steps": 3, "random_features": 64, "code_size": 16, "pictures": 100, "batch": 16,
    }  # fmt: skip
    forms = (AuditForm(form="class sums and moments", settings={**smallest, "steps": 1}),)

    def plan(self, facts: PublicFacts, budget: Budget) -> MerfPlan:
        """Share the budget between the sums: noise s/sqrt(p) and s/sqrt(1-p) cost exactly what one of noise s costs."""
        height, width, _ = facts.shape
        if height != width or not 16 <= height <= 64:
            raise InputError(f"Expected square images of 16 to 64 pixels, got {height}x{width}. Pass --size 32.")
        share = self.settings.moment_share

        def events(noise: float) -> list[Event]:
            class_sums = Event(label="class embeddings", noise_multiplier=noise / math.sqrt(1 - share))
            if not share:
                return [class_sums]
            return [class_sums, Event(label="second moments of the codes", noise_multiplier=noise / math.sqrt(share))]

        spent = events(calibrate(budget, events))
        class_sums = spent[0]
        of_a_mean = class_sums.noise_multiplier / FEATURES_PART / (facts.units / facts.classes)
        return MerfPlan(
            budget=budget,
            settings=self.settings,
            events=tuple(spent),
            facts={
                "length of the noise on a class mean of length < 1": of_a_mean
                * math.sqrt(self.settings.random_features)
            },
            class_sums=class_sums,
            moments=spent[1] if share else None,
        )
