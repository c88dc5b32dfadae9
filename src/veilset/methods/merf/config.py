"""DP-MERF: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import RATE, Auto, Settings, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.facts import require_square
from veilset.models.features.weights import PUBLISHED, is_installed, require_installed
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts
from veilset.teachers.planning import choose_features

CODE_PART, FEATURES_PART, COUNT_PART = (part / math.sqrt(0.9) for part in (0.5, 0.8, 0.1))
"""Lengths of a record's parts in the class sums: its code, its random features, its count of one. Together 1."""

FEWEST_IMAGES_OF_A_CLASS = 8
PRETRAINED = "lite0"

Form = Literal["scattering", "pixels", "pretrained"]


class MerfSettings(Settings):
    """Public settings of DP-MERF."""

    features: Literal["auto", "scattering", "pixels", "pretrained"] = setting(
        "auto",
        "What class means are taken of: random features of a kernel on scattering maps or on pixels, or what a network "
        "trained on ImageNet sees (pretrained; needs the extra of that name). auto is pretrained where images are in "
        "colour, have 24 pixels or more, and the extra is installed, else scattering.",
    )
    kernel: Literal["gaussian", "hermite"] = setting(
        "gaussian",
        "Of class means on scattering maps or pixels: by random Fourier features, or by Hermite polynomials (DP-HP).",
    )
    weighting: Literal["even", "adversarial"] = setting(
        "even",
        "How much each of the features counts for the generator: all alike, or more where its images still differ "
        "(adversarial, after PEARL).",
    )
    side: int = setting(64, "Of the square images that pretrained features see.", least=32, most=256)
    random_features: int = setting(2048, "Random Fourier features.", least=4, multiple_of=4)
    code_size: int = setting(256, "Length of the code whose second moments make the classifier.", least=2)
    moment_share: float = setting(
        0.36, "Share of the privacy for second moments; 0 leaves them and the classifier out.", least=0, below=1
    )
    pictures: int = setting(
        3000, "Drawn pictures that fix scales and projections, beside at most as many public images.", least=3
    )
    steps: int = setting(1200, "Generator steps.", least=1)
    batch: int | Auto = setting(
        "auto", "Generated images of a step; auto is 200, and 64 where features are pretrained, which look slowly.",
        least=FEWEST_IMAGES_OF_A_CLASS,
    )  # fmt: skip
    learning_rate: float = setting(0.002, "Of the generator, falling to 0 as half a cosine.", **RATE)
    latent_size: int = setting(64, "Length of the generator's latent vector.", least=1)
    width: int = setting(64, "Of the generator.", least=1)
    memory: float = setting(
        0.9, "How much of the mean of earlier steps' images a step keeps; 0 is the plain batch mean.", least=0, below=1
    )
    balance: Literal["even", "as_found"] | Auto = setting(
        "auto",
        "Of the released images: all classes alike, or (as_found) in the proportions of the noisy counts. auto is even "
        "for findings, which are often rare, and as_found for classes.",
    )
    classifier_weight: float = setting(0.003, "Weight of the classifier's loss on generated images.", least=0)

    def check(self) -> None:
        """A code needs more pictures than it has numbers; a classifier needs moments."""
        super().check()
        if self.kernel == "hermite" and self.features == "pretrained":
            raise InputError("Expected features=scattering or pixels for kernel=hermite, got pretrained.")
        if self.code_size >= self.pictures:
            raise InputError(f"Expected code_size below pictures={self.pictures}, got {self.code_size}.")
        if self.classifier_weight > 0 and self.moment_share == 0:
            raise InputError(f"Expected classifier_weight=0 where moment_share=0, got {self.classifier_weight}.")


@dataclass(frozen=True, kw_only=True)
class MerfPlan(MethodPlan):
    """One Gaussian for the class sums and, with a share for moments, one for those."""

    settings: MerfSettings
    form: Form
    batch: int
    class_sums: Event
    moments: Event | None
    even: bool
    """Whether all classes, or having and lacking each finding, are released alike often."""

    def public_weights(self) -> dict[str, str]:
        """Those of the pretrained features."""
        return {PRETRAINED: PUBLISHED[PRETRAINED].sha256} if self.form == "pretrained" else {}


_SMALL_PRETRAINED = {"features": "pretrained", "side": 32, "steps": 1, "pictures": 24, "code_size": 8}


class Merf(Method):
    """DP-MERF on scattering maps, or on what a pretrained network sees (DP-MEPF)."""

    name = "merf"
    title = "Mean embeddings with random features (DP-MERF)"
    paper = "Harder, Adamczewski, Park, AISTATS 2021, https://arxiv.org/abs/2002.11603"
    claim_of_paper = "The claim holds: one Gaussian release of mean embeddings, and nothing is read after it."
    version = 3
    takes_findings = True
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
    forms = (
        AuditForm(form="class sums and moments", settings={**smallest, "steps": 1}),
        AuditForm(form="Hermite features", settings={**smallest, "steps": 1, "kernel": "hermite"}),
        *(  # where their weights are on this machine
            [AuditForm(form="pretrained features", settings={**smallest, **_SMALL_PRETRAINED}, runs=200)]
            if is_installed(PRETRAINED)
            else []
        ),
    )

    def plan(self, facts: PublicFacts, budget: Budget) -> MerfPlan:
        """Share the budget between the sums: noise s/sqrt(p) and s/sqrt(1-p) cost exactly what one of noise s costs."""
        require_square(facts)
        share, (form, why) = self.settings.moment_share, self._form(facts)
        batch = (64 if form == "pretrained" else 200) if self.settings.batch == "auto" else self.settings.batch

        def events(noise: float) -> list[Event]:
            class_sums = Event(label="class embeddings", noise_multiplier=noise / math.sqrt(1 - share))
            if not share:
                return [class_sums]
            return [class_sums, Event(label="second moments of the codes", noise_multiplier=noise / math.sqrt(share))]

        spent = events(calibrate(budget, events))
        class_sums = spent[0]
        # Half of the units have a finding, as far as is known, and share their weight among all that they have.
        each = facts.units / 2 / math.sqrt(1 + facts.classes / 2) if facts.findings else facts.units / facts.classes
        of_a_mean = class_sums.noise_multiplier / FEATURES_PART / each
        even = facts.findings if self.settings.balance == "auto" else self.settings.balance == "even"
        numbers = (
            {}
            if form == "pretrained"
            else {
                "length of the noise on a class mean of length < 1": of_a_mean
                * math.sqrt(self.settings.random_features)
            }
        )
        rules = {
            "features": Decision(value=form, why=why),
            "batch": Decision(value=batch, why=f"features={form}"),
            "balance": Decision(
                value="even" if even else "as_found",
                why="findings are often rare" if facts.findings else "classes keep their proportions",
            ),
        }
        return MerfPlan(
            budget=budget,
            settings=self.settings,
            events=tuple(spent),
            facts={"noise on a number of a class mean": of_a_mean, **numbers},
            decided={name: rule for name, rule in rules.items() if getattr(self.settings, name) == "auto"},
            form=form,
            batch=batch,
            class_sums=class_sums,
            moments=spent[1] if share else None,
            even=even,
        )

    def _form(self, facts: PublicFacts) -> tuple[Form, str]:
        """What class means are taken of, and why: by public facts alone, as for teachers."""
        if self.settings.features == "pretrained":
            require_installed(PRETRAINED)
        if self.settings.features != "auto":
            return self.settings.features, "set"
        if self.settings.kernel == "hermite":
            return "scattering", "kernel=hermite"
        found, why = choose_features(facts)
        return ("scattering" if found == "wavelets" else "pretrained"), why
