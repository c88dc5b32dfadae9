"""DPDFD: data-free distillation. A generator, a teacher that is never shown, and a student, without public images.

Liu, Wang, Li, Zeng, Ge, "Model Conversion via Differentially Private Data-Free Distillation" (IJCAI 2023). The paper's
noise does not give the epsilon that it claims (docs/methods/dfd.md). Two forms do, with the same loop:

A. one teacher, trained by DP-SGD: the loop is post-processing and has no noise of its own;
B. n teachers on disjoint shards, trained without noise, whose gradients leave the session in noisy sums only.

What we changed: the generator also matches one noisy sum of class statistics, for a classifier's gradient alone does
not hold the look of a class; the student keeps a bank of images that were answered already, and at the end learns from
images that stray on purpose, too. The preset `paper` has none of the three.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 (statistics), `clip_norm` (A's teacher), 2 (B's
gradients, normalised jointly to 1) or sqrt(2) (each vote of B); events one Gaussian for the statistics, A's DP-SGD, one
Gaussian for each round of B or for each of its votes; assumes an embedding fixed by drawn pictures.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.methods.base import Context, Fitted
from veilset.methods.dfd.config import DfdPlan, GradientRounds
from veilset.methods.dfd.gradients import gradient_at, labels_by_gradient, least_sure, output_odds
from veilset.methods.shared.class_statistics import code_rows, public_embedding, read_statistics
from veilset.methods.shared.data_free import DataFreeTraining
from veilset.methods.shared.queries import Queries, generated_queries, odds_of_votes
from veilset.methods.shared.shard_teachers import CodeClassifier, Head, scores, shard_trainer
from veilset.models.features.embeddings import ImageEmbedding
from veilset.privacy.session import Session
from veilset.privacy.vault import Public
from veilset.teachers.fitting import train_teacher

# Images that B makes for each one that it asks about.
_CHOICE = 3


def fit(plan: DfdPlan, session: Session, public: Public | None, context: Context) -> Fitted:  # noqa: ARG001
    """Read the statistics and make a teacher; then the paper's loop, which sees nothing else."""
    settings, facts = plan.settings, session.facts

    # 0. What each class looks like: one noisy sum, and a generator that is drawn to it.
    embedding, statistics = None, None
    if plan.statistics is not None:
        embedding = public_embedding(
            facts, random_features=settings.random_features, pictures=settings.pictures, seed=context.seed
        ).to(context.device)
        statistics = read_statistics(session, embedding, plan.statistics, device=context.device)
    training = DataFreeTraining(settings, facts, context, embedding, statistics)
    training.draw_to_statistics()

    # Algorithm 1 begins with a teacher, theta_t. Line 9, the noise, is in its making and not in the loop.
    teacher: nn.Module
    if plan.teacher is not None:
        # A. One teacher, by DP-SGD: whatever is asked of it from here on is post-processing.
        teacher = train_teacher(session, plan.teacher, None, context).network
    else:
        # B. What noisy sums say of many teachers.
        assert embedding is not None
        assert plan.rounds is not None
        asked = _CHOICE * plan.rounds.rounds * plan.rounds.batch
        pool = generated_queries(training.generator, embedding, asked, settings.off_distribution, context)
        head = _noisy_gradients(plan, plan.rounds, session, pool, embedding, context)
        teacher = CodeClassifier(embedding, head).to(context.device)

    # Lines 1 to 16, on generated images (methods/shared/data_free.py). Nothing from here on sees the session.
    return training.distil(teacher)


def _noisy_gradients(
    plan: DfdPlan, rounds: GradientRounds, session: Session, pool: Queries, embedding: ImageEmbedding, context: Context
) -> Head:
    """B: lines 1 to 12 with a linear student on codes, which is told the noisy sum of all teachers' gradients.

    Privacy: unit, relation and sensitivity as `Ensemble.gradient` or `Ensemble.votes`; event one Gaussian for each
    round, or for votes one for each query. A sign says nothing of size, so signs are taken at even odds: there the
    largest entry of a row is that of the teacher's own class, and its sign is a vote. Which queries are asked depends
    on earlier answers, the pool and the seed; the noise of every round is fixed in advance.
    """
    classes = session.facts.classes
    ensemble = session.ensemble(shard_trainer(classes), code_rows(embedding, context.device), teachers=rounds.teachers)
    coins = torch_generator(context.seed, "queries of the teachers")
    left = torch.ones(len(pool.codes), dtype=torch.bool)
    asked, found = [pool.codes[:0]], [torch.zeros(0, classes)]
    # Before any answer the student knows what its images were made for.
    head = pool.head(asked[0], found[0])
    for number, event in enumerate(plan.gradients):  # line 1
        # Lines 2 and 3: synthetic samples, in later rounds those that teach most.
        first = number == 0
        chosen = pool.spread(rounds.batch, coins) if first else least_sure(pool, left, head, rounds.batch, coins)
        left[chosen] = False
        codes = pool.codes[chosen]
        # Lines 4 to 8: each teacher's gradient by the student's outputs, bounded as one vector and not row by row.
        # Lines 9 and 10: the noisy sum over all teachers, and the outputs that it asks for.
        if rounds.signs:
            counts = ensemble.votes(partial(scores, codes=codes), event, classes=classes)
            odds = odds_of_votes(counts, event)
        else:
            said = output_odds(head, codes)
            noisy = ensemble.gradient(gradient_at(codes, said), event, shape=(len(codes), classes), norm_bound=1.0)
            odds = functional.one_hot(labels_by_gradient(noisy, said, rounds.teachers), classes).float()
        asked.append(codes)
        found.append(odds)
        # Lines 11 and 12. Answered queries are paid for: every round learns from all of them again.
        head = pool.head(torch.cat(asked), torch.cat(found))
    return head
