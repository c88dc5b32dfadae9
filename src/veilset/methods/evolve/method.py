"""Private Evolution: candidates, votes of private images for the nearest ones, and variations of what survives.

Lin, Gopi, Kulkarni, Nori, Yekhanin, "Differentially Private Synthetic Data via Foundation Model APIs 1: Images" (ICLR
2024), Algorithms 1 and 2, for each class, or for each finding and for images without any. What we changed: where the
paper asks a diffusion model for images and variations, the generator is public images or drawn patterns, or the user's
own; part of the survivors stays as it is; a group votes as one; a private classifier, which has a share of the budget,
labels the release. The preset `paper` varies all survivors, looks ahead, and has no classifier.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 for each round's votes (the clip norm), which an
image with several findings divides among them as one vector of length 1; events one Gaussian a round, un-subsampled,
and the classifier's Poisson-sampled ones; assumes that features and candidates follow from public pictures, the seed
and earlier noisy votes, which `fit` shows. docs/methods/evolve.md has the argument.
"""

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.base import Context, Fitted
from veilset.methods.evolve.config import EvolvePlan, kind_count
from veilset.methods.evolve.features import Features, feature_space, features_of
from veilset.methods.evolve.generators import Checked, own_generator
from veilset.methods.evolve.pool import EigenPool, PoolGenerator, pool_pictures
from veilset.methods.evolve.sampling import FittedEvolve
from veilset.methods.evolve.voting import Ballot, Survivors
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.fitting import train_teacher


def fit(plan: EvolvePlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Let private images vote, round after round; everything between the votes is post-processing."""
    config, facts = plan.settings, session.facts
    # 0. The classifier that labels the release, where it has a share of the budget.
    teacher = None if plan.teacher is None else train_teacher(session, plan.teacher, None, context).network

    # 1. The feature space and the generator, from public pictures and the seed.
    shown = None if config.generator == "drawn" else public
    pictures = pool_pictures(shown, facts.shape, config.pool, context.seed)
    features = feature_space(plan.space, as_floats(pictures), seed=context.seed, device=context.device)
    generator = _generator(plan, facts, pictures, features, context)

    # 2. Algorithm 1, line 1: random candidates of each class.
    kinds = kind_count(facts)
    labels = torch.arange(kinds).repeat_interleave(plan.candidates)
    candidates = _stored(generator.random(labels, derive_seed(context.seed, "evolve candidates")))
    candidates = candidates.reshape(kinds, plan.candidates, *candidates.shape[1:])
    survivors: list[Survivors] = []
    for number, event in enumerate(plan.rounds, 1):
        # 3. Algorithm 2: every image votes for the nearest candidates of its class; the votes are summed, with noise.
        degree = config.degree_after(number)
        rows = _rows(plan, candidates, features, generator, degree, context, number)
        ballot = Ballot(features, rows, config.votes, facts, context.device)
        votes = session.gaussian_sum(ballot, event, clip_norm=1.0, by_class=not facts.findings)
        votes = votes.reshape(kinds, plan.candidates)

        # 4. What noise explains is taken off (Algorithm 2, line 8).
        survivors = [Survivors.of(own, plan.threshold * event.noise_multiplier) for own in votes]
        if number < len(plan.rounds):
            # 5. Algorithm 1, lines 4 to 6: survivors are drawn by their votes, and varied.
            seed = derive_seed(context.seed, f"evolve round {number}")
            pairs = zip(candidates, survivors, strict=True)
            candidates = torch.stack(
                [
                    _next(own, alive, config.kept, degree, generator, derive_seed(seed, str(label)))
                    for label, (own, alive) in enumerate(pairs)
                ]
            )

    # 6. The last candidates and their votes are what is drawn from. Nothing from here on sees the session.
    return FittedEvolve(
        candidates=candidates,
        survivors=tuple(survivors),
        generator=generator,
        degree=plan.release_degree,
        teacher=teacher,
        facts=facts,
        device=context.device,
        shows_public=shown is not None and ":" not in config.generator,
        own_generator=config.generator if ":" in config.generator else None,
    )


def _generator(plan: EvolvePlan, facts: PublicFacts, pictures: Tensor, features: Features, context: Context) -> Checked:
    config = plan.settings
    if ":" in config.generator:
        return Checked(own_generator(config.generator, facts, context.seed), facts, config.generator)
    if config.generator == "eigen":
        if facts.shape[0] != facts.shape[1]:
            raise InputError(
                f"Expected square images for generator=eigen, got {facts.shape[0]}x{facts.shape[1]}. Pass --size 32."
            )
        return Checked(EigenPool(pictures, flip=config.flip), facts, "eigen")
    pool = PoolGenerator(pictures, features, mixing=config.mixing, flip=config.flip, device=context.device)
    return Checked(pool, facts, config.generator)


def _rows(
    plan: EvolvePlan,
    candidates: Tensor,
    features: Features,
    generator: Checked,
    degree: float,
    context: Context,
    number: int,
) -> Tensor:
    """What stands for each candidate, (classes, candidates, d): its feature, or the mean of its variations'."""
    images, ahead = candidates.flatten(0, 1), plan.settings.lookahead
    if ahead == 0:
        rows = features_of(features, images, context.device)
    else:
        seeds = [derive_seed(context.seed, f"evolve lookahead {number} {turn}") for turn in range(ahead)]
        varied = (features_of(features, generator.vary(images, degree, seed), context.device) for seed in seeds)
        rows = torch.stack(list(varied)).mean(dim=0)
    return rows.reshape(*candidates.shape[:2], -1)


def _next(
    candidates: Tensor, survivors: Survivors, kept: float, degree: float, generator: Checked, seed: int
) -> Tensor:
    """The next candidates of a class: its best survivors as they are, and variations of survivors by their votes."""
    stay = candidates[survivors.best(int(kept * len(candidates)))]
    parents = survivors.drawn(len(candidates) - len(stay), torch_generator(seed, "evolve parents"))
    return torch.cat([stay, _stored(generator.vary(candidates[parents], degree, seed))])


def _stored(images: Tensor) -> Tensor:
    """Images with the 256 levels that a release can hold."""
    return as_floats(as_bytes(images))
