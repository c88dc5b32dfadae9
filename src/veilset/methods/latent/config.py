"""Latents inside a public generator: settings, plan and what the method is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.core.settings import RATE, Auto, Settings, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.latent.choices import (
    SEARCHES,
    DistanceName,
    Draws,
    Repair,
    Restore,
    SearchName,
    SearchSettings,
    require_distance,
    require_network,
)
from veilset.methods.latent.generators.given import GivenGenerator
from veilset.methods.latent.generators.recipes import (
    EigenRecipe,
    GeneratorKind,
    GeneratorPreset,
    ProjectedRecipe,
    Recipe,
    latent_size_of,
    recipe_of,
)
from veilset.methods.latent.rules import direction_count, mean_direction_count, teacher_share, units_of_a_class
from veilset.models.features.weights import require_installed
from veilset.models.generators.sides import LatentsName
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import Part, noise_of_one_sum, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.release.inputs import InputRelease
from veilset.teachers.config import TeacherPlan, TeacherSettings
from veilset.teachers.planning import TeacherDraft, draft_teacher

_MOMENTS, _CLIP, _COMPONENTS = "latent moments", "latent clip norm", "latent components"
_COMPONENTS_SHARE = 0.2  # of the moments' privacy for the rounds of a mixture; the covariance needs the rest
_AUDITED: Mapping[str, Any] = {"generator_steps": 1, "inversion_steps": 1, "dimensions": 4, "teacher_share": 0.0}


class LatentSettings(Settings):
    """Public settings of the method."""

    generator: str = setting(
        "",
        "A file of `veilset generator train` or `convert`, or the folder of a release, which is verified and whose "
        "cost counts; empty makes one of the public images.",
    )
    generator_is_of_others: bool = setting(
        False, "Declare that this release is of other people; the certificate says that you did."
    )
    generator_kind: GeneratorKind = setting(
        "eigen",
        "style is trained against a critic; projected against one that sees images through pretrained features; eigen "
        "is public images along their principal directions.",
    )
    generator_preset: GeneratorPreset = setting("default", "Of the training of a generator.")
    generator_steps: int | Auto = setting("auto", "Of that training; auto leaves it to the preset.", least=1)
    mirrored: bool = setting(False, "Let the generator see mirrored images, too.")
    latents: LatentsName = setting(
        "w",
        "Of a style or stylegan2 generator: w is the mapped noise, z the noise itself, w_plus a mapped noise for each "
        "layer: so many times the directions, of which noise lets estimate no more.",
    )
    search: SearchName = setting(
        "ff",
        "ff is the inversion network; opt, opt_a and opt_b descend from its answer, without penalty, with a weak and "
        "with a strong one; average descends from the average latent.",
    )
    distance: DistanceName = setting(
        "wavelets",
        "That a descent makes small; lite0 compares maps of a network trained on ImageNet, lpips is there where that "
        "package is installed.",
    )
    search_start: Literal["auto", "network", "average"] = setting(
        "auto", "Where a search starts, in the place of its own: the inversion network's answer, or the average latent."
    )
    search_steps: int | Auto = setting("auto", "Of its descent.", least=0)
    search_rate: float | Auto = setting("auto", "Its learning rate.", **RATE)
    search_penalty: float | Auto = setting("auto", "Its weight of the squared length.", least=0)
    inversion_network: str = setting(
        "convnet",
        "Network of the inversion; lite0-tuned starts from published ImageNet weights, as the paper's does. A "
        "generator that knows the way back, as eigen does, needs none.",
    )
    inversion_rate: float = setting(0.003, "Its peak learning rate.", **RATE)
    inversion_steps: int = setting(2000, "At most so many steps of the inversion network.", least=1)
    dimensions: int | Auto = setting(
        "auto", "Directions to estimate; auto is a rule on units, classes and noise.", least=1
    )
    mean_directions: int | Auto = setting(
        "auto",
        "Directions whose class means are released, those of dimensions among them; auto is a rule on units, classes "
        "and noise, 0 is as many as dimensions, as in the paper.",
        least=0,
    )
    tail_bands: int = setting(
        6,
        "Bands of the directions that are not estimated; how strong private images are in each is part of the release. "
        "0 leaves them at the public strength, as the paper does.",
        least=0,
        most=64,
    )
    components: int = setting(
        1, "Gaussians of each class, of one covariance; more than one by expectation-maximisation.", least=1
    )
    rounds: int = setting(3, "Of that, each one more release.", least=1)
    clip: Literal["public", "private"] = setting(
        "public", "The clip norm: a quantile of public samples, or a paid quantile of the private lengths."
    )
    clip_quantile: float = setting(0.9, "That quantile.", above=0, below=1)
    clip_share: float = setting(0.1, "Share of the privacy for a private quantile.", above=0, below=1)
    mean_share: float | Auto = setting(
        "auto",
        "Share of the moments' privacy for means, the rest is the covariance's; auto makes the expected divergence "
        "least. The paper's two releases are one with a share.",
        above=0,
        below=1,
    )
    repair: Repair = setting("linear", "Of the noisy covariance; replace is the paper's.")
    restore: Restore = setting(
        "shift",
        "What the inversion loses and gets back: nothing (none), the variance (spread), shifts of the mean, too "
        "(mean), or also of the covariance (shift).",
    )
    draws: Draws = setting(
        "chosen", "Samples start from the generator's own latents that fit (chosen), any (own) or normal ones."
    )
    teacher_share: float | Auto = setting(
        "auto",
        "Share of the privacy spent on a classifier of latents that labels the release; 0 leaves that to the fitted "
        "Gaussians. auto is a rule on units, classes and budget.",
        least=0,
        below=1,
    )
    truncation: float = setting(1.0, "Below 1 pulls samples towards their class' mean.", least=0, most=2)
    balance: Literal["even", "as_found"] = setting(
        "even", "Of the released images: all classes alike, or (as_found) as often as the noisy counts say."
    )

    def check(self) -> None:
        """A distance needs its package, and so does a critic on pretrained features."""
        super().check()
        require_distance(self.distance)
        require_network(self.inversion_network)
        if self.generator_kind == "projected" and not self.generator:
            require_installed(ProjectedRecipe().features)
        if self.latents != "w" and not self.generator and self.generator_kind != "style":
            raise InputError(
                f"latents={self.latents} needs a mapping network, which generator_kind={self.generator_kind} has not. "
                "Set generator_kind=style, or latents=w."
            )


@dataclass(frozen=True, kw_only=True)
class LatentPlan(MethodPlan):
    """One Gaussian for the moments, each round of a mixture, the histogram for a private clip norm; a classifier."""

    settings: LatentSettings
    clip: Event | None
    moments: Event
    components: tuple[Event, ...]
    teacher: TeacherPlan | None
    directions: int
    """To estimate, at most: an eigen generator of few public images has fewer."""
    mean_directions: int
    """Whose means are estimated, at most."""
    search: SearchSettings
    recipe: Recipe | None
    """Of the generator to make of public images; None where one is given."""
    given: GivenGenerator | None = field(compare=False)

    def certified(self) -> dict[str, Any]:
        """The settings, with the name and the SHA-256 of the generator's file for its path."""
        return super().certified() | ({} if self.given is None else self.given.certified())


class Latent(Method):
    """Private Gaussians in the latent space of a public generator."""

    name = "latent"
    title = "Private Gaussians inside a public generator"
    paper = "Bie, Find your private dataset inside StyleGAN, 2020"
    claim_of_paper = (
        "The paper's claim holds but for the clip norm, which is a percentile of private norms, as its author says."
    )
    version = 3
    guarantee = "dp"
    needs_public = True
    takes_findings = True
    releases = ("images", "labels", "soft_labels", "generator")
    settings_type = LatentSettings
    settings: LatentSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"generator_kind": "style", "generator_preset": "fast", "inversion_steps": 300},
        "paper": {
            "generator_kind": "style",
            "search": "opt_a",
            "repair": "replace",
            "restore": "none",
            "draws": "gaussian",
            "mean_directions": 0,
            "tail_bands": 0,
            "teacher_share": 0.0,
        },
    }
    smallest: ClassVar[Mapping[str, Any]] = {"generator_steps": 2, "inversion_steps": 2}
    forms = (
        AuditForm(form="moments of latents", settings=_AUDITED, runs=300),
        AuditForm(form="with a private clip norm", settings={**_AUDITED, "clip": "private"}, runs=300),
        AuditForm(form="mixtures in two rounds", settings={**_AUDITED, "components": 2, "rounds": 2}, runs=300),
    )
    also_tried = (AuditForm(form="labels by a classifier", settings={**_AUDITED, "teacher_share": 0.4}),)

    @property
    def requires_public(self) -> bool:
        """Only to make a generator."""
        return not self.settings.generator

    def public_pictures(self) -> Records | None:
        """Those that a given eigen generator holds."""
        if self._given is None:
            return None
        import numpy as np

        from veilset.data.images import ImageSet
        from veilset.models.generators.eigen import EigenGenerator

        network = self._given.network
        if not isinstance(network, EigenGenerator):
            return None
        return ImageSet(network.kept_pictures(), np.zeros(network.pictures, dtype=np.int64))

    @cached_property
    def _given(self) -> GivenGenerator | None:
        place = self.settings.generator
        return GivenGenerator(place, is_of_others=self.settings.generator_is_of_others) if place else None

    def inputs(self) -> tuple[InputRelease, ...]:
        """The release that a given generator is from, if it is."""
        return () if self._given is None else self._given.inputs

    def plan(self, facts: PublicFacts, budget: Budget) -> LatentPlan:
        """Share the budget between the sums, and let noise and units say how many directions can be estimated."""
        config = self.settings
        if facts.findings and config.components > 1:  # a round shares an image out within its one class
            raise InputError(
                f"components={config.components} needs one class for each image. Set components=1, or pass "
                "--findings-as classes."
            )
        recipe, latent_size = self._recipe(facts)
        share_of_teacher = self._teacher_share(facts, budget)
        draft = _head(facts, budget) if share_of_teacher else None
        left = 1 - share_of_teacher
        shares = {"clip": left * config.clip_share} if config.clip == "private" else {}
        left -= sum(shares.values())
        shares["moments"] = left * (1 - _COMPONENTS_SHARE) if config.components > 1 else left
        if config.components > 1:
            shares["components"] = left * _COMPONENTS_SHARE
        parts = {name: Part(event=partial(_sums, config, name), share=share) for name, share in shares.items()}
        if draft is not None:
            parts["teacher"] = Part(event=draft.event, share=share_of_teacher)
        spent = dict(zip(parts, share_budget(budget, list(parts.values())), strict=True))
        clip, moments = spent.get("clip"), spent["moments"]
        rounds = (replace(spent["components"], count=1),) * config.rounds if "components" in spent else ()
        teacher = None if draft is None else draft.at(spent["teacher"].noise_multiplier)
        directions, mean_directions = self._directions(facts, moments.noise_multiplier, latent_size)
        return LatentPlan(
            budget=budget,
            events=tuple(event for event in (clip, moments, *rounds, spent.get("teacher")) if event is not None),
            facts={"directions estimated": directions, "means estimated": mean_directions, "of": latent_size},
            settings=config,
            decided=self._decisions(recipe, directions, mean_directions, share_of_teacher),
            clip=clip,
            moments=moments,
            components=rounds,
            teacher=teacher,
            directions=directions,
            mean_directions=mean_directions,
            search=self._search(),
            recipe=recipe,
            given=self._given,
        )

    def _search(self) -> SearchSettings:
        """The named search, with what was set of its start, steps, rate and penalty."""
        config = self.settings
        wanted = {
            "start": config.search_start,
            "steps": config.search_steps,
            "learning_rate": config.search_rate,
            "penalty": config.search_penalty,
        }
        return SEARCHES[config.search].changed(**{name: value for name, value in wanted.items() if value != "auto"})

    def _recipe(self, facts: PublicFacts) -> tuple[Recipe | None, int]:
        """How to make a generator, where none is given, and the length of its latents."""
        if self._given is not None:
            return None, self._given.latent_size(facts.shape, self.settings.latents)
        config = self.settings
        recipe = recipe_of(
            config.generator_kind,
            preset=config.generator_preset,
            steps=config.generator_steps,
            mirrored=config.mirrored,
        )
        return recipe, latent_size_of(recipe, facts.shape, config.latents)

    def _directions(self, facts: PublicFacts, noise: float, latent_size: int) -> tuple[int, int]:
        """Of the covariance, and of the means."""
        wanted, of_means = self.settings.dimensions, self.settings.mean_directions
        each = units_of_a_class(facts)
        if wanted == "auto":
            wanted = direction_count(latent_size, each, noise)
        elif wanted > min(latent_size, each):
            raise InputError(
                f"Expected dimensions of at most {min(latent_size, int(each))} for latents of {latent_size} numbers "
                f"and about {each:.0f} units a class, got {wanted}. auto chooses by a rule."
            )
        if of_means == "auto":
            return wanted, mean_direction_count(latent_size, wanted, each, noise)
        if 0 < of_means < wanted or of_means > latent_size:
            raise InputError(
                f"Expected mean_directions of 0, or from {wanted}, the directions of the covariance, to {latent_size}, "
                f"the length of a latent, got {of_means}. auto chooses by a rule."
            )
        return wanted, max(wanted, of_means)

    def _teacher_share(self, facts: PublicFacts, budget: Budget) -> float:
        if facts.classes == 1 and not facts.findings:
            return 0.0  # there is nothing to tell apart
        wanted = self.settings.teacher_share
        return teacher_share(units_of_a_class(facts), noise_of_one_sum(budget)) if wanted == "auto" else wanted

    def _decisions(
        self, recipe: Recipe | None, directions: int, mean_directions: int, share_of_teacher: float
    ) -> dict[str, Decision]:
        decided = {}
        if self.settings.dimensions == "auto":
            why = "in so many directions noise stays below what there is to estimate"
            decided["dimensions"] = Decision(value=directions, why=why)
        if self.settings.mean_directions == "auto":
            why = "noise moves so many class means together by less than half of what images differ in one"
            decided["mean_directions"] = Decision(value=mean_directions, why=why)
        if self.settings.teacher_share == "auto":
            why = "noise leaves a classifier enough" if share_of_teacher else "the Gaussians label as well for nothing"
            decided["teacher_share"] = Decision(value=share_of_teacher, why=why)
        if self.settings.generator_steps == "auto" and recipe is not None and not isinstance(recipe, EigenRecipe):
            why = f"generator_preset={self.settings.generator_preset}"
            decided["generator_steps"] = Decision(value=recipe.steps, why=why)
        return decided


def _sums(config: LatentSettings, part: str, noise: float) -> Event:
    """The full Gaussian sums of a part of the plan."""
    label, count = {"clip": (_CLIP, 1), "moments": (_MOMENTS, 1), "components": (_COMPONENTS, config.rounds)}[part]
    return Event(label=label, noise_multiplier=noise, count=count)


def _head(facts: PublicFacts, budget: Budget) -> TeacherDraft:
    """A linear head that reads what the search finds, by the rules of all heads."""
    return replace(draft_teacher(facts, budget, TeacherSettings(kind="head", features="wavelets")), features="latents")
