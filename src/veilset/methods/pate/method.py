"""PATE: teachers on disjoint shards vote on the class of synthetic or public images, and only noisy counts leave.

Papernot et al., "Semi-supervised knowledge transfer for deep learning from private training data" (ICLR 2017) and
"Scalable private learning with PATE" (ICLR 2018): GNMax, and its confident form. The accounting here is that of the
Gaussian mechanism, independent of the data: the papers' smaller, data-dependent epsilon is itself private, and nothing
of it may be printed before it is smoothed and noised (docs/pate.md).

What we changed: without public images, the queries come from a generator that matches one noisy sum of class
statistics; the few answers fit a linear head on fixed features, and a student learns from that head on as many
generated images as it likes.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 (statistics), sqrt(2) for each vote, 1 for each
agreement; events one Gaussian for the statistics, and `count` Gaussians for votes and for agreements; assumes an
embedding fixed by drawn pictures, and nothing of the shards' models but the noisy sums
(privacy/mechanisms/shard_votes.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.methods.base import Config, Context
from veilset.methods.shared.class_statistics import as_floats, code_rows, require_square
from veilset.methods.shared.data_free_config import DataFreeConfig
from veilset.methods.shared.distilled import FAST, STATISTICS, DistilledMethod, begin_training, noise_alone
from veilset.methods.shared.shard_teachers import (
    FEWEST_QUERIES_MADE,
    MOST_QUERIES,
    CodeClassifier,
    Head,
    Queries,
    require_all_classes,
    scores,
    shard_trainer,
    teachers_for,
)
from veilset.models.features.embeddings import ImageEmbedding
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts

_VOTES = "votes"
_AGREEMENT = "agreement of the teachers"
_MOST_PUBLIC = 12_000


@dataclass(frozen=True, kw_only=True)
class PateConfig(Config, DataFreeConfig):
    """Public settings of PATE; those of generator and student are in `DataFreeConfig`.

    Args:
        teachers: number of shards; 0 is one for every 240 units, at most 250.
        signal: as many queries are asked as leave a unanimous vote this many times the noise on one count.
        agreement_share: confident GNMax: share of the votes' privacy spent on finding queries with much agreement.
        candidates: confident GNMax: how many queries are looked at for each one that is answered.
    """

    teachers: int = 0
    signal: float = 4.0
    agreement_share: float = 0.0
    candidates: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics_share == 0 or not 0 <= self.agreement_share < 1:
            raise InputError(
                f"Expected statistics_share > 0 and agreement_share in [0, 1), got {self.statistics_share} and "
                f"{self.agreement_share}."
            )
        if self.teachers < 0 or self.teachers == 1:
            raise InputError(f"Expected teachers 0 (the rule) or at least 2, got {self.teachers}.")
        if not self.signal > 0 or self.candidates < 2:
            raise InputError(f"Expected signal > 0 and candidates >= 2, got {self.signal} and {self.candidates}.")


class Pate(DistilledMethod):
    """Private aggregation of teacher ensembles, on synthetic or public queries."""

    name = "pate"
    title = "Private aggregation of teacher ensembles (PATE)"
    paper = "Papernot et al., ICLR 2018, https://arxiv.org/abs/1802.08908"
    claim_of_paper = (
        "The papers' bound that does not depend on the data holds. The smaller epsilon that they compute from "
        "private votes must be released with noise itself."
    )
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator", "student")
    config_type = PateConfig
    config: PateConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": FAST,
        "confident": {"agreement_share": 0.3},
    }  # fmt: skip

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """Statistics, then votes; Gaussians all of them, so that shares of 1/noise^2 add up to the budget exactly."""
        require_square(facts)
        config, teachers = self.config, teachers_for(facts, self.config.teachers)
        alone = noise_alone(budget)
        left = (1 - config.statistics_share) * (1 - config.agreement_share)
        # A unanimous vote of n against noise of sqrt(2) alone sqrt(Q / left) on each count: their ratio is `signal`.
        queries = int(left * (teachers / (math.sqrt(2) * config.signal * alone)) ** 2)
        queries = min(MOST_QUERIES, max(facts.classes, queries))
        events = [
            Event(label=STATISTICS, noise_multiplier=alone / math.sqrt(config.statistics_share)),
            Event(label=_VOTES, noise_multiplier=alone * math.sqrt(queries / left), count=queries),
        ]
        if config.agreement_share:
            looked_at = self._looked_at(queries)
            share = (1 - config.statistics_share) * config.agreement_share
            noise = alone * math.sqrt(looked_at / share)
            events.insert(1, Event(label=_AGREEMENT, noise_multiplier=noise, count=looked_at))
        deviation = math.sqrt(2) * events[-1].noise_multiplier
        return Plan(
            budget=budget,
            events=tuple(events),
            facts={"teachers": teachers, "answered queries": queries, "noise on a count of votes": deviation},
        )

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Read the statistics, make queries, let the teachers vote; then distil what they said."""
        facts = session.facts
        training = begin_training(session, self.config, context)
        embedding = training.embedding
        assert embedding is not None

        def guide() -> nn.Module:
            if public is not None:
                pool = _public_queries(public, facts, embedding, context)
            else:
                made = max(FEWEST_QUERIES_MADE, self._looked_at(session.planned(_VOTES).count))
                pool = training.queries(made, context.workspace)
            return CodeClassifier(embedding, self._vote(session, pool, embedding, context)).to(context.device)

        training.run(guide, context.workspace, context.progress)
        self._training = training

    def _looked_at(self, answered: int) -> int:
        return answered * (self.config.candidates if self.config.agreement_share else 1)

    def _vote(self, session: Session, pool: Queries, embedding: ImageEmbedding, context: Context) -> Head:
        """GNMax: the class with the most votes, after noise, for each query; then a head that learns from them."""
        facts, votes = session.facts, session.planned(_VOTES)
        teachers = teachers_for(facts, self.config.teachers)
        ensemble = session.ensemble(
            shard_trainer(facts.classes), code_rows(embedding, context.device), teachers=teachers
        )
        coins = torch_generator(context.seed, "queries of the teachers")
        wanted = self._looked_at(votes.count)
        if len(pool.codes) < wanted:
            raise InputError(
                f"Expected at least {wanted} images to vote on, got {len(pool.codes)}. Pass more, or no --public."
            )
        if self.config.agreement_share:
            event = session.planned(_AGREEMENT)
            codes = pool.codes[pool.spread(event.count, coins)]
            agreed = ensemble.agreement(
                lambda head: scores(head, codes),
                queries=event.count,
                classes=facts.classes,
                label=_AGREEMENT,
                noise_multiplier=event.noise_multiplier,
            )
            # The papers answer whatever passes a threshold; taking the best keeps the number of answers as planned.
            codes = codes[agreed.topk(votes.count).indices]
        else:
            codes = pool.codes[pool.spread(votes.count, coins)]
        counts = ensemble.votes(
            lambda head: scores(head, codes),
            queries=votes.count,
            classes=facts.classes,
            label=_VOTES,
            noise_multiplier=votes.noise_multiplier,
        )
        labels = counts.argmax(dim=1)
        if pool.asked_for is None:
            require_all_classes(labels, facts.class_names)
        return pool.head(codes, labels, facts.classes)


def _public_queries(public: Records, facts: PublicFacts, embedding: ImageEmbedding, context: Context) -> Queries:
    """Codes of public images; their own labels are not looked at."""
    if tuple(public.shape) != tuple(facts.shape):
        raise InputError(f"Expected public images of {facts.shape}, got {public.shape}. Pass --size.")
    order = numpy_generator(context.seed, "pate public").permutation(len(public.labels))
    rows = np.sort(order[:_MOST_PUBLIC]).astype(np.int64)
    with torch.no_grad():
        parts = [
            embedding.code(as_floats(torch.from_numpy(public.read(part)), context.device)).cpu()
            for part in np.array_split(rows, max(1, len(rows) // 500))
        ]
    return Queries(codes=torch.cat(parts))
