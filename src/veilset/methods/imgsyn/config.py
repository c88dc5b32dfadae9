"""DP-ImgSyn: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from veilset.core.errors import BudgetError, InputError
from veilset.core.settings import CLIP_NORM, RATE, Auto, Settings, setting
from veilset.methods import METHODS
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.choices import Variation
from veilset.privacy.accounting import epsilon_of, noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import budget_of_share, noise_of_one_sum
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import KindOrAuto, TeacherPlan, TeacherSettings
from veilset.teachers.planning import TeacherDraft, draft_teacher

Form = Literal["auto", "code", "map", "channel"]

# Methods whose images may be a start, without what labels them: the teacher here does.
_STARTS: Mapping[str, Mapping[str, Any]] = {"merf": {}, "latent": {"teacher_share": 0.0}}
# Temperature of soft labels of more than two classes, unless one is set; docs/notes/imgsyn.md has its trials.
_SOFT = 4.0
_COLOUR = 3
# Public images may be twice as large up to this side of the private ones.
_LARGEST_DOUBLED = 64
# Of the privacy for a count that nobody set: its noise is then a few units more than that of a sum alone.
_COUNT_SHARE = 0.02


# Tables 5 and 7 of the paper, MNIST at epsilon 10; the noise follows from the budget. Faces have rows of their own.
_PAPER: Mapping[str, Any] = {
    "teacher": "network", "network": "resnet18", "teacher_epochs": 14.0, "teacher_batch": 128,
    "teacher_learning_rate": 0.01, "teacher_clip_norm": 1.0, "teacher_bands": 1,
    "variation": "none", "statistics": "channel", "by_class": False, "aligned_share": 1.0, "copies": 1, "pool": 1,
    "batch": 80, "keep": "last", "learning_rate": 0.1, "class_weight": 1.0, "variation_weight": 2.5e-5,
    "label_temperature": 100.0,
}  # fmt: skip


class AlignSettings(Settings):
    """How far images move, and by what."""

    iterations: int = setting(10, "Steps for each batch; 0 leaves the images as they are.", least=0)
    stop: Literal["fixed", "auto"] = setting(
        "fixed", "Take all steps, or (auto) as many as the total variation of the first batch allows."
    )
    keep: Literal["best", "last"] = setting(
        "best", "Which iterate is released: that of the smallest loss, or the last, as in the paper."
    )
    learning_rate: float = setting(0.05, "Of Adam, in units of the pixel range.", **RATE)
    feature_weight: float = setting(10.0, "Of the distance of moments; 0 switches the term off.", least=0)
    class_weight: float = setting(0.03, "Of the cross-entropy to the label aimed at.", least=0)
    variation_weight: float = setting(1e-4, "Of the total variation.", least=0)
    square_weight: float = setting(3e-8, "Of the squared pixels.", least=0)


class ImgsynSettings(AlignSettings):
    """Public settings of DP-ImgSyn."""

    teacher: KindOrAuto = setting("auto", "Kind of teacher: see docs/explanation/teachers.md.")
    features: str = setting(
        "auto",
        "Of a teacher that is a head: wavelets, lite0, lite0+wavelets, ... auto is the teachers' own rule and, for two "
        "classes in colour, what it chooses joined with wavelets.",
    )
    network: str = setting("resnet18", "Of a teacher that is a network, e.g. resnet18 as in the paper.")
    teacher_steps: int | Auto = setting("auto", "Noisy sums of the teacher's DP-SGD.", least=1)
    teacher_batch: int | Auto = setting("auto", "Units of such a step, on average.", least=1)
    teacher_clip_norm: float | Auto = setting("auto", "Bound of one unit's gradient there.", **CLIP_NORM)
    teacher_bands: int | Auto = setting(
        "auto", "Steps over which the noise of a network is correlated; 1 is independent noise.", least=1, most=64
    )
    teacher_learning_rate: float | Auto = setting("auto", "Of its SGD.", **RATE)
    teacher_epochs: float | Auto = setting(
        "auto", "Passes of it over all units, where teacher_steps is auto; needs teacher_batch.", above=0
    )
    teacher_noise: float | Auto = setting(
        "auto",
        "Its noise multiplier. auto spends what the other shares leave; a number leaves the rest of the budget to the "
        "statistic.",
        above=0,
    )
    start: Literal["auto", "public", "noise", "filtered_noise", "drawn", "merf", "latent"] = setting(
        "auto",
        "What images start from; merf and latent are DP generators of the same vault, whose images resemble the "
        "private ones. auto is public images where there are any and drawn patterns elsewhere.",
    )
    start_share: float = setting(0.4, "Share of the privacy for merf or latent.", above=0, below=1)
    blur: int = setting(3, "Side of the low-pass kernel of filtered noise, an odd number.", least=3, most=15)
    variation: Variation | Auto = setting(
        "auto",
        "Of public images that are not aligned; auto is crops where images are in colour, of more than two classes, "
        "and the teacher reads more than wavelets, so that it knows photographs; all elsewhere.",
    )
    aligned_variation: Variation = setting("none", "Of those that are.")
    statistics: Form = setting(
        "auto",
        "What is matched: code (what a head reads), map (keeps positions) or channel (the paper's); auto is code where "
        "the teacher has one, else map.",
    )
    by_class: bool = setting(True, "One statistic for each class.")
    statistics_share: float = setting(0.2, "Share of the privacy for the statistic.", above=0, below=1)
    aligned_share: float | Auto = setting(
        "auto",
        "Share of the images that are aligned; the others are only varied, chosen and labelled. auto is 0.3, and 0 "
        "where variation is crops, so that the teacher has the whole budget.",
        least=0,
        most=1,
    )
    augmentation: Literal["images", "recipe"] = setting(
        "images",
        "How mild changes reach students: as copies of aligned images, each labelled anew, or by a recipe on the "
        "certificate, by which students change every image anew in each pass.",
    )
    copies: int = setting(4, "Of each aligned image: the first as it is, the others mildly changed.", least=1)
    pool: int | Auto = setting(
        "auto",
        "How many starting images each of the others is chosen from, so that classes come out even; auto is 4, and 2 "
        "where variation is crops, because pretrained networks look slowly.",
        least=1,
    )
    batch: int = setting(100, "Images aligned together.", least=1)
    count_share: float | Auto = setting(
        "auto",
        "Share of the privacy for a noisy count of the classes or findings, by which the teacher gives rare ones their "
        "due; 0 buys none. auto is 0.02 for findings and for balance=as_found, else 0.",
        least=0,
        below=1,
    )
    balance: Literal["even", "as_found"] = setting(
        "even", "Of the released images: all classes alike, or (as_found) in the proportions of the noisy count."
    )
    label_temperature: float | Auto = setting(
        "auto",
        "Of the soft labels. Softer labels say more of the classes that an image is not of, which is most of what a "
        "student learns from images of something else; of two classes there is no more to say.",
        above=0,
    )

    def check(self) -> None:
        """The teacher needs a share, too."""
        super().check()
        _ = self.teacher_settings  # making them checks them
        if self.teacher_epochs != "auto" and self.teacher_batch == "auto":
            raise InputError("Expected teacher_batch beside teacher_epochs: passes say nothing of steps without it.")
        if self.start_method and self.start_share + self.statistics_share >= 1:
            raise InputError("Expected start_share + statistics_share < 1, so that the teacher gets a share, too.")
        if self.count_share != "auto" and self.count_share + self.statistics_share >= 1:
            raise InputError("Expected count_share + statistics_share < 1, so that the teacher gets a share, too.")
        if self.count_share == 0 and self.balance == "as_found":
            raise InputError("Expected count_share above 0 for balance=as_found: only a count tells the proportions.")
        if self.blur % 2 == 0:
            raise InputError(f"Expected blur to be odd, got {self.blur}.")

    @property
    def starts_from_public(self) -> bool:
        """Whether images start from public ones, where there are any."""
        return self.start in ("auto", "public")

    @property
    def start_method(self) -> str | None:
        """The method whose images these start from, where it is one."""
        return self.start if self.start in _STARTS else None

    def teacher_for(self, facts: PublicFacts) -> TeacherSettings:
        """The same, with passes over all units as steps."""
        if "auto" in (self.teacher_epochs, self.teacher_batch) or self.teacher_steps != "auto":
            return self.teacher_settings
        epochs, batch = float(self.teacher_epochs), min(int(self.teacher_batch), facts.units)
        steps = max(1, round(epochs * facts.units / batch))
        return self.teacher_settings.changed(steps=steps)

    @property
    def teacher_settings(self) -> TeacherSettings:
        """What is asked of the teacher."""
        return TeacherSettings(
            kind=self.teacher,
            features=self.features,
            network=self.network,
            steps=self.teacher_steps,
            batch=self.teacher_batch,
            clip_norm=self.teacher_clip_norm,
            bands=self.teacher_bands,
            learning_rate=self.teacher_learning_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Making:
    """How images are made of starting images, with nothing left to decide."""

    variation: Variation
    aligned_share: float
    pool: int
    why: str


@dataclass(frozen=True, kw_only=True)
class ImgsynPlan(MethodPlan):
    """The starting images' plan, a count, the teacher's, one Gaussian for the statistic, the labels' temperature.

    Whether any image is moved, and towards a released statistic or not, is decided with it.
    """

    settings: ImgsynSettings
    making: Making
    start: MethodPlan | None
    count: Event | None
    teacher: TeacherPlan
    statistic: Event | None
    temperature: float

    @property
    def aligns(self) -> bool:
        """Whether any image is moved."""
        return self.settings.iterations > 0 and self.making.aligned_share > 0


class Imgsyn(Method):
    """DP-ImgSyn."""

    name = "imgsyn"
    title = "Public images aligned with private ones (DP-ImgSyn)"
    paper = "Soufleri, Ravikumar, Roy, TMLR 2024, https://openreview.net/forum?id=KleJZ9ZzYw"
    claim_of_paper = "The paper's teacher holds, its layer statistics do not: twenty layers are charged as one release."
    version = 3
    guarantee = "dp"
    takes_findings = True
    releases = ("images", "labels", "soft_labels", "teacher")
    settings_type = ImgsynSettings
    settings: ImgsynSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"aligned_share": 0.2, "iterations": 5},
        "paper": _PAPER,
        "paper_faces": {
            **_PAPER, "teacher_epochs": 22.0, "teacher_learning_rate": 0.001, "batch": 60, "iterations": 1,
            "label_temperature": 10.0,
        },
    }  # fmt: skip
    smallest: ClassVar[Mapping[str, Any]] = {"iterations": 2, "batch": 20, "network": "convnet"}
    forms = (AuditForm(form="teacher and statistics", runs=300),)
    also_tried = (AuditForm(form="starts from latent", settings={"start": "latent"}),)

    @property
    def requires_public(self) -> bool:
        """Only where the settings name public images."""
        return self.settings.start in ("public", "latent") or self.settings.teacher == "pretrained"

    def plan(self, facts: PublicFacts, budget: Budget) -> ImgsynPlan:
        """The statistic and the starting images get their shares, the teacher what is left.

        A sum with the noise of a single Gaussian at the whole budget, over the root of a share, costs that share.
        """
        config = self.settings
        draft = self._teacher(facts, budget)
        making = self._making(facts, draft)
        start = None
        if config.start_method:
            part = budget_of_share(budget, config.start_share)
            start = METHODS.get(config.start_method).configure(settings=_STARTS[config.start_method]).plan(facts, part)
        statistic = None
        if config.iterations > 0 and making.aligned_share > 0 and config.feature_weight > 0:
            noise = noise_of_one_sum(budget) / math.sqrt(config.statistics_share)
            statistic = Event(label="statistics", noise_multiplier=noise)
        count, share = None, self._count_share(facts)
        if share:
            count = Event(label="count", noise_multiplier=noise_of_one_sum(budget) / math.sqrt(share))
        before = (*(() if start is None else start.events), *(() if count is None else (count,)))
        if config.teacher_noise == "auto":
            teacher = draft.beside(budget, before, () if statistic is None else (statistic,))
        else:
            teacher = draft.at(config.teacher_noise)
            _require_within(budget, (*before, teacher.event))
            if statistic is not None:
                noise = noise_of(statistic, budget, among=(*before, teacher.event, statistic))
                statistic = replace(statistic, noise_multiplier=noise)
        after = () if statistic is None else (statistic,)
        temperature = self._temperature(facts)
        shown: dict[str, float | int | str] = {
            "teacher": teacher.name,
        }
        if config.teacher_noise == "auto":
            shown["share of the privacy for the statistic"] = config.statistics_share if statistic else 0.0
        if statistic:
            shown["noise of a mean, in lengths of a row"] = statistic.noise_multiplier / facts.units
        if count:
            shown["share of the privacy for the count"] = share
            longest = math.sqrt(facts.classes) if facts.findings else 1.0
            shown["noise of the count, in units"] = count.noise_multiplier * longest
        return ImgsynPlan(
            budget=budget,
            events=(*before, teacher.event, *after),
            facts=shown,
            settings=config,
            decided=self._decisions(draft, temperature, making, facts),
            public_scale=self._public_scale(facts, making),
            making=making,
            start=start,
            count=count,
            teacher=teacher,
            statistic=statistic,
            temperature=temperature,
        )

    def default_samples(self, facts: PublicFacts) -> int:
        """As many as a student can still learn from, whatever the size of the vault; fewer where images are large."""
        side = max(facts.shape[:2])
        return 60_000 if side <= 32 else 12_000 if side <= 64 else 2_000

    def _teacher(self, facts: PublicFacts, budget: Budget) -> TeacherDraft:
        """Of two classes in colour, pretrained features and wavelets joined, where nobody set others."""
        wanted = self.settings.teacher_for(facts)
        draft = draft_teacher(facts, budget, wanted)
        if wanted.features != "auto" or draft.features == "wavelets" or not _is_detail(facts):
            return draft
        joined = draft_teacher(facts, budget, wanted.changed(features=f"{draft.features}+wavelets"))
        return replace(joined, why_features="two classes of one kind of thing differ in details")

    def _making(self, facts: PublicFacts, teacher: TeacherDraft) -> Making:
        """Photographs where they show what the teacher knows; elsewhere shapes of all kinds, and alignment."""
        wanted = self.settings
        shown = (
            facts.shape[2] == _COLOUR
            and teacher.kind == "head"
            and teacher.features != "wavelets"
            and not _is_detail(facts)
        )
        cut = shown and wanted.starts_from_public
        variation: Variation = ("crops" if cut else "all") if wanted.variation == "auto" else wanted.variation
        chosen = shown or variation == "crops"
        return Making(
            variation=variation,
            aligned_share=(0.0 if chosen else 0.3) if wanted.aligned_share == "auto" else wanted.aligned_share,
            pool=(2 if chosen else 4) if wanted.pool == "auto" else wanted.pool,
            why="photographs show what the teacher knows" if shown else "photographs alone show too little of it",
        )

    def _public_scale(self, facts: PublicFacts, making: Making) -> int:
        """Parts are cut out of images of twice the size, but who else gets the public ones needs them as they are."""
        cut = making.variation == "crops" and self.settings.starts_from_public
        return 2 if cut and max(facts.shape[:2]) <= _LARGEST_DOUBLED else 1

    def _count_share(self, facts: PublicFacts) -> float:
        wanted = self.settings.count_share
        if wanted != "auto":
            return wanted
        return _COUNT_SHARE if facts.findings or self.settings.balance == "as_found" else 0.0

    def _temperature(self, facts: PublicFacts) -> float:
        wanted = self.settings.label_temperature
        if facts.findings:
            return 1.0
        return (_SOFT if facts.classes > 2 else 1.0) if wanted == "auto" else wanted

    def _decisions(
        self, teacher: TeacherDraft, temperature: float, making: Making, facts: PublicFacts
    ) -> dict[str, Decision]:
        """What the rules chose."""
        why = "a finding has two answers" if facts.findings else f"there are {facts.classes} classes"
        decided = {"label_temperature": Decision(value=temperature, why=why)}
        for name in ("variation", "aligned_share", "pool"):
            if getattr(self.settings, name) == "auto":
                decided[name] = Decision(value=getattr(making, name), why=making.why)
        if self.settings.count_share == "auto":
            why = "rare findings need it" if facts.findings else f"balance={self.settings.balance}"
            decided["count_share"] = Decision(value=self._count_share(facts), why=why)
        if self.settings.teacher == "auto":
            why = "its rules were fitted, and it asks nothing of public images"
            decided["teacher"] = Decision(value=teacher.kind, why=why)
        if self.settings.features == "auto" and teacher.kind == "head":
            decided["features"] = Decision(value=teacher.features, why=teacher.why_features)
        if self.settings.augmentation == "recipe":
            from veilset.training.augment import MILD

            decided["student_changes"] = Decision(value=MILD.plain(), why="augmentation=recipe")
        return decided


def _is_detail(facts: PublicFacts) -> bool:
    """Whether a detail tells the classes apart, as of faces: two classes in colour, by docs/notes/photographs.md.

    Photographs of other things do not show it, so that images have to be moved before they teach it.
    """
    return facts.shape[2] == _COLOUR and facts.classes == 2 and not facts.findings


def _require_within(budget: Budget, events: tuple[Event, ...]) -> None:
    """Refuse a noise that somebody set where it costs more than there is."""
    spent = epsilon_of([*budget.carried, *events], budget.delta)
    if spent >= budget.epsilon:
        raise BudgetError(
            f"The teacher that was asked for costs epsilon {spent:.4g}, and the budget is {budget.epsilon:g}. Raise "
            "teacher_noise, lower teacher_epochs or teacher_steps, or leave teacher_noise at auto. Nothing was charged."
        )
