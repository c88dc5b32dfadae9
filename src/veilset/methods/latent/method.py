"""Latents: find the private images inside a public generator, and release the Gaussian of where they are.

Bie, "Find your private dataset inside StyleGAN: leveraging public GANs for in-domain private image synthesis" (2020).
What we changed: the clip norm comes from public samples or from a paid quantile, not from private norms; mean and
covariance are one release of one clipped vector, for each class in its own block, with the means and the strength of
the directions whose covariance noise hides; latents are straightened and scaled by public samples; what the inversion
loses is undone by what it loses on public images; the noisy covariance is shrunk towards the public one; samples start
from those of the generator's own latents that fit; where noise is small a private classifier of latents labels them.
The preset `paper` does without the last four, and without those directions. Without a ready generator, public images
along their principal directions are one.

Privacy: unit as in the vault; relation add/remove-one; sensitivity sqrt(1 + b^2) of the sum (b counts; moments.py),
several findings per image or one class (methods/shared/findings.py), the same of each round of an optional mixture
(mixture.py), 1 of the optional histogram and the clip norm of the classifier's gradients; events one Gaussian each,
un-subsampled, and the classifier's Poisson-sampled ones; assumes that generator, search and coordinates come from
public data, which `fit` shows. docs/methods/latent.md has the argument.
"""

from functools import partial

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import torch_generator
from veilset.core.records import Records
from veilset.dpsgd import FindingsLoss, train_private
from veilset.methods.base import Context, Fitted
from veilset.methods.latent.choices import InversionTraining
from veilset.methods.latent.config import LatentPlan
from veilset.methods.latent.generators.making import make_generator
from veilset.methods.latent.inversion import train_inversion
from veilset.methods.latent.labelling import Discriminant, Head, Labels
from veilset.methods.latent.mixture import MeanRows, Mixture
from veilset.methods.latent.moments import MomentRows, Seen
from veilset.methods.latent.sampling import ClassLatents, FittedLatents, source
from veilset.methods.latent.search import LatentSearch, public_answers, require_shape
from veilset.methods.latent.space import LatentSpace
from veilset.methods.latent.tails import TailMeans, TailRows
from veilset.methods.shared.class_counts import drowned_classes
from veilset.methods.shared.findings import in_all_blocks, shares_of_kinds, sums_of_kinds
from veilset.models.generators.files import load_generator, save_generator
from veilset.models.generators.style import LatentGenerator
from veilset.models.generators.views import seen_by
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.release.inputs import require_carried
from veilset.teachers.config import TeacherPlan
from veilset.teachers.fitting import training_of

_COUNT_WEIGHT = 0.1
_OWN_DRAWS = 20_000
_EDGES = 64  # of the histogram for the clip norm
_WIDEST = 4.0  # its last edge, in longest public lengths
# What a resumed run must go on with, because its paid sum was made with it; and a training on its way.
_GENERATOR, _SPACE, _NETWORK = "latent-generator.safetensors", "latent-space.pt", "latent-inversion.pt"
_CHECKPOINT = "latent-generator.pt"


def fit(plan: LatentPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Find latents inside the sum, and read Gaussians off its noisy result."""
    facts, config = session.facts, plan.settings
    if plan.given is not None:
        require_carried(plan.given.inputs, session.plan)
    # 0. The public generator, its coordinates, and a search that was trained on its samples.
    generator = _generator(plan, facts, public, context)
    space = LatentSpace.of(seen_by(generator, config.latents), context.seed, context.kept(_SPACE))
    search = _search(plan, space, context)
    size = min(plan.directions, space.size)
    found = public_answers(search, public, context.seed)

    # 1. The clip norm, from public samples or by a paid quantile.
    clip_norm = _clip_norm(plan, session, search, found[:, :size].norm(dim=1))

    # 2. Steps 1 and 2 of the paper in one sum: the latent of each image, its clipped moments, noise.
    several = facts.classes > 1 or facts.findings
    rows = MomentRows(
        size=size,
        clip_norm=clip_norm,
        count_weight=_COUNT_WEIGHT if several else 0.0,
        mean_share=None if config.mean_share == "auto" else config.mean_share,
        tail_means=TailMeans.of(found, size, plan.mean_directions),
        tail=TailRows.of(found, size, config.tail_bands, config.clip_quantile),
    )

    def row(images: Tensor, labels: Tensor) -> Tensor:
        found = rows(search(images))
        return in_all_blocks(found, labels) if facts.findings else found  # the session places rows by class

    by_class = several and not facts.findings
    sums = session.gaussian_sum(row, plan.moments, clip_norm=rows.sensitivity, by_class=by_class, batch=search.batch)
    if facts.findings:
        sums = sums_of_kinds(sums, facts.classes)
    moments = rows.read(
        sums if several else sums[None],
        facts.units,
        plan.moments.noise_multiplier,
        findings=facts.findings,
        repair=config.repair,
    )
    seen = Seen.of(found, rows)
    means = seen.mean + moments.shifts_from(seen, config.repair)
    covariances = seen.covariance + moments.deviations_from(seen, config.repair)
    coins = torch_generator(context.seed, "latent components")
    mixture = Mixture.of(means, covariances, config.components, coins)
    mixture = _moved(mixture, plan, session, search, clip_norm)

    # 3. What labels images: a private classifier of what the search finds, or a discriminant of the Gaussians.
    found_shares = shares_of_kinds(moments.counts) if facts.findings else moments.counts / moments.counts.sum()
    of_kinds = torch.full_like(found_shares, 1 / len(found_shares)) if config.balance == "even" else found_shares
    shares = (of_kinds[:, None] * mixture.shares).flatten()
    means = mixture.means.flatten(0, 1)
    covariances = mixture.covariances.repeat_interleave(config.components, dim=0)
    tail_means = moments.tail_shifts.repeat_interleave(config.components, dim=0)
    tails = moments.tails.repeat_interleave(config.components, dim=0)
    labels: Labels
    if plan.teacher is not None:
        labels = _classifier(plan.teacher, session, search, context)
        if facts.findings:  # it learnt how frequent they are, and answers as if they were as they are drawn
            has, lacks = (of_kinds / found_shares).log().chunk(2)
            labels = labels.offset(has - lacks)
    else:
        labels = Discriminant.of(
            shares,
            means,
            covariances,
            *rows.tail_as_found(tail_means, tails),
            components=config.components,
            findings=facts.findings,
        )

    # 4. The populations behind what the search finds; everything from here on is post-processing.
    means, covariances = seen.undone(means, covariances, config.restore)
    moved, stretched = rows.tail_undone(tail_means, tails, config.restore)
    own = torch_generator(context.seed, "latent own draws")
    draws = None if config.draws == "gaussian" else source(space, config.draws, _OWN_DRAWS, own)
    fitted = FittedLatents(
        settings=config,
        space=space,
        search=search,
        latents=ClassLatents.of(
            shares, means, covariances, draws, prefer=config.draws == "chosen", tail_means=moved, tails=stretched
        ),
        labels=labels,
        clip_norm=clip_norm,
        drowned=_drowned(sums, rows, plan, facts) if several else (),
    )
    return fitted if facts.findings else fitted.with_classes_as_drawn(of_kinds, context.seed)


def _drowned(sums: Tensor, rows: MomentRows, plan: LatentPlan, facts: PublicFacts) -> tuple[str, ...]:
    """What the noisy counts say of classes that noise hides."""
    deviation = plan.moments.noise_multiplier * rows.sensitivity / rows.count_weight
    return drowned_classes(sums[:, -1] / rows.count_weight, deviation, facts, plan.budget)


def _clip_norm(plan: LatentPlan, session: Session, search: LatentSearch, lengths: Tensor) -> float:
    """A quantile of the private lengths, or of those of public images (n,), which also bound where it is sought."""
    quantile = plan.settings.clip_quantile
    if plan.clip is None:
        return float(lengths.quantile(quantile))
    longest, size = float(lengths.max()), plan.directions
    return session.quantile(
        lambda images, labels: search(images)[:, :size].norm(dim=1, keepdim=True),  # noqa: ARG005
        quantile,
        [_WIDEST * longest * step / _EDGES for step in range(_EDGES + 1)],
        plan.clip,
        batch=search.batch,
    )


def _moved(mixture: Mixture, plan: LatentPlan, session: Session, search: LatentSearch, clip_norm: float) -> Mixture:
    """2b. Expectation-maximisation: each round sums what the components, already known, share out."""
    by_class = session.facts.classes > 1
    rows = MeanRows(size=mixture.means.shape[2], clip_norm=clip_norm, count_weight=_COUNT_WEIGHT)
    for event in plan.components:
        sums = session.gaussian_sum(
            partial(mixture.rows_of, rows, search),
            event,
            clip_norm=rows.sensitivity,
            by_class=by_class,
            batch=search.batch,
        )
        mixture = mixture.moved(sums if by_class else sums[None], rows, event.noise_multiplier)
    return mixture


def _classifier(plan: TeacherPlan, session: Session, search: LatentSearch, context: Context) -> Head:
    """A head by DP-SGD that reads what the search finds. The same seeds give the same head.

    Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one;
    sensitivity `plan.recipe.clip_norm`; event `plan.event`; assumes that a code depends on its own image alone, as the
    search does, which is tried on random images first.
    """
    facts = session.facts
    head = Head.untrained(
        search.space.deviations[: plan.recipe.directions], facts.classes, findings=bool(facts.findings)
    )
    train_private(
        session,
        head.linear,
        plan.event,
        training_of(plan.recipe),
        loss=FindingsLoss() if facts.findings else None,
        features=lambda images, labels: head.code(search(images)),  # noqa: ARG005
        seed=context.seed,
        progress=context.progress,
    )
    head.linear.eval().requires_grad_(False)
    return head


def _generator(plan: LatentPlan, facts: PublicFacts, public: Records | None, context: Context) -> LatentGenerator:
    """The given one, the one that an interrupted run kept, or one of the public images."""
    if plan.given is not None:
        return plan.given.network.to(context.device)
    kept = context.kept(_GENERATOR)
    if kept is not None and kept.exists():
        return load_generator(kept).to(context.device)
    if public is None or plan.recipe is None:
        raise InputError("Expected public images or a generator. Pass --public or --set generator=FILE.")
    require_shape(public, facts.shape)
    generator = make_generator(
        public,
        plan.recipe,
        seed=context.seed,
        device=context.device,
        checkpoint=context.kept(_CHECKPOINT),
        progress=context.progress,
    )
    if kept is None:
        return generator
    save_generator(generator, kept)
    return load_generator(kept).to(context.device)


def _search(plan: LatentPlan, space: LatentSpace, context: Context) -> LatentSearch:
    network = None
    if plan.search.start == "network":
        network = train_inversion(
            space,
            InversionTraining(
                network=plan.settings.inversion_network,
                steps=plan.settings.inversion_steps,
                learning_rate=plan.settings.inversion_rate,
            ),
            seed=context.seed,
            checkpoint=context.kept(_NETWORK),
            progress=context.progress,
        )
    return LatentSearch(space, network, plan.search, plan.settings.distance)
