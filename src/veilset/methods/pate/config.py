"""PATE: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import Auto, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.data_free_config import AUDITED, FAST, SMALLEST, STATISTICS, DataFreeSettings
from veilset.methods.shared.facts import require_square
from veilset.methods.shared.shards import MOST_QUERIES, teachers_for
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts


class PateSettings(DataFreeSettings):
    """Public settings of PATE; those of generator and student are in `DataFreeSettings`."""

    teachers: int | Auto = setting("auto", "Number of shards; auto is one for every 240 units, at most 250.", least=2)
    signal: float = setting(
        4.0, "As many queries are asked as leave a unanimous vote this many times the noise on one count.", above=0
    )
    answers: Literal["odds", "labels"] = setting(
        "odds",
        "What the head learns from noisy counts: how likely they make each class, or the class with most votes alone "
        "(GNMax, as published). Both are post-processing.",
    )
    agreement_share: float = setting(
        0.0,
        "Confident GNMax: share of the votes' privacy spent on finding queries with much agreement.",
        least=0,
        below=1,
    )
    candidates: int = setting(
        3, "Confident GNMax: how many queries are looked at for each one that is answered.", least=2
    )

    def check(self) -> None:
        """Queries must look like something."""
        super().check()
        if self.statistics_share == 0:
            raise InputError("Expected statistics_share > 0, so that there is something to vote on, got 0.")


@dataclass(frozen=True, kw_only=True)
class PatePlan(MethodPlan):
    """One Gaussian for the statistics, one for each vote, and in the confident form one for each agreement."""

    settings: PateSettings
    teachers: int
    statistics: Event
    agreement: Event | None
    votes: Event

    @property
    def looked_at(self) -> int:
        """How many queries there must be: those that are answered, or those from which they are chosen."""
        return self.votes.count if self.agreement is None else self.agreement.count


class Pate(Method):
    """Private aggregation of teacher ensembles, on synthetic or public queries."""

    name = "pate"
    title = "Private aggregation of teacher ensembles (PATE)"
    paper = "Papernot et al., ICLR 2018, https://arxiv.org/abs/1802.08908"
    claim_of_paper = (
        "The papers' bound that does not depend on the data holds. The smaller epsilon that they compute from "
        "private votes must be released with noise itself."
    )
    version = 3
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator", "student")
    settings_type = PateSettings
    settings: PateSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": FAST,
        "confident": {"agreement_share": 0.3, "answers": "labels"},
    }
    smallest: ClassVar[Mapping[str, Any]] = {**SMALLEST, "teachers": 20}
    forms = (AuditForm(form="votes", settings={**AUDITED, "teachers": 2}, records=4),)

    def plan(self, facts: PublicFacts, budget: Budget) -> PatePlan:
        """Statistics, then votes; Gaussians all of them, so that shares of 1/noise^2 add up to the budget exactly."""
        require_square(facts)
        settings, teachers = self.settings, teachers_for(facts, self.settings.teachers)
        alone = noise_of_one_sum(budget)
        statistics = Event(label=STATISTICS, noise_multiplier=alone / math.sqrt(settings.statistics_share))
        left = (1 - settings.statistics_share) * (1 - settings.agreement_share)
        # A unanimous vote of n against noise of sqrt(2) alone sqrt(Q / left) on each count: their ratio is `signal`.
        queries = int(left * (teachers / (math.sqrt(2) * settings.signal * alone)) ** 2)
        queries = min(MOST_QUERIES, max(facts.classes, queries))
        votes = Event(label="votes", noise_multiplier=alone * math.sqrt(queries / left), count=queries)
        agreement = None
        if settings.agreement_share:
            looked_at = queries * settings.candidates
            share = (1 - settings.statistics_share) * settings.agreement_share
            noise = alone * math.sqrt(looked_at / share)
            agreement = Event(label="agreement of the teachers", noise_multiplier=noise, count=looked_at)
        decided = {}
        if settings.teachers == "auto":
            decided["teachers"] = Decision(value=teachers, why=f"there are {facts.units} {facts.unit}s")
        return PatePlan(
            budget=budget,
            events=(statistics, votes) if agreement is None else (statistics, agreement, votes),
            facts={
                "teachers": teachers,
                "answered queries": queries,
                "noise on a count of votes": math.sqrt(2) * votes.noise_multiplier,
            },
            settings=settings,
            decided=decided,
            teachers=teachers,
            statistics=statistics,
            agreement=agreement,
            votes=votes,
        )
