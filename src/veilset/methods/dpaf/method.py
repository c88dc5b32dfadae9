"""dpaf: a GAN whose critic reads noisy sums of features (DPAF, aggregation in the forward phase).

The paper's Theorem 1 does not hold (docs/methods/dpaf.md has the counter-example). What holds keeps its idea: conv1 is
fixed before the critic starts, features are clipped and summed with noise, conv3* and FC* see noisy sums and are free,
and conv2* is trained through the noisy sum, on fresh samples.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity R
of the aggregate, `clip_norm` of conv2*, `conv1_clip_norm` of a private conv1; events Poisson-sampled Gaussians, one
line each; assumes layers that treat every image alone, which is tried on random images first.
"""

import math
from functools import partial

import torch
from torch import Tensor

from veilset.data.tensors import to_inputs
from veilset.dpsgd import PrivateTraining, train_private
from veilset.dpsgd.exact import block_sum
from veilset.dpsgd.trainer import each_step, resume
from veilset.methods.base import Context, Fitted
from veilset.methods.dpaf.aggregate import class_rows, row_bound
from veilset.methods.dpaf.as_published import train_as_published
from veilset.methods.dpaf.config import DpafPlan, DpafPublishedPlan
from veilset.methods.dpaf.conv1 import classifier_of, squared_error, train_conv1_in_public
from veilset.methods.dpaf.critic import AggregatingCritic, build_critic
from veilset.methods.dpaf.training import AggregatedTraining
from veilset.methods.shared.fitted_generator import FittedGenerator
from veilset.models.generators.conditional import build_generator
from veilset.privacy.rows import in_fixed_batches
from veilset.privacy.session import Session
from veilset.privacy.vault import Public
from veilset.teachers.fitting import train_teacher

_AT_ONCE = 128


def fit(plan: DpafPlan | DpafPublishedPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Algorithm 1, in the form that holds; comments give its lines."""
    facts, settings, device = session.facts, plan.settings, context.device
    critic = build_critic(settings, facts, context.seed).to(device)
    generator = build_generator(
        settings.generator, size=facts.shape[0], channels=facts.shape[2], classes=facts.classes,
        latent_size=settings.latent_size, width=settings.generator_width, seed=context.seed,
    )  # fmt: skip
    if isinstance(plan, DpafPublishedPlan):
        records = session.records_without_guarantee()
        trained = train_as_published(settings, critic, generator, records, context)
        return FittedGenerator(generator=trained, teacher=None, facts=facts, device=device)

    # What the paper has not: a private classifier, which labels the release.
    teacher = None if plan.teacher is None else train_teacher(session, plan.teacher, None, context).network
    # Lines 2 to 6: conv1, which nothing moves from here on, so that its rows of an image can be kept.
    _train_conv1(plan, session, critic, public, context)

    def conv1_rows(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        return critic.rows(to_inputs(images).to(device)).cpu()

    # Lines 7 to 20: aggregate; conv3* and FC*; conv2*; generator.
    training = AggregatedTraining(settings, critic, generator, teacher, facts, context)
    training.try_on_random_images()
    aggregates = session.gradient_steps(plan.aggregate, clip_norm=row_bound(critic.features), features=conv1_rows)
    updates = session.gradient_steps(plan.conv2, clip_norm=training.gradients.sensitivity, features=conv1_rows)
    updates.lease_size = 1  # a run that was cut off between two aggregates loses at most one
    if not resume(aggregates, training):
        training.begin(public)
    expected, conv2_batch = (event.sampling_rate * facts.units for event in (plan.aggregate, plan.conv2))
    spread = plan.aggregate.noise_multiplier * row_bound(critic.features)
    for step in each_step(aggregates, training, context.progress, "critic and generator"):
        (sums,) = aggregates.step(partial(clipped_rows, training))  # line 9: DPAGG
        real, noise = training.averaged(sums, spread, expected)
        training.train_top(real, noise, f"{step}")  # lines 13 and 16, by L_BCE
        if (step + 1) % settings.mu == 0 and updates.steps_left:  # line 11
            training.look_through(real)  # line 12, L'_BCE: here through DPAGG, in the place of AGG
            gradients = updates.step(partial(clipped_gradients, training))
            training.train_conv2(gradients, conv2_batch, noise, f"{step}")  # line 14
        if (step + 1) % settings.n_critic == 0:  # line 18
            rate = 0.5 + 0.5 * math.cos(math.pi * step / plan.aggregate.count)
            training.train_generator(noise, f"{step}", rate)  # lines 19 and 20, by L''_BCE
    return FittedGenerator(
        generator=training.of_generator.finish(),
        teacher=teacher,
        facts=facts,
        device=device,
        variation=settings.variation,
        labelling=settings.labelling,
        image_noise=settings.image_noise,
    )


@torch.no_grad()
def clipped_rows(training: AggregatedTraining, rows: Tensor, labels: Tensor) -> list[Tensor]:
    """The aggregate before noise, (blocks, width + 1).

    Privacy: unit one image; relation add/remove-one; sensitivity `row_bound`, for a row is clipped and stands in one
    block, that of its class or the only one; event one step of the aggregate's; assumes a fixed conv1, and conv2*
    of noisy sums.
    """
    features, device = training.features, training.device
    found = in_fixed_batches(
        lambda part, own: class_rows(features, part.to(device), own.to(device)).cpu(), (rows, labels), _AT_ONCE
    )
    critic = training.critic
    return [block_sum(found, critic.block_of(labels), critic.blocks, row_bound(features))]


def clipped_gradients(training: AggregatedTraining, rows: Tensor, labels: Tensor) -> list[Tensor]:
    """The real half of conv2*'s gradient before noise.

    Privacy: unit one image; relation add/remove-one; sensitivity `clip_norm`, also where signs of the largest
    coordinates take the gradient's place: k of them are `clip_norm` / sqrt(k) each; event one step of conv2*'s; assumes
    an upstream gradient taken at the noisy aggregate, so that an image's gradient is a function of that image.
    """
    labels = labels.to(training.device)
    return training.gradients.sum((rows.to(training.device), labels), labels)


def _train_conv1(
    plan: DpafPlan, session: Session, critic: AggregatingCritic, public: Public | None, context: Context
) -> None:
    """Lines 2 to 6: on public images, by DP-SGD with the other layers frozen at their random start, or on all layers.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity `conv1_clip_norm`; event "conv1" of the plan,
    none for wavelets and public images; assumes that no layer is trained on private images without noise, which is
    where the paper's form fails.
    """
    settings, facts, conv1 = plan.settings, session.facts, critic.conv1
    if settings.conv1 == "public":
        train_conv1_in_public(conv1, conv1.maps, facts, public, tanh=settings.tanh, context=context)
    if plan.conv1 is not None:
        network = classifier_of(conv1, conv1.maps, facts.classes, tanh=settings.tanh, seed=context.seed)
        network.to(context.device).rest.requires_grad_(settings.conv1 != "frozen")
        recipe = PrivateTraining(
            clip_norm=settings.conv1_clip_norm,
            learning_rate=settings.conv1_learning_rate,
            keep_fraction=settings.keep_fraction,
            keep_signs=settings.keep_signs,
        )
        train_private(
            session, network, plan.conv1, recipe, loss=squared_error, seed=context.seed, progress=context.progress
        )
    conv1.eval().requires_grad_(False)
