"""DPDFD: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, Auto, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.data_free_config import AUDITED, FAST, SMALLEST, STATISTICS, DataFreeSettings
from veilset.methods.shared.facts import require_square
from veilset.methods.shared.shards import MOST_QUERIES, teachers_for
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import Clipping, KindOrAuto, TeacherPlan, TeacherSettings
from veilset.teachers.planning import draft_teacher, plan_teacher

_FEW_STEPS: Mapping[str, Any] = {**AUDITED, "teacher_steps": 5}
_FEW_TEACHERS: Mapping[str, Any] = {**AUDITED, "variant": "B", "teachers": 2, "rounds": 2}
_SCALED_NETWORK = {"teacher": "network", "teacher_batch": 100, "teacher_clipping": "automatic"}


class DfdSettings(DataFreeSettings):
    """Public settings of dfd; those of the loop are in `DataFreeSettings`."""

    variant: Literal["A", "B"] = setting(
        "A", "One DP-SGD teacher (A), or many teachers whose gradients are summed with noise (B)."
    )
    teacher: KindOrAuto = setting("auto", "Kind of A's teacher: head or network (docs/explanation/teachers.md).")
    network: str = setting("convnet", "Of A's teacher, where it is a network.")
    teacher_steps: int | Auto = setting("auto", "Of A's DP-SGD; auto is the rule of teachers.", least=1)
    teacher_batch: int | Auto = setting("auto", "Units of such a step, on average.", least=1)
    teacher_clip_norm: float | Auto = setting("auto", "Bound of one unit's gradient there.", **CLIP_NORM)
    teacher_bands: int | Auto = setting(
        "auto", "Steps over which the noise of a network is correlated; 1 is independent noise.", least=1, most=64
    )
    teacher_learning_rate: float | Auto = setting("auto", "Of its SGD.", **RATE)
    teacher_clipping: Clipping = setting(
        "flat", "Longer gradients are shortened to the bound (flat), or all are scaled to it (automatic)."
    )
    teachers: int | Auto = setting("auto", "Of B; auto is one for every 240 units, at most 250.", least=2)
    rounds: int = setting(
        4, "Of B, at most: the queries of later rounds are chosen by what the earlier ones taught.", least=1
    )
    signal: float = setting(
        4.0,
        "Of B: as many queries are asked as leave a unanimous row this many times the noise on one number.",
        above=0,
    )
    vote: Literal["gradient", "signs"] = setting(
        "gradient",
        "Of B: the gradient, scaled jointly to length 1, or the sign of the largest entry of each row (DataLens): "
        "a vote, whose noise is smaller by sqrt 2.",
    )

    def check(self) -> None:
        """B asks about images that look like something."""
        super().check()
        if self.variant == "B" and not self.statistics_share:
            raise InputError("Expected statistics_share > 0 for variant B: its few queries must look like something.")
        if self.teacher == "pretrained":
            raise InputError("Expected teacher=head or network, got pretrained: dfd has no public images.")
        self.teacher_settings.check()

    @property
    def teacher_settings(self) -> TeacherSettings:
        """What is asked of A's teacher."""
        return TeacherSettings(
            kind=self.teacher,
            network=self.network,
            steps=self.teacher_steps,
            batch=self.teacher_batch,
            clip_norm=self.teacher_clip_norm,
            bands=self.teacher_bands,
            learning_rate=self.teacher_learning_rate,
            clipping=self.teacher_clipping,
        )


@dataclass(frozen=True, kw_only=True)
class GradientRounds:
    """How variant B asks its teachers: few rounds, as many queries as the noise can bear.

    With n teachers, B queries a round, T rounds and s the multiplier of one release that would cost all of the budget,
    a row on which all teachers agree has length n / sqrt(B) against noise of 2 s sqrt(T): their ratio is `signal`, and
    B T = (n / (2 s signal))^2 follows. A vote for one class moves by sqrt 2 for each query: B T = (n / (sqrt 2 s
    signal))^2, twice as many.
    """

    teachers: int
    rounds: int
    batch: int
    signs: bool

    @classmethod
    def fitting(cls, settings: DfdSettings, facts: PublicFacts, alone: float) -> Self:
        """Rounds and batch for the noise multiplier `alone` of a single release; every class is asked for at least."""
        teachers = teachers_for(facts, settings.teachers)
        signs = settings.vote == "signs"
        moves = math.sqrt(2) if signs else 2.0
        queries = max(facts.classes, int((teachers / (moves * settings.signal * alone)) ** 2))
        rounds = max(1, min(settings.rounds, queries // facts.classes))
        batch = min(MOST_QUERIES, queries) // rounds
        return cls(teachers=teachers, rounds=rounds, batch=batch, signs=signs)

    def event(self, alone: float) -> Event:
        """One round's, where all rounds together cost what a single sum of noise `alone` would.

        A joint gradient is one sum. Votes are a sum for each query, each moved by sqrt 2 when a teacher changes.
        """
        if self.signs:
            noise = alone * math.sqrt(self.rounds * self.batch)
            return Event(label="votes of the teachers", noise_multiplier=noise, count=self.batch)
        return Event(label="gradients of the teachers", noise_multiplier=alone * math.sqrt(self.rounds))


@dataclass(frozen=True, kw_only=True)
class DfdPlan(MethodPlan):
    """One Gaussian for the statistics, then A's teacher, or B's rounds with one Gaussian for each."""

    settings: DfdSettings
    statistics: Event | None
    teacher: TeacherPlan | None = None
    rounds: GradientRounds | None = None
    gradients: tuple[Event, ...] = ()


class Dfd(Method):
    """Data-free distillation, in the forms that hold."""

    name = "dfd"
    title = "Data-free distillation (DPDFD)"
    paper = "Liu, Wang, Li, Zeng, Ge, IJCAI 2023, https://arxiv.org/abs/2304.12528"
    claim_of_paper = (
        "The paper's claim does not hold: it hides single synthetic samples, while one private record changes the "
        "whole teacher and so every answer, and its noise is too small by the square of the clip norm."
    )
    version = 3
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator", "student")
    settings_type = DfdSettings
    settings: DfdSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": FAST,
        "paper": {
            "statistics_share": 0.0, "warmup_steps": 0, "statistics_weight": 0.0, "teacher_weight": 0.0,
            "disagreement_weight": 0.0, "student_weight": 1.0, "one_hot_weight": 1.0, "balance_weight": 1.0,
            "activation_weight": 1.0, "steps": 2000, "student_steps": 1, "settle_steps": 0, "bank": 0, "batch": 256,
            "student_batch": 256, "augmented": False, "bounding": "normalise", "student_loss": "cross_entropy",
            "off_distribution": 0.0, "teacher": "network", "teacher_bands": 1,
        },
        "conversion": {
            "statistics_share": 0.0, "warmup_steps": 0, "statistics_weight": 0.0, "teacher_weight": 0.0,
            "disagreement_weight": 0.0, "one_hot_weight": 1.0, "balance_weight": 1.0, "activation_weight": 1.0,
            "steps": 100, "batch": 100, "drawn_share": 0.7,
        },
    }  # fmt: skip
    # Without warm-up, which the preset `paper` has no statistics for.
    smallest: ClassVar[Mapping[str, Any]] = {**SMALLEST, "warmup_steps": 0, "teacher_steps": 20}
    forms = (
        AuditForm(form="A, DP-SGD teacher", settings=_FEW_STEPS),
        AuditForm(form="B, gradients of teachers", settings=_FEW_TEACHERS, records=4),
    )
    also_tried = (
        AuditForm(form="A, all gradients scaled", settings={**_FEW_STEPS, "teacher_clipping": "automatic"}),
        AuditForm(form="A, a network, all gradients scaled", settings={**_FEW_STEPS, **_SCALED_NETWORK}),
        AuditForm(form="B, votes of teachers", settings={**_FEW_TEACHERS, "vote": "signs"}, records=4),
    )

    def plan(self, facts: PublicFacts, budget: Budget) -> DfdPlan:
        """Statistics, then A's DP-SGD or B's rounds."""
        require_square(facts)
        return self._one_teacher(facts, budget) if self.settings.variant == "A" else self._many(facts, budget)

    def _one_teacher(self, facts: PublicFacts, budget: Budget) -> DfdPlan:
        """A: each event at the noise that would spend the budget alone, over the root of its share; one factor on both.

        That factor is calibrated, because a sampled event costs a little more or less than its share.
        """
        share = self.settings.statistics_share
        wanted = self.settings.teacher_settings
        draft, whole = draft_teacher(facts, budget, wanted), plan_teacher(facts, budget, wanted).event.noise_multiplier
        alone = noise_of_one_sum(budget)

        def events_at(factor: float) -> list[Event]:
            teacher = draft.event(factor * whole / math.sqrt(1 - share))
            if not share:
                return [teacher]
            return [Event(label=STATISTICS, noise_multiplier=factor * alone / math.sqrt(share)), teacher]

        events = events_at(calibrate(budget, events_at))
        decided = {}
        if self.settings.teacher_steps == "auto":
            decided["teacher_steps"] = Decision(value=draft.steps, why="the rule of teachers, for units and budget")
        return DfdPlan(
            budget=budget,
            events=tuple(events),
            facts={"steps of the loop, which cost nothing": self.settings.steps},
            settings=self.settings,
            decided=decided,
            statistics=events[0] if share else None,
            teacher=draft.at(events[-1].noise_multiplier),
        )

    def _many(self, facts: PublicFacts, budget: Budget) -> DfdPlan:
        """B: full sums, so that shares of 1/noise^2 add up to the budget exactly."""
        share, alone = self.settings.statistics_share, noise_of_one_sum(budget)
        left = alone / math.sqrt(1 - share)
        rounds = GradientRounds.fitting(self.settings, facts, left)
        statistics = Event(label=STATISTICS, noise_multiplier=alone / math.sqrt(share))
        gradients = (rounds.event(left),) * rounds.rounds
        decided = {}
        if self.settings.teachers == "auto":
            decided["teachers"] = Decision(value=rounds.teachers, why=f"there are {facts.units} {facts.unit}s")
        return DfdPlan(
            budget=budget,
            events=(statistics, *gradients),
            facts={
                "teachers": rounds.teachers,
                "iterations that this budget buys": rounds.rounds,
                "synthetic images of an iteration": rounds.batch,
            },
            settings=self.settings,
            decided=decided,
            statistics=statistics,
            rounds=rounds,
            gradients=gradients,
        )
