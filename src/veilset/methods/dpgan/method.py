"""dpgan: a conditional GAN whose critic is trained by DP-SGD.

Xie et al., "Differentially Private Generative Adversarial Network" (2018); Bie, Kamath, Zhang, "Private GANs,
Revisited" (2023): many critic steps for each generator step, large batches. The generator sees the private images
through the critic alone, so all of its training is post-processing (docs/methods/dpgan.md).

What we changed: beside convolutional critics there are two that learn a linear map for each class on features fixed in
advance ("kernel", the default, and "scattering"), for which a private step on thousands of images takes milliseconds;
and a share of the budget may go to a private classifier, which keeps classes apart and labels the released images.

With the Wasserstein loss a linear critic's gradient on real images is the same at every step, so it is released once.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity
`clip_norm` or, once, 1; events `steps` Poisson-sampled Gaussians of the critic, or one over all units, and those of the
classifier; assumes a critic that treats every image alone, which is tried on random images first.
"""

from typing import Any

import torch
from torch import Tensor

from veilset.core.randomness import torch_generator
from veilset.data.tensors import to_inputs
from veilset.dpsgd import ClippedGradients
from veilset.dpsgd.trainer import each_step, resume
from veilset.methods.base import Context, Fitted
from veilset.methods.dpgan.adversaries import Adversaries
from veilset.methods.dpgan.config import DpganPlan
from veilset.methods.shared.class_statistics import read_statistics
from veilset.methods.shared.critics import with_constant
from veilset.methods.shared.fitted_generator import FittedGenerator
from veilset.methods.shared.gan import real_losses
from veilset.privacy.events import Event
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.fitting import train_teacher


def fit(plan: DpganPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Train the classifier, then critic and generator in turn."""
    facts = session.facts
    # 1. The classifier that keeps classes apart and labels the release, where it has a share.
    teacher = None if plan.teacher is None else train_teacher(session, plan.teacher, None, context).network

    # 2. Both networks as they start, and a trial on random images: the critic must treat every image alone.
    adversaries = Adversaries(plan, facts, teacher, context)
    real_half = RealHalf(adversaries)
    real_half.try_out(facts)

    # 3. The critic's private steps. Each gives the noisy gradient of its loss on real images; the rest of a turn, the
    # loss on generated images and the generator's own step, is free.
    drowned: tuple[str, ...] = ()
    if plan.settings.asks_once:
        real, drowned = real_half.for_all_steps(session, plan.critic)
        take_turns(adversaries, real, plan, public, context)
    else:
        take_private_turns(adversaries, real_half, session, plan, public, context)

    # 4. The generator, averaged over its steps. Nothing from here on sees the session.
    generator = adversaries.of_generator.finish()
    return FittedGenerator(
        generator=generator,
        teacher=teacher,
        facts=facts,
        device=context.device,
        variation=plan.settings.variation,
        labelling=plan.settings.labelling,
        image_noise=plan.settings.image_noise,
        found=drowned,
    )


def take_turns(
    adversaries: Adversaries, real: Tensor, plan: DpganPlan, public: Public | None, context: Context
) -> None:
    """All turns from one released gradient of the real half: post-processing."""
    steps = plan.settings.steps
    adversaries.begin(public)
    with context.progress.task("critic and generator", steps) as task:
        for number in range(steps):
            adversaries.turn([real], done=number / steps)
            task.advance()


def take_private_turns(
    adversaries: Adversaries,
    real_half: "RealHalf",
    session: Session,
    plan: DpganPlan,
    public: Public | None,
    context: Context,
) -> None:
    """A private step in every turn.

    Privacy: unit and relation as in the module; sensitivity `clip_norm`; event `steps` Poisson-sampled Gaussians.
    """
    steps = session.gradient_steps(
        plan.critic,
        clip_norm=real_half.gradients.sensitivity,
        features=real_half.features if plan.settings.is_linear else None,
    )
    if not resume(steps, adversaries):
        adversaries.begin(public)
    batch = plan.critic.sampling_rate * session.facts.units
    for number in each_step(steps, adversaries, context.progress, "critic and generator"):
        noisy = steps.step(real_half.clipped_sum)
        adversaries.turn([total.to(context.device) / batch for total in noisy], done=number / plan.critic.count)


class RealHalf:
    """The private half of the critic's gradient: private images are met here alone, in calls of a paid mechanism."""

    def __init__(self, adversaries: Adversaries) -> None:
        config = adversaries.config
        self.adversaries, self.is_linear, self.device = adversaries, config.is_linear, adversaries.device
        self.gradients = ClippedGradients(
            adversaries.scored, lambda logits, _: real_losses(logits, config.loss), config.clip_norm
        )

    def try_out(self, facts: PublicFacts) -> None:
        """Refuse a critic that mixes images, before any is read."""
        images = torch.randint(0, 256, (3, *facts.shape), generator=torch_generator(0, "trial"), dtype=torch.uint8)
        labels = torch.arange(3) % facts.classes
        self.gradients.check((self.adversaries.rows(to_inputs(images)), labels.to(self.device)), labels)

    def features(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002 (the form of a mechanism's callback)
        """What a linear critic reads of 8-bit images, one row each, from that image alone."""
        return self.adversaries.rows(to_inputs(images)).cpu()

    def for_all_steps(self, session: Session, event: Event) -> tuple[Tensor, tuple[str, ...]]:
        """The gradient (classes, d) of a linear critic's Wasserstein loss on real images, released once.

        Beside it are warnings of classes that noise hides, by the counts in it.

        That loss is minus the inner product of an image's features with the weights of its class: its gradient, minus
        the features in the row of the class, is the same whatever the critic has learned.

        Privacy: as `read_statistics`: unit as in the vault; relation add/remove-one; sensitivity 1; event one Gaussian
        over all units; assumes features fixed by drawn pictures.
        """
        critic: Any = self.adversaries.critic
        found = read_statistics(session, critic, event, device=self.device)
        gradient = -found.shares[:, None].to(self.device) * with_constant(found.means.to(self.device))
        return gradient, found.drowned

    def clipped_sum(self, seen: Tensor, labels: Tensor) -> list[Tensor]:
        """The gradient of the critic's loss on real images, before noise.

        Privacy: unit one image; relation add/remove-one; sensitivity `clip_norm` over all parameters together; event
        one step of the critic's; assumes that no image's loss depends on others.
        """
        rows = seen if self.is_linear else to_inputs(seen)
        labels = labels.to(self.device)
        return self.gradients.sum((rows.to(self.device), labels), labels)
