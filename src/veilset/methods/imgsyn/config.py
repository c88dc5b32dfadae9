"""DP-ImgSyn: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import RATE, Auto, Settings, setting
from veilset.methods import METHODS
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.choices import Variation
from veilset.privacy.accounting import noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import KindOrAuto, TeacherPlan, TeacherSettings
from veilset.teachers.planning import choose_features, draft_teacher

Form = Literal["auto", "code", "map", "channel"]

# Temperature of soft labels of more than two classes, unless one is set; docs/imgsyn.md has its trials.
_SOFT = 4.0


class AlignSettings(Settings):
    """How far images move, and by what."""

    iterations: int = setting(10, "Steps for each batch; 0 leaves the images as they are.", least=0)
    stop: Literal["fixed", "auto"] = setting(
        "fixed", "Take all steps, or (auto) as many as the total variation of the first batch allows."
    )
    learning_rate: float = setting(0.05, "Of Adam, in units of the pixel range.", **RATE)
    feature_weight: float = setting(10.0, "Of the distance of moments; 0 switches the term off.", least=0)
    class_weight: float = setting(0.03, "Of the cross-entropy to the label aimed at.", least=0)
    variation_weight: float = setting(1e-4, "Of the total variation.", least=0)
    square_weight: float = setting(3e-8, "Of the squared pixels.", least=0)


class ImgsynSettings(AlignSettings):
    """Public settings of DP-ImgSyn."""

    teacher: KindOrAuto = setting("auto", "Kind of teacher: see docs/teachers.md.")
    features: str = setting("auto", "Of a teacher that is a head: wavelets, lite0, lite0+wavelets, ...")
    network: str = setting("resnet18", "Of a teacher that is a network, e.g. resnet18 as in the paper.")
    start: Literal["auto", "public", "noise", "filtered_noise", "drawn", "merf"] = setting(
        "auto",
        "What images start from; merf is a DP generator of the same vault, auto is public images where there are any "
        "and drawn patterns elsewhere.",
    )
    start_share: float = setting(0.4, "Share of the privacy for merf.", above=0, below=1)
    blur: int = setting(3, "Side of the low-pass kernel of filtered noise, an odd number.", least=3, most=15)
    variation: Variation = setting("all", "Of public images that are not aligned.")
    aligned_variation: Variation = setting("none", "Of those that are.")
    statistics: Form = setting(
        "auto",
        "What is matched: code (what a head reads), map (keeps positions) or channel (the paper's); auto is code where "
        "the teacher has one, else map.",
    )
    by_class: bool = setting(True, "One statistic for each class.")
    statistics_share: float = setting(0.2, "Share of the privacy for the statistic.", above=0, below=1)
    aligned_share: float = setting(
        0.3, "Share of the images that are aligned; the others are only varied, chosen and labelled.", least=0, most=1
    )
    augmentation: Literal["images", "recipe"] = setting(
        "images",
        "How mild changes reach students: as copies of aligned images, each labelled anew, or by a recipe on the "
        "certificate, by which students change every image anew in each pass.",
    )
    copies: int = setting(4, "Of each aligned image: the first as it is, the others mildly changed.", least=1)
    pool: int = setting(
        4, "How many starting images each of the others is chosen from, so that classes come out even.", least=1
    )
    batch: int = setting(100, "Images aligned together.", least=1)
    label_temperature: float | Auto = setting(
        "auto",
        "Of the soft labels. Softer labels say more of the classes that an image is not of, which is most of what a "
        "student learns from images of something else; of two classes there is no more to say.",
        above=0,
    )

    def check(self) -> None:
        """The teacher needs a share, too."""
        super().check()
        self.teacher_settings.check()
        if self.start == "merf" and self.start_share + self.statistics_share >= 1:
            raise InputError("Expected start_share + statistics_share < 1, so that the teacher gets a share, too.")
        if self.blur % 2 == 0:
            raise InputError(f"Expected blur to be odd, got {self.blur}.")

    @property
    def teacher_settings(self) -> TeacherSettings:
        """What is asked of the teacher."""
        return TeacherSettings(kind=self.teacher, features=self.features, network=self.network)

    @property
    def aligns(self) -> bool:
        """Whether any image is moved."""
        return self.iterations > 0 and self.aligned_share > 0

    @property
    def needs_statistic(self) -> bool:
        """Whether images are moved towards a statistic, so that one is released and paid for."""
        return self.aligns and self.feature_weight > 0


@dataclass(frozen=True, kw_only=True)
class ImgsynPlan(MethodPlan):
    """The starting images' plan, the teacher's, one Gaussian for the statistic, and the labels' temperature."""

    settings: ImgsynSettings
    start: MethodPlan | None
    teacher: TeacherPlan
    statistic: Event | None
    temperature: float


class Imgsyn(Method):
    """DP-ImgSyn."""

    name = "imgsyn"
    title = "Public images aligned with private ones (DP-ImgSyn)"
    paper = "Soufleri, Ravikumar, Roy, TMLR 2024, https://openreview.net/forum?id=KleJZ9ZzYw"
    claim_of_paper = "The paper's teacher holds, its layer statistics do not: twenty layers are charged as one release."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "teacher")
    settings_type = ImgsynSettings
    settings: ImgsynSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"aligned_share": 0.2, "iterations": 5},
        "paper": {
            "teacher": "network",
            "variation": "none",
            "statistics": "channel",
            "by_class": False,
            "aligned_share": 1.0,
            "copies": 1,
            "pool": 1,
            "batch": 80,
            "learning_rate": 0.1,
            "class_weight": 1.0,
            "variation_weight": 2.5e-5,
            "label_temperature": 10.0,
        },
    }
    smallest: ClassVar[Mapping[str, Any]] = {"iterations": 2, "batch": 20, "network": "convnet"}
    forms = (AuditForm(form="teacher and statistics", runs=300),)

    def requires_public(self) -> bool:
        """Only where the settings name public images."""
        return self.settings.start == "public" or self.settings.teacher == "pretrained"

    def plan(self, facts: PublicFacts, budget: Budget) -> ImgsynPlan:
        """The statistic and the starting images get their shares, the teacher what is left.

        A sum with the noise of a single Gaussian at the whole budget, over the root of a share, costs that share.
        """
        config = self.settings
        start = None
        if config.start == "merf":
            start = METHODS.get("merf").configure().plan(facts, budget).at_share(config.start_share)
        statistic = None
        if config.needs_statistic:
            noise = noise_of_one_sum(budget) / math.sqrt(config.statistics_share)
            statistic = Event(label="statistics", noise_multiplier=noise)
        draft = draft_teacher(facts, budget, config.teacher_settings)
        before, after = (() if start is None else start.events), (() if statistic is None else (statistic,))
        asked = draft.event(1.0)
        teacher = draft.at(noise_of(asked, budget, among=(*before, asked, *after)))
        temperature = self._temperature(facts)
        shown: dict[str, float | int | str] = {
            "teacher": teacher.name,
            "share of the privacy for the statistic": config.statistics_share if statistic else 0.0,
        }
        if statistic:
            shown["noise of a mean, in lengths of a row"] = statistic.noise_multiplier / facts.units
        return ImgsynPlan(
            budget=budget,
            events=(*before, teacher.event, *after),
            facts=shown,
            settings=config,
            decided=self._decisions(teacher, temperature, facts),
            start=start,
            teacher=teacher,
            statistic=statistic,
            temperature=temperature,
        )

    def default_samples(self, facts: PublicFacts) -> int:
        """As many as a student can still learn from, whatever the size of the vault; fewer where images are large."""
        side = max(facts.shape[:2])
        return 60_000 if side <= 32 else 12_000 if side <= 64 else 2_000

    def _temperature(self, facts: PublicFacts) -> float:
        wanted = self.settings.label_temperature
        return (_SOFT if facts.classes > 2 else 1.0) if wanted == "auto" else wanted

    def _decisions(self, teacher: TeacherPlan, temperature: float, facts: PublicFacts) -> dict[str, Decision]:
        """What the rules chose, and what students do best with."""
        decided = {"label_temperature": Decision(value=temperature, why=f"there are {facts.classes} classes")}
        if self.settings.teacher == "auto":
            why = "its rules were fitted, and it asks nothing of public images"
            decided["teacher"] = Decision(value=teacher.recipe.kind, why=why)
        if self.settings.features == "auto" and teacher.recipe.kind == "head":
            decided["features"] = Decision(value=teacher.recipe.features, why=choose_features(facts)[1])
        if teacher.recipe.kind == "head" and teacher.recipe.features == "wavelets":
            why = "it is of the teacher's kind, so it can say all that the teacher says"
            decided["student_network"] = Decision(value="scatternet", why=why)
        if self.settings.augmentation == "recipe":
            from veilset.training.augment import MILD

            decided["student_changes"] = Decision(value=MILD.plain(), why="augmentation=recipe")
        return decided
