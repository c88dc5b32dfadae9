"""PATE: teachers on disjoint shards vote on the class of synthetic or public images, and only noisy counts leave.

Papernot et al., "Semi-supervised knowledge transfer for deep learning from private training data" (ICLR 2017) and
"Scalable private learning with PATE" (ICLR 2018): GNMax, and its confident form. The accounting here is that of the
Gaussian mechanism, independent of the data: the papers' smaller, data-dependent epsilon is itself private, and nothing
of it may be printed before it is smoothed and noised (docs/methods/pate.md).

What we changed: without public images, the queries come from a generator that matches one noisy sum of class
statistics; the few answers fit a linear head on fixed features, and a student learns from that head on as many
generated images as it likes.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 (statistics), sqrt(2) for each vote, 1 for each
agreement; events one Gaussian for the statistics, and `count` Gaussians for votes and for agreements; assumes an
embedding fixed by drawn pictures, and nothing of the shards' models but the noisy sums
(privacy/mechanisms/shard_votes.py).
"""

from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import torch_generator
from veilset.methods.base import Context, Fitted
from veilset.methods.pate.config import PatePlan
from veilset.methods.pate.public_queries import public_queries, require_all_classes
from veilset.methods.shared.class_statistics import code_rows, public_embedding, read_statistics
from veilset.methods.shared.data_free import DataFreeTraining
from veilset.methods.shared.queries import generated_queries, odds_of_votes
from veilset.methods.shared.shard_teachers import CodeClassifier, scores, shard_trainer
from veilset.privacy.session import Session
from veilset.privacy.vault import Public


def fit(plan: PatePlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Read the statistics, make queries, let the teachers vote; then distil what they said."""
    settings, facts = plan.settings, session.facts

    # 1. What each class looks like: one noisy sum, and a generator that is drawn to it.
    embedding = public_embedding(
        facts, random_features=settings.random_features, pictures=settings.pictures, seed=context.seed
    ).to(context.device)
    statistics = read_statistics(session, embedding, plan.statistics, device=context.device)
    training = DataFreeTraining(settings, facts, context, embedding, statistics)
    training.draw_to_statistics()

    # 2. Queries: public images, or those of the generator.
    if public is not None:
        pool = public_queries(public, facts, embedding, context)
    else:
        pool = generated_queries(training.generator, embedding, plan.looked_at, settings.off_distribution, context)
    if len(pool.codes) < plan.looked_at:
        raise InputError(
            f"Expected at least {plan.looked_at} images to vote on, got {len(pool.codes)}. Pass more, or no --public."
        )
    codes = pool.codes[pool.spread(plan.looked_at, torch_generator(context.seed, "queries of the teachers"))]

    # 3. A teacher for each shard, inside the session.
    ensemble = session.ensemble(
        shard_trainer(facts.classes), code_rows(embedding, context.device), teachers=plan.teachers
    )

    # 4. Confident GNMax: on which queries they agree, with noise.
    if plan.agreement is not None:
        candidates = codes
        agreed = ensemble.agreement(lambda head: scores(head, candidates), plan.agreement, classes=facts.classes)
        # The papers answer whatever passes a threshold; taking the best keeps the number of answers as planned.
        codes = candidates[agreed.topk(plan.votes.count).indices]

    # 5. GNMax: noisy counts for each query, and the class with most votes, or what the counts leave open.
    counts = ensemble.votes(lambda head: scores(head, codes), plan.votes, classes=facts.classes)
    labels = counts.argmax(dim=1)
    if pool.asked_for is None:
        require_all_classes(labels, facts.class_names)
    soft = settings.answers == "odds"
    odds = odds_of_votes(counts, plan.votes) if soft else functional.one_hot(labels, facts.classes).float()

    # 6. A head learns from them, and generator and student from the head. Nothing from here on sees the session.
    head = pool.head(codes, odds)
    return training.distil(CodeClassifier(embedding, head).to(context.device))
