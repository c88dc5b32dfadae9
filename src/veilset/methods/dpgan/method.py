"""dpgan: a conditional GAN whose critic is trained by DP-SGD.

Xie et al., "Differentially Private Generative Adversarial Network" (2018); Bie, Kamath, Zhang, "Private GANs,
Revisited" (2023): many critic steps for each generator step, large batches. The generator sees the private images
through the critic alone, so all of its training is post-processing (docs/dpgan.md).

What we changed: beside convolutional critics there are two that learn a linear map for each class on features fixed in
advance ("kernel", the default, and "scattering"), for which a private step on thousands of images takes milliseconds;
and a share of the budget may go to a private classifier, which keeps classes apart and labels the released images.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity
`clip_norm`; events `steps` Poisson-sampled Gaussians of the critic and those of the classifier; assumes a critic that
treats every image alone, which is tried on random images first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import torch_generator
from veilset.core.ranges import RATES, require_range
from veilset.core.records import Records
from veilset.dpsgd import ClippedGradients, sampling_rate_for
from veilset.dpsgd.trainer import to_inputs
from veilset.methods.base import Config, Context
from veilset.methods.shared.adversarial import AdversarialMethod
from veilset.methods.shared.class_statistics import public_embedding, require_square
from veilset.methods.shared.critics import KernelCritic, build_critic
from veilset.methods.shared.fitted_generator import FittedGenerator, plan_labels, train_labels
from veilset.methods.shared.gan import (
    AdversarialLoss,
    Balance,
    GeneratorTraining,
    MovingAverage,
    Replay,
    check_loss,
    generated_losses,
    generator_losses,
    penalty_on_generated,
    public_batches,
    real_losses,
    weighed_alike,
)
from veilset.models.generators.conditional import build_generator
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.rows import require_clip_norm
from veilset.privacy.session import Session
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import Public, PublicFacts

CriticKind = Literal["kernel", "scattering", "dcgan", "resnet"]
GeneratorKind = Literal["modulated", "dcgan", "resnet"]

_CRITIC = "critic"
_LINEAR_RATE, _NETWORK_RATE = 100.0, 0.001


@dataclass(frozen=True, kw_only=True)
class DpganConfig(Config):
    """Public settings of dpgan.

    Args:
        critic: "kernel" and "scattering" learn linear maps on fixed features; "dcgan" and "resnet" all of a network.
        generator: a name of models/generators/conditional.py.
        loss: "bce", "hinge" or "wasserstein".
        steps: private steps of the critic.
        batch: units of a private step on average, as far as there are so many.
        clip_norm: of one unit's gradient.
        critic_learning_rate: 0 is the rule's: SGD with momentum for a linear critic, Adam for a network.
        critic_memory: steps after which a linear critic has forgotten; its weights decay accordingly. 0 is never.
        real_memory: steps over which the noisy gradients of the real half are averaged; 1 is no average.
        critic_steps: critic steps for each generator step, at first.
        most_critic_steps: where the balance may take that number.
        penalty: weight of the critic's squared gradient at generated images; for networks.
        generated_batch: images of a generator step.
        replay: generator steps whose images the critic keeps seeing.
        generator_learning_rate: of Adam, falling to 0 as half a cosine.
        ema_decay: of the generator's weights.
        teacher_share: share of the privacy spent on a classifier; 0 leaves it out.
        teacher_weight: of the classifier's cross-entropy to the class that was asked for.
        teacher_images: images of a generator step that the classifier looks at.
        pretraining_steps: steps on public images before the private ones; they cost nothing.
        random_features: of the kernel, a multiple of 4.
        pictures: drawn pictures that fix the kernel.
        latent_size: length of the generator's latent vector.
        width: of the generator; 0 is its default.
    """

    critic: CriticKind = "kernel"
    generator: GeneratorKind = "modulated"
    loss: AdversarialLoss = "wasserstein"
    steps: int = 400
    batch: int = 8192
    clip_norm: float = 1.0
    critic_learning_rate: float = 0.0
    critic_memory: int = 1
    real_memory: int = 100
    critic_steps: int = 1
    most_critic_steps: int = 1
    penalty: float = 0.0
    generated_batch: int = 100
    replay: int = 10
    generator_learning_rate: float = 0.002
    ema_decay: float = 0.98
    teacher_share: float = 0.3
    teacher_weight: float = 0.01
    teacher_images: int = 30
    pretraining_steps: int = 0
    random_features: int = 2048
    pictures: int = 3000
    latent_size: int = 64
    width: int = 0

    def __post_init__(self) -> None:
        check_loss(self.loss)
        for name, known in (("critic", CriticKind), ("generator", GeneratorKind)):
            if getattr(self, name) not in get_args(known):
                raise InputError(
                    f"Expected {name} to be one of {', '.join(get_args(known))}, got {getattr(self, name)!r}."
                )
        Balance(self.critic_steps, self.most_critic_steps)
        for name in ("steps", "batch", "generated_batch", "replay", "latent_size", "teacher_images", "real_memory"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of at least 1, got {getattr(self, name)}.")
        for name in (
            "critic_learning_rate",
            "critic_memory",
            "penalty",
            "teacher_weight",
            "pretraining_steps",
            "width",
        ):
            if not getattr(self, name) >= 0:
                raise InputError(f"Expected {name} >= 0, got {getattr(self, name)}.")
        require_clip_norm(self.clip_norm, "the critic")
        require_range("generator_learning_rate", self.generator_learning_rate, *RATES)
        if not 0 <= self.teacher_share < 1 or not 0 <= self.ema_decay < 1:
            raise InputError("Expected teacher_share and ema_decay in [0, 1).")
        if self.random_features < 4 or self.random_features % 4 or self.pictures < 10:
            raise InputError("Expected random_features to be a multiple of 4, and at least 10 pictures.")
        if self.penalty and self.is_linear:
            raise InputError(
                "A linear critic is held by critic_memory; a penalty is for dcgan and resnet. Set penalty=0."
            )

    @property
    def is_linear(self) -> bool:
        """Whether the critic learns a linear map on fixed features."""
        return self.critic in ("kernel", "scattering")


class Dpgan(AdversarialMethod):
    """A GAN with a DP-SGD critic and a free generator."""

    name = "dpgan"
    title = "GAN with a private critic"
    paper = (
        "Xie et al. 2018, https://arxiv.org/abs/1802.06739; Bie, Kamath, Zhang 2023, https://arxiv.org/abs/2302.02936"
    )
    claim_of_paper = (
        "DP-SGD on the critic holds, as in the paper of 2023. The accounting of the paper of 2018 is its own, and "
        "we do not rely on it."
    )
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    config_type = DpganConfig
    config: DpganConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 60, "random_features": 512, "pictures": 600},
        "convolutional": {
            "critic": "dcgan",
            "batch": 1024,
            "clip_norm": 1.0,
            "critic_steps": 4,
            "most_critic_steps": 32,
        },
        "plain": {"teacher_share": 0.0, "teacher_weight": 0.0},
    }

    def requires_public(self) -> bool:
        """Pre-training needs images to train on."""
        return self.config.pretraining_steps > 0

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """The critic's steps and the classifier's; one factor on the noise of both is calibrated to the budget."""
        require_square(facts)
        share = self.config.teacher_share
        rate = sampling_rate_for(min(self.config.batch, facts.units), facts.units)
        parts = [Part(event=lambda noise: _of_critic(noise, rate, self.config.steps), share=1 - share)]
        if share:
            parts.insert(0, Part(event=lambda noise: plan_labels(facts, budget, noise)[1], share=share))
        events = share_budget(budget, parts)
        return Plan(budget=budget, events=tuple(events), facts=self._plan_facts(events[-1], facts))

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Train the classifier, then critic and generator in turn."""
        facts, config = session.facts, self.config
        teacher = train_labels(session, context) if config.teacher_share else None
        size, _, channels = facts.shape
        generator = build_generator(
            config.generator,
            size=size,
            channels=channels,
            classes=facts.classes,
            latent_size=config.latent_size,
            width=config.width or None,
            seed=context.seed,
        )
        training = Adversaries(config, self._critic(facts, context), generator, teacher, context)
        training.run(session, public, context)
        self._fitted = FittedGenerator(
            generator=training.of_generator.finish(), teacher=teacher, facts=facts, device=context.device
        )

    def _critic(self, facts: PublicFacts, context: Context) -> nn.Module:
        size, _, channels = facts.shape
        if self.config.critic != "kernel":
            critic = build_critic(
                self.config.critic, size=size, channels=channels, classes=facts.classes, seed=context.seed
            )
            return critic.to(context.device)
        embedding = public_embedding(
            facts, random_features=self.config.random_features, pictures=self.config.pictures, seed=context.seed
        )
        return KernelCritic(embedding, facts.classes).to(context.device)

    def _plan_facts(self, critic: Event, facts: PublicFacts) -> dict[str, float | int | str]:
        batch = critic.sampling_rate * facts.units
        return {
            "units of a critic step, on average": round(batch),
            "noise of a critic step over the clip norm, per coordinate of the mean": critic.noise_multiplier / batch,
            "generator steps, which cost nothing": self.config.steps // self.config.critic_steps,
        }


class Adversaries:
    """Critic and generator in turn. Private images are met in `_clipped_sum` alone, which a paid step calls."""

    def __init__(
        self, config: DpganConfig, critic: nn.Module, generator: nn.Module, teacher: nn.Module | None, context: Context
    ) -> None:
        self.config, self.critic, self.teacher, self.device = config, critic, teacher, context.device
        # What DP-SGD trains: all of a network, or the linear maps on rows that are computed once.
        self.scored = critic.get_submodule("head") if config.is_linear else critic
        self.gradients = ClippedGradients(
            self.scored, lambda logits, _: real_losses(logits, config.loss), config.clip_norm
        )
        self.optimizer = _critic_optimizer(self.gradients.parameters, config)
        self.of_generator = GeneratorTraining(
            generator,
            learning_rate=config.generator_learning_rate,
            ema_decay=config.ema_decay,
            seed=context.seed,
            device=context.device,
        )
        self.balance = Balance(config.critic_steps, config.most_critic_steps)
        self.replay = Replay(config.replay)
        self.real = MovingAverage(config.real_memory)

    def run(self, session: Session, public: Records | None, context: Context) -> None:
        """Take all paid steps, from where an earlier part of this run stopped."""
        event, facts = session.planned(_CRITIC), session.facts
        images = torch.randint(0, 256, (3, *facts.shape), generator=torch_generator(0, "trial"), dtype=torch.uint8)
        labels = torch.arange(3) % facts.classes
        self.gradients.check((self._rows(to_inputs(images)), labels.to(self.device)), labels)
        steps = session.gradient_steps(
            label=_CRITIC,
            clip_norm=self.gradients.sensitivity,
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=event.count,
            features=self._features if self.config.is_linear else None,
        )
        earlier = steps.kept()
        if earlier is not None:
            self._load(earlier)
        else:
            self._see_generated()
            self._pretrain(public, facts, context)
        batch = event.sampling_rate * facts.units
        with context.progress.task("critic and generator", steps.steps_left) as task:
            for step in range(event.count - steps.steps_left, event.count):
                noisy = steps.step(self._clipped_sum)
                self._turn([total.to(self.device) / batch for total in noisy], done=step / event.count)
                if steps.lease_used_up:
                    steps.keep(self._state())
                task.advance()

    def _clipped_sum(self, seen: Tensor, labels: Tensor) -> list[Tensor]:
        """The private half of the critic's gradient, before noise.

        Privacy: unit one image; relation add/remove-one; sensitivity `clip_norm` over all parameters together; event
        one step of the critic's; assumes that no image's loss depends on others.
        """
        rows = seen if self.config.is_linear else to_inputs(seen)
        labels = labels.to(self.device)
        return self.gradients.sum((rows.to(self.device), labels), labels)

    def _turn(self, real: list[Tensor], done: float) -> None:
        """A critic step from the gradient of the real half; then, when it is due, a generator step."""
        rows, labels = self.replay.all()
        loss = generated_losses(self.scored(rows, labels), self.config.loss).mean()
        if self.config.penalty:
            loss = loss + self.config.penalty * penalty_on_generated(self.critic, rows, labels)
        free = torch.autograd.grad(loss, self.gradients.parameters)
        averaged = self.real.add(real)
        if self.config.is_linear:
            averaged = [weighed_alike(averaged[0], free[0])]
        for parameter, of_real, of_generated in zip(self.gradients.parameters, averaged, free, strict=True):
            parameter.grad = of_real + of_generated
        self.optimizer.step()
        if self.balance.due():
            self._generator_step(0.5 + 0.5 * math.cos(math.pi * done))

    def _generator_step(self, rate: float) -> None:
        config = self.config
        images, labels = self.of_generator.draw(config.generated_batch, "step")
        rows = self._rows(images)
        logits = self.scored(rows, labels)
        loss = generator_losses(logits, config.loss).mean()
        if self.teacher is not None and config.teacher_weight:
            shown = slice(config.teacher_images)
            loss = loss + config.teacher_weight * functional.cross_entropy(self.teacher(images[shown]), labels[shown])
        self.of_generator.descend(loss, rate)
        self.balance.observe(logits.detach())
        self.replay.add(rows, labels)

    def _pretrain(self, public: Records | None, facts: PublicFacts, context: Context) -> None:
        """The same turns on public images under labels drawn at random; free."""
        for images, labels in public_batches(public, facts, self.config.pretraining_steps, context.seed):
            with torch.no_grad():
                seen = self._rows(images)
            loss = real_losses(self.scored(seen, labels.to(self.device)), self.config.loss).mean()
            self._turn(list(torch.autograd.grad(loss, self.gradients.parameters)), done=0.0)

    def _see_generated(self) -> None:
        """Fill the replay before there is a first generator step."""
        with torch.no_grad():
            images, labels = self.of_generator.draw(self.config.generated_batch, "start")
            self.replay.add(self._rows(images), labels)

    def _rows(self, images: Tensor) -> Tensor:
        """What the trained part of the critic reads of images in [0, 1]."""
        if not self.config.is_linear:
            return images.to(self.device)
        rows: Tensor = self.critic.features(images.to(self.device))  # type: ignore[operator]
        return rows

    def _features(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002 (the form of a mechanism's callback)
        return self._rows(to_inputs(images)).cpu()

    def _state(self) -> dict[str, Any]:
        """What a resumed run goes on from; all of it follows from noisy sums."""
        return {
            "critic": self.scored.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.of_generator.state(),
            "balance": self.balance.state(),
            "replay": self.replay.kept,
            "real": self.real.state(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.scored.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.of_generator.load(state["generator"])
        self.balance.load(state["balance"])
        self.real.load(state["real"])
        self.replay.kept = [(rows.to(self.device), labels.to(self.device)) for rows, labels in state["replay"]]


def _of_critic(noise: float, rate: float, steps: int) -> Event:
    return Event(label=_CRITIC, noise_multiplier=noise, sampling_rate=rate, count=steps)


def _critic_optimizer(parameters: list[nn.Parameter], config: DpganConfig) -> torch.optim.Optimizer:
    if not config.is_linear:
        return torch.optim.Adam(parameters, lr=config.critic_learning_rate or _NETWORK_RATE, betas=(0.5, 0.99))
    rate = config.critic_learning_rate or _LINEAR_RATE
    decay = 1 / (rate * config.critic_memory) if config.critic_memory else 0.0
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay)
