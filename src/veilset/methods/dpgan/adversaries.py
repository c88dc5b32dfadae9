"""Critic and generator of dpgan in turn, from noisy gradients of the real half: post-processing, no private row."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.records import Records
from veilset.methods.base import Context
from veilset.methods.dpgan.config import DpganPlan
from veilset.methods.shared.class_statistics import public_embedding
from veilset.methods.shared.critics import KernelCritic, build_critic
from veilset.methods.shared.gan import (
    Balance,
    GeneratorTraining,
    MovingAverage,
    Replay,
    generated_losses,
    generator_losses,
    penalty_on_generated,
    public_batches,
    real_losses,
    too_alike,
    weighed_alike,
)
from veilset.models.generators.conditional import build_generator
from veilset.privacy.vault import PublicFacts

_WARMUP = 20  # generator steps at a lower rate: pixels that saturate in the first steps pass no gradient any more


class Adversaries:
    """The two networks, their optimizers, and what keeps them in balance."""

    def __init__(self, plan: DpganPlan, facts: PublicFacts, teacher: nn.Module | None, context: Context) -> None:
        config = plan.settings
        size, _, channels = facts.shape
        self.config, self.facts, self.teacher = config, facts, teacher
        self.seed, self.device = context.seed, context.device
        generator = build_generator(
            config.generator,
            size=size,
            channels=channels,
            classes=facts.classes,
            latent_size=config.latent_size,
            width=plan.width,
            seed=context.seed,
        )
        self.critic = _critic(plan, facts, context)
        # What DP-SGD trains: all of a network, or the linear maps on rows that are computed once.
        self.scored = self.critic.get_submodule("head") if config.is_linear else self.critic
        self.parameters = [parameter for parameter in self.scored.parameters() if parameter.requires_grad]
        self.optimizer = _critic_optimizer(self.parameters, plan)
        self.of_generator = GeneratorTraining(
            generator,
            learning_rate=config.generator_learning_rate,
            ema_decay=config.ema_decay,
            seed=context.seed,
            device=context.device,
        )
        self.balance = Balance(config.critic_steps, config.most_critic_steps)
        self.replay = Replay(config.replay)
        # What was asked once has no noise to average out.
        self.real = MovingAverage(1 if config.asks_once else config.real_memory)

    def rows(self, images: Tensor) -> Tensor:
        """What the trained part of the critic reads of images in [0, 1], each from its own image alone."""
        if not self.config.is_linear:
            return images.to(self.device)
        rows: Tensor = self.critic.features(images.to(self.device))  # type: ignore[operator]
        return rows

    def begin(self, public: Records | None) -> None:
        """Fill the replay before there is a first generator step; then pre-train.

        That is the same turns on public images under labels drawn at random; free.
        """
        with torch.no_grad():
            images, labels = self.of_generator.draw(self.config.generated_batch, "start")
            self.replay.add(self.rows(images), labels)
        for images, labels in public_batches(public, self.facts, self.config.pretraining_steps, self.seed):
            with torch.no_grad():
                seen = self.rows(images)
            loss = real_losses(self.scored(seen, labels.to(self.device)), self.config.loss).mean()
            self.turn(list(torch.autograd.grad(loss, self.parameters)), done=0.0)

    def turn(self, real: list[Tensor], done: float) -> None:
        """A critic step from the gradient of the real half; then, when it is due, a generator step.

        `done` is the share of all steps that lies behind.
        """
        rows, labels = self.replay.all()
        loss = generated_losses(self.scored(rows, labels), self.config.loss).mean()
        if self.config.penalty:
            loss = loss + self.config.penalty * penalty_on_generated(self.critic, rows, labels)
        free = torch.autograd.grad(loss, self.parameters)
        averaged = self.real.add(real)
        if self.config.is_linear:
            averaged = [weighed_alike(averaged[0], free[0])]
        for parameter, of_real, of_generated in zip(self.parameters, averaged, free, strict=True):
            parameter.grad = of_real + of_generated
        self.optimizer.step()
        if self.balance.due():
            warm = min(1.0, (self.of_generator.step + 1) / _WARMUP)
            self.generator_step(warm * (0.5 + 0.5 * math.cos(math.pi * done)))

    def generator_step(self, rate: float) -> None:
        """Move the generator towards what critic and classifier take for real, at `rate` times its learning rate."""
        config = self.config
        images, labels = self.of_generator.draw(config.generated_batch, "step")
        rows = self.rows(images)
        logits = self.scored(rows, labels)
        loss = generator_losses(logits, config.loss).mean()
        if self.teacher is not None and config.teacher_weight:
            shown = slice(config.teacher_images)
            loss = loss + config.teacher_weight * functional.cross_entropy(self.teacher(images[shown]), labels[shown])
        loss = loss + too_alike(images, self.facts.classes, config.least_difference)
        self.of_generator.descend(loss, rate)
        self.balance.observe(logits.detach())
        self.replay.add(rows, labels)

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from; all of it follows from noisy sums."""
        return {
            "critic": self.scored.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.of_generator.state(),
            "balance": self.balance.state(),
            "replay": self.replay.kept,
            "real": self.real.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.scored.load_state_dict(state["critic"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.of_generator.load(state["generator"])
        self.balance.load(state["balance"])
        self.real.load(state["real"])
        self.replay.kept = [(rows.to(self.device), labels.to(self.device)) for rows, labels in state["replay"]]


def _critic(plan: DpganPlan, facts: PublicFacts, context: Context) -> nn.Module:
    config, (size, _, channels) = plan.settings, facts.shape
    if config.critic != "kernel":
        critic = build_critic(config.critic, size=size, channels=channels, classes=facts.classes, seed=context.seed)
        return critic.to(context.device)
    embedding = public_embedding(
        facts, random_features=config.random_features, pictures=config.pictures, seed=context.seed
    )
    return KernelCritic(embedding, facts.classes).to(context.device)


def _critic_optimizer(parameters: list[nn.Parameter], plan: DpganPlan) -> torch.optim.Optimizer:
    rate, memory = plan.critic_learning_rate, plan.settings.critic_memory
    if not plan.settings.is_linear:
        return torch.optim.Adam(parameters, lr=rate, betas=(0.5, 0.99))
    return torch.optim.SGD(parameters, lr=rate, weight_decay=1 / (rate * memory) if memory else 0.0)
