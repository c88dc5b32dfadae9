"""DPDFD: data-free distillation. A generator, a teacher that is never shown, and a student, without public images.

Liu, Wang, Li, Zeng, Ge, "Model Conversion via Differentially Private Data-Free Distillation" (IJCAI 2023). The paper's
noise does not give the epsilon that it claims (docs/dfd.md). Two forms do, with the same loop:

A. one teacher, trained by DP-SGD: the loop is post-processing and has no noise of its own;
B. n teachers on disjoint shards, trained without noise, whose gradients leave the session in noisy sums only.

What we changed: the generator also matches one noisy sum of class statistics, for a classifier's gradient alone does
not hold the look of a class; the student keeps a bank of images that were answered already, and at the end learns from
images that stray on purpose, too. The preset `paper` has none of the three.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 (statistics), `clip_norm` (A's teacher), 2 (B's
gradients, normalised jointly to 1); events one Gaussian for the statistics, A's DP-SGD, one Gaussian for each round of
B; assumes an embedding fixed by drawn pictures.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import nn

from veilset.core.errors import InputError
from veilset.methods.base import Config, Context
from veilset.methods.shared.class_statistics import code_rows, require_square
from veilset.methods.shared.data_free import DataFreeTraining
from veilset.methods.shared.data_free_config import DataFreeConfig
from veilset.methods.shared.distilled import FAST, STATISTICS, DistilledMethod, begin_training, noise_alone
from veilset.methods.shared.shard_teachers import FEWEST_QUERIES_MADE, CodeClassifier, GradientRounds, shard_trainer
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers import TeacherConfig, plan_teacher, train_teacher

Variant = Literal["A", "B"]
Vote = Literal["gradient", "signs"]

_TEACHER = "teacher"
_GRADIENTS = "gradients of the teachers"
# Images that B makes for each one that it asks about.
_CHOICE = 3


@dataclass(frozen=True, kw_only=True)
class DfdConfig(Config, DataFreeConfig):
    """Public settings of dfd; those of the loop are in `DataFreeConfig`.

    Args:
        variant: "A", one DP-SGD teacher, or "B", many teachers whose gradients are summed with noise.
        teacher_steps: of A's DP-SGD; 0 lets the rule of teachers decide.
        teachers: of B; 0 is one for every 240 units, at most 250.
        rounds: of B: the queries of later rounds are chosen by what the earlier ones taught.
        signal: of B: as many queries are asked as leave a unanimous row this many times the noise on one number.
        vote: of B: "gradient", scaled jointly to length 1, or "signs" of its largest entries (DataLens).
    """

    variant: Variant = "A"
    teacher_steps: int = 0
    teachers: int = 0
    rounds: int = 4
    signal: float = 4.0
    vote: Vote = "gradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (("variant", self.variant, Variant), ("vote", self.vote, Vote)):
            if value not in get_args(known):
                raise InputError(f"Expected {name} to be one of {', '.join(get_args(known))}, got {value!r}.")
        if self.variant == "B" and not self.statistics_share:
            raise InputError("Expected statistics_share > 0 for variant B: its few queries must look like something.")
        if min(self.teacher_steps, self.teachers) < 0 or self.teachers == 1:
            raise InputError(f"Expected teachers 0 (the rule) or at least 2, got {self.teachers}.")
        if self.rounds < 1 or not self.signal > 0:
            raise InputError(f"Expected rounds >= 1 and signal > 0, got {self.rounds} and {self.signal}.")


class Dfd(DistilledMethod):
    """Data-free distillation, in the forms that hold."""

    name = "dfd"
    title = "Data-free distillation (DPDFD)"
    paper = "Liu, Wang, Li, Zeng, Ge, IJCAI 2023, https://arxiv.org/abs/2304.12528"
    claim_of_paper = (
        "The paper's claim does not hold: it hides single synthetic samples, while one private record changes the "
        "whole teacher and so every answer, and its noise is too small by the square of the clip norm."
    )
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator", "student")
    config_type = DfdConfig
    config: DfdConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": FAST,
        "paper": {
            "statistics_share": 0.0, "warmup_steps": 0, "statistics_weight": 0.0, "teacher_weight": 0.0,
            "disagreement_weight": 0.0, "one_hot_weight": 1.0, "balance_weight": 1.0, "activation_weight": 1.0,
            "steps": 1000, "bounding": "normalise", "variety": 0.0, "batch": 100,
        },
    }  # fmt: skip

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """Statistics, then A's DP-SGD or B's rounds; one factor on all noise is calibrated to the budget."""
        require_square(facts)
        share = self.config.statistics_share
        alone = noise_alone(budget)
        if self.config.variant == "B":
            rounds = self._rounds(facts, alone)
            each = alone * math.sqrt(rounds.rounds / (1 - share))
            events = [Event(label=_GRADIENTS, noise_multiplier=each)] * rounds.rounds
            events.insert(0, Event(label=STATISTICS, noise_multiplier=alone / math.sqrt(share)))
            return Plan(budget=budget, events=tuple(events), facts=_plan_facts(rounds))
        _, whole = plan_teacher(self._teacher_config(), facts, False, budget)

        def events_at(factor: float) -> list[Event]:
            noise = factor * whole.noise_multiplier / math.sqrt(1 - share)
            teacher = plan_teacher(self._teacher_config(noise), facts, False, budget)[1]
            if not share:
                return [teacher]
            return [Event(label=STATISTICS, noise_multiplier=factor * alone / math.sqrt(share)), teacher]

        return Plan(
            budget=budget,
            events=tuple(events_at(calibrate(budget, events_at))),
            facts={"steps of the loop, which cost nothing": self.config.steps},
        )

    def fit(self, session: Session, public: Public | None, context: Context) -> None:  # noqa: ARG002
        """Read the statistics and make a teacher; then the paper's loop, which sees nothing else."""
        training = begin_training(session, self.config, context)
        training.run(lambda: self._guide(session, training, context), context.workspace, context.progress)
        self._training = training

    def _guide(self, session: Session, training: DataFreeTraining, context: Context) -> nn.Module:
        """The classifier whose word the student takes: A's teacher, or what B's noisy gradients say of one."""
        if self.config.variant == "B":
            return self._answers(session, training, context)
        event = session.planned(_TEACHER)
        recipe, planned = plan_teacher(
            self._teacher_config(event.noise_multiplier), session.facts, False, session.plan.budget
        )
        assert planned == event
        return train_teacher(session, recipe, event, None, context).network

    def _answers(self, session: Session, training: DataFreeTraining, context: Context) -> nn.Module:
        """B: train a head on each shard, ask for noisy gradients, and fit one head to what they say."""
        embedding = training.embedding
        assert embedding is not None
        rounds = self._rounds(session.facts, noise_alone(session.plan.budget))
        ensemble = session.ensemble(
            shard_trainer(session.facts.classes), code_rows(embedding, context.device), teachers=rounds.teachers
        )
        head = rounds.ask(
            ensemble,
            training.queries(max(FEWEST_QUERIES_MADE, _CHOICE * rounds.rounds * rounds.batch), context.workspace),
            classes=session.facts.classes,
            label=_GRADIENTS,
            noise_multiplier=session.planned(_GRADIENTS).noise_multiplier,
            seed=context.seed,
        )
        return CodeClassifier(embedding, head).to(context.device)

    def _rounds(self, facts: PublicFacts, alone: float) -> GradientRounds:
        return GradientRounds.fitting(
            facts,
            alone=alone / math.sqrt(1 - self.config.statistics_share),
            teachers=self.config.teachers,
            rounds=self.config.rounds,
            signal=self.config.signal,
            signs=self.config.vote == "signs",
        )

    def _teacher_config(self, noise_multiplier: float | None = None) -> TeacherConfig:
        return TeacherConfig(label=_TEACHER, steps=self.config.teacher_steps or None, noise_multiplier=noise_multiplier)


def _plan_facts(rounds: GradientRounds) -> dict[str, float | int | str]:
    """How little a budget buys of B."""
    return {
        "teachers": rounds.teachers,
        "iterations that this budget buys": rounds.rounds,
        "synthetic images of an iteration": rounds.batch,
    }
