"""pldk: a few images distilled from private data through noise, labelled softly by a private teacher, and a student.

Thesis, chapter 4: trajectory matching (Cazenavette et al., CVPR 2022), then knowledge transfer. What we changed:
experts and teacher are trained by DP-SGD, or images follow noisy class sums (methods/pldk/condensation.py); none starts
as a private one; all that follows is post-processing (docs/methods/pldk.md). `--as-published` has neither noise nor a
guarantee.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity
`clip_norm` of a step, or 1 of a sum of class means or of a kernel's moments; events Poisson-sampled Gaussians:
`expert_steps` for each expert or `networks` for condensation, or one Gaussian over all units for a kernel's moments
(where a group counts as the average of its images), and the teacher's; assumes what DP-SGD, condensation and
`Session.gaussian_sum` assume.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.core.records import Labels
from veilset.data.tensors import to_inputs
from veilset.dpsgd import PrivateTraining, train_private
from veilset.dpsgd.trainer import PaidSteps, each_step, resume
from veilset.methods.base import Context, Fitted
from veilset.methods.pldk.as_published import Plain, PlainSums, read_all, train_plain_expert, train_plain_teacher
from veilset.methods.pldk.condensation import Condensation
from veilset.methods.pldk.config import PldkPlan, PldkSettings
from veilset.methods.pldk.kernel import MomentRows, match_kernel, plain_moments, public_code
from veilset.methods.pldk.sampling import FittedPldk, labelled
from veilset.methods.pldk.student import build_student, train_student
from veilset.methods.pldk.trajectories import Matching, Trajectory
from veilset.methods.shared.gan import even_labels
from veilset.methods.shared.starting_images import rows_of_classes, starting_images
from veilset.models import build_network
from veilset.privacy.events import Event
from veilset.privacy.session import ClippedSum, Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.release.format import Release
from veilset.release.inputs import InputRelease, load_input, require_carried
from veilset.teachers.fitting import train_teacher
from veilset.training.augment import MILD
from veilset.training.classifier import train_classifier

_LONG_ROWS = 100  # small batches of long rows stay in the processor's cache
_PICTURES = 1000  # that fix a subspace
_ROUNDS_AT_ONCE = 10  # leased together; a run that is cut off loses at most so many

MakeNetwork = Callable[[int], nn.Module]
"""From a seed to a fresh network: that of experts, questions and student."""


def fit(plan: PldkPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Teacher and lead, which alone meet private images; then distil, label, and train the student."""
    settings, facts, device = plan.settings, session.facts, context.device
    labels = even_labels(settings.images_per_class * facts.classes, facts.classes)
    hard = torch.from_numpy(labels)
    make_network = partial(_network, settings, facts)
    plain = read_all(session.records_without_guarantee()) if plan.as_published else None
    require_carried(() if plan.built_upon is None else (plan.built_upon,), session.plan)
    start = _start(plan, facts, labels, public, plain, context.seed)

    # 1. The teacher (section 4.1.2).
    teacher = _teacher(plan, session, plain, context)

    # 2. Distilled images (section 4.1.1): networks see in them what they saw in the private ones, or they lead a
    # network along the experts' way, or the one and then the other, or regression on them predicts private labels.
    distilled = start
    if plan.condensing is not None:
        condensation = Condensation(
            plan.condensing, make_network, distilled, hard, settings, batch=plan.network_batch,
            clip_norm=settings.clip_norm, seed=derive_seed(context.seed, "pldk condensation"),
            pictures=_pictures(settings, facts, public, context.seed),
        )  # fmt: skip
        distilled = condense(condensation, _sums(plan, session, plain, condensation, context), context.progress)
    if plan.matching == "kernel":
        distilled = _by_kernel(plan, session, plain, distilled, hard, context)
    if plan.matching == "trajectory":
        trajectories = _experts(plan, session, plain, make_network, context)
        changes = MILD if settings.augmented else None
        seed = derive_seed(context.seed, "pldk matching")
        matching = Matching(make_network(context.seed), trajectories, distilled, hard, settings, changes, seed)
        distilled = matching.run(context.kept("pldk-images.pt"), context.progress)

    # 3. The teacher's soft labels of the images as they are stored.
    samples = labelled(distilled, teacher, labels, device, temperature=settings.label_temperature)

    # 4. A student that sees nothing but these images and what the teacher says of them (equation 4.7).
    student = build_student(settings, facts, derive_seed(context.seed, "student")).to(device)
    if settings.pretraining:
        assert plan.built_upon is not None
        _pretrain(student, _other_release(plan.built_upon, facts), context)
    student = train_student(
        student, teacher, ((distilled * 255).round() / 255).to(device), hard.to(device), settings,
        seed=context.seed, progress=context.progress,
    )  # fmt: skip
    if settings.start == "real":
        # What began as private images stays behind; drawn patterns show what the student knows.
        seed = derive_seed(context.seed, "pldk patterns")
        patterns = starting_images("drawn", facts.shape, None, variation="none", blur=3, seed=seed)(0, len(labels))
        samples = labelled(patterns, student, None, device, temperature=settings.label_temperature)
    return FittedPldk(samples=samples, student=student, settings=settings, facts=facts)


class Sums(PaidSteps, Protocol):
    """What condensing needs of a session's `GradientSteps`, or of sums without noise."""

    def step(self, clipped_sum: ClippedSum) -> list[Tensor]:
        """The next sum over a fresh sample."""


def condense(condensation: Condensation, sums: Sums, progress: Progress = SILENT) -> Tensor:
    """All rounds, from where an earlier part of this run stopped; the images (n, C, H, W) in [0, 1].

    Privacy: unit and relation as in the vault; sensitivity of each round's one sum as `class_rows` or `class_gradients`
    says; event one step of the condensation's in each round; the rest is post-processing of sums that are noisy.
    """
    resume(sums, condensation)
    for number in each_step(sums, condensation, progress, "condensing"):
        weights = condensation.weights(number)
        (seen,) = sums.step(condensation.question(number, weights))
        condensation.follow(number, weights, seen.float())
    return condensation.images.detach()


def _sums(plan: PldkPlan, session: Session, plain: Plain | None, condensation: Condensation, context: Context) -> Sums:
    """The noisy sums of all rounds; those without noise as published.

    Privacy: sensitivity as `class_rows` or `class_gradients` says; event "condensation" of the plan.
    """
    if plan.condensation is None:
        assert plain is not None
        return PlainSums(plain, batch=plan.network_batch, count=plan.settings.networks, seed=context.seed)
    sums = session.gradient_steps(plan.condensation, clip_norm=condensation.sensitivity)
    sums.lease_size = _ROUNDS_AT_ONCE
    return sums


def _by_kernel(
    plan: PldkPlan, session: Session, plain: Plain | None, start: Tensor, labels: Tensor, context: Context
) -> Tensor:
    """Images from which kernel ridge regression predicts.

    Privacy: sensitivity 1, the length of a row of `MomentRows`, to which the session clips; event "kernel moments" of
    the plan, one Gaussian over all units; none as published.
    """
    settings, facts = plan.settings, session.facts
    embedding = public_code(facts, settings.kernel_features, context.seed).to(context.device)
    rows = MomentRows(embedding, facts.classes, context.device)
    if plan.moments is None:
        assert plain is not None
        moments = plain_moments(rows, torch.tensor(plain[0]), torch.tensor(plain[1]))
    else:
        moments = rows.read(session.gaussian_sum(rows, plan.moments, clip_norm=1.0, batch=_LONG_ROWS), facts.units)
    return match_kernel(
        moments, embedding, start, labels, steps=settings.kernel_steps, rate=settings.condensing_rate,
        ridge=settings.ridge, device=context.device, progress=context.progress,
    )  # fmt: skip


def _teacher(plan: PldkPlan, session: Session, plain: Plain | None, context: Context) -> nn.Module:
    """The classifier that labels the images. Privacy: as `train_teacher`; event "teacher" of the plan."""
    if plan.teacher is None:
        assert plain is not None
        seed = derive_seed(context.seed, "teacher")
        name, facts = plan.settings.teacher_network, session.facts
        network = build_network(name, shape=facts.shape, classes=facts.classes, seed=seed)
        return train_plain_teacher(network, plain, context)
    return train_teacher(session, plan.teacher, None, context).network


def _experts(
    plan: PldkPlan, session: Session, plain: Plain | None, make_network: MakeNetwork, context: Context
) -> list[Trajectory]:
    """The ways of all experts; as published those of plain training."""
    found = []
    for number in range(plan.settings.experts):
        seed = derive_seed(context.seed, f"expert {number}")
        network = make_network(seed).to(context.device)
        trajectory = Trajectory(context.kept(f"pldk-expert-{number}.pt"))
        if plain is not None:
            train_plain_expert(network, trajectory, plain, plan.settings, seed)
        else:
            _train_expert(plan.settings, plan.experts[number], session, network, trajectory, seed, context.progress)
        found.append(trajectory)
    return found


def _train_expert(
    settings: PldkSettings,
    event: Event,
    session: Session,
    network: nn.Module,
    trajectory: Trajectory,
    seed: int,
    progress: Progress,
) -> None:
    """A DP-SGD run whose weights are kept on the way.

    Privacy: as `train_private`; event "expert N" of the plan.
    """
    trajectory.add(0, network)

    def keep(step: int, model: nn.Module) -> None:
        if step % settings.expert_every == 0:
            trajectory.add(step // settings.expert_every, model)

    recipe = PrivateTraining(
        clip_norm=settings.clip_norm, learning_rate=settings.expert_rate, momentum=settings.expert_momentum
    )
    train_private(session, network, event, recipe, after_step=keep, seed=seed, progress=progress)


def _start(
    plan: PldkPlan, facts: PublicFacts, labels: Labels, public: Public | None, plain: Plain | None, seed: int
) -> Tensor:
    """Images (n, C, H, W) in [0, 1] that nobody's privacy depends on; but for "real", which needs `plain`."""
    kind, shape = plan.settings.start, facts.shape
    if kind == "real":
        assert plain is not None
        return to_inputs(torch.from_numpy(plain[0][rows_of_classes(labels, plain[1])]))
    if kind == "release":
        assert plan.built_upon is not None
        other = _other_release(plan.built_upon, facts)
        return to_inputs(torch.from_numpy(other.images[rows_of_classes(labels, other.labels)]))
    if kind == "condensed":
        kind = "auto"
    if kind == "auto":
        kind = "drawn" if public is None else "public"
    return starting_images(kind, shape, public, variation="none", blur=3, seed=seed)(0, len(labels))


def _pictures(settings: PldkSettings, facts: PublicFacts, public: Public | None, seed: int) -> Tensor | None:
    """Public or drawn images (m, C, H, W) that fix the subspace of class means, where one is asked for."""
    if not settings.subspace:
        return None
    make = starting_images(
        "drawn" if public is None else "public", facts.shape, public, variation="none", blur=3,
        seed=derive_seed(seed, "subspace"),
    )  # fmt: skip
    return make(0, _PICTURES)


def _other_release(built_upon: InputRelease, facts: PublicFacts) -> Release:
    """The release that the plan carries the events of."""
    other = load_input(built_upon)
    if tuple(other.images.shape[1:]) != tuple(facts.shape) or other.certificate.facts.classes != facts.classes:
        raise InputError(
            f"Expected a release of images {facts.shape} in {facts.classes} classes, got {other.images.shape[1:]} in "
            f"{other.certificate.facts.classes}."
        )
    return other


def _pretrain(student: nn.Module, other: Release, context: Context) -> None:
    """The student learns from another release first; post-processing of both."""
    train_classifier(
        student, other.images, other.labels, other.soft_labels, seed=context.seed, device=context.device,
        progress=context.progress,
    )  # fmt: skip


def _network(settings: PldkSettings, facts: PublicFacts, seed: int) -> nn.Module:
    return build_network(settings.network, shape=facts.shape, classes=facts.classes, width=settings.width, seed=seed)
