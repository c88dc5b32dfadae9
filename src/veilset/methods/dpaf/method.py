"""dpaf: a GAN whose critic reads noisy sums of features (DPAF, aggregation in the forward phase).

The paper's Theorem 1 does not hold (docs/dpaf.md has the counter-example). What holds keeps its idea: conv1 is fixed
before the critic starts, features are clipped and summed with noise, conv3* and FC* see noisy sums and are free, and
conv2* is trained through the noisy sum, on fresh samples.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity R
of the aggregate, `clip_norm` of conv2*, `conv1_clip_norm` of a private conv1; events Poisson-sampled Gaussians, one
line each; assumes layers that treat every image alone, which is tried on random images first.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import torch_generator
from veilset.core.records import Records
from veilset.dpsgd import ClippedGradients, PrivateTraining, sampling_rate_for
from veilset.dpsgd.exact import block_sum
from veilset.dpsgd.trainer import to_inputs
from veilset.methods.base import Config, Context
from veilset.methods.dpaf.aggregate import (
    NoisyMeans,
    class_means,
    class_rows,
    loss_of_generated,
    loss_on_noisy_aggregate,
    loss_through_noisy_aggregate,
    row_bound,
    upstream_gradient,
)
from veilset.methods.dpaf.as_published import train_as_published
from veilset.methods.dpaf.config import AggregatedConfig
from veilset.methods.dpaf.conv1 import train_conv1_in_private, train_conv1_in_public
from veilset.methods.dpaf.critic import AggregatingCritic, Layout
from veilset.methods.shared.adversarial import AdversarialMethod
from veilset.methods.shared.class_statistics import require_square
from veilset.methods.shared.fitted_generator import FittedGenerator, plan_labels, train_labels
from veilset.methods.shared.gan import GeneratorTraining, Replay, public_batches, too_alike
from veilset.models.generators.conditional import build_generator
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import ClippedSum, GradientSteps, Session
from veilset.privacy.shapes import in_fixed_batches
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import Public, PublicFacts

_CONV1, _AGGREGATE, _CONV2 = "conv1", "aggregate", "conv2*"
# Below this even features that agree in all images of a class would drown.
_LEAST_SIGNAL = 0.05
_AT_ONCE = 128

ClippedStep = Callable[[ClippedSum], Sequence[Tensor]]
"""Clipped gradients of a batch, summed: of a private one with noise, of a public one without."""


@dataclass(frozen=True, kw_only=True)
class DpafConfig(Config, AggregatedConfig):
    """Public settings of dpaf; they are explained in `AggregatedConfig`."""


class Dpaf(AdversarialMethod):
    """A GAN by aggregated features, in the form that holds."""

    name = "dpaf"
    title = "GAN by aggregated features (DPAF)"
    published_reason = (
        "DPAF as published trains conv1 beside layers without noise and conv2* through an aggregate without noise, so "
        "one record moves every clipped gradient: its Theorem 1 does not hold."
    )
    paper = "DPAF: Image Synthesis via Differentially Private Aggregation in Forward Phase, https://arxiv.org/abs/2304.12185"
    claim_of_paper = "The claim does not hold: layers without noise let one record move every clipped gradient."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    config_type = DpafConfig
    config: DpafConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 40, "width": 16, "conv1_steps": 20},
        "paper": {
            "conv1": "classifier", "generator_sees": "samples", "memory": 1, "teacher_share": 0.0, "keep_fraction": 0.9,
            "least_difference": 0.0,
        },
    }  # fmt: skip

    def requires_public(self) -> bool:
        """A public conv1 and pre-training need images to train on."""
        return self.config.conv1 == "public" or self.config.pretrained != "nothing"

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """A line for each part of the critic; the noise of each by its share."""
        require_square(facts)
        config = self.config
        features = _build(config, facts, seed=0).features
        if self.as_published:
            return Plan(budget=budget, events=())
        parts = [
            Part(event=lambda noise: _event(_AGGREGATE, noise, config.batch, config.steps, facts),
                 share=config.aggregate_share),
            Part(event=lambda noise: _event(_CONV2, noise, config.mu * config.batch, config.steps // config.mu, facts),
                 share=config.conv2_share),
        ]  # fmt: skip
        if config.private_conv1:
            conv1 = Part(
                event=lambda noise: _event(_CONV1, noise, config.conv1_batch, config.conv1_steps, facts),
                share=config.conv1_share,
            )
            parts.insert(0, conv1)
        if config.teacher_share:
            labels = Part(event=lambda noise: plan_labels(facts, budget, noise)[1], share=config.teacher_share)
            parts.insert(0, labels)
        events = share_budget(budget, parts)
        aggregate = events[-2]
        # Features that agree in all images of an even class, against the length of the noise on their sum.
        signal = aggregate.sampling_rate * facts.units / facts.classes
        signal /= aggregate.noise_multiplier * math.sqrt(features.width)
        if signal * math.sqrt(config.memory) < _LEAST_SIGNAL:
            raise InputError(
                f"The aggregate would be all noise: its signal is at most {signal:.3g} of it, over {config.memory} "
                f"aggregates {signal * math.sqrt(config.memory):.3g}; expected at least {_LEAST_SIGNAL}. Raise "
                f"epsilon, batch={config.batch} or memory, or lower width={config.width}."
            )
        shown: dict[str, float | int | str] = {
            "bound of an image's features, R": features.bound,
            "units of an aggregate, on average": round(aggregate.sampling_rate * facts.units),
            "signal to noise of a class aggregate, at most": signal,
            "the same over the aggregates that are averaged": signal * math.sqrt(config.memory),
        }
        return Plan(budget=budget, events=tuple(events), facts=shown)

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """conv1 first; then, in the order of Algorithm 1, aggregate, conv3* and FC*, conv2*, generator."""
        facts, config = session.facts, self.config
        critic = _build(config, facts, context.seed).to(context.device)
        generator = build_generator(
            "modulated", size=facts.shape[0], channels=facts.shape[2], classes=facts.classes,
            latent_size=config.latent_size, seed=context.seed,
        )  # fmt: skip
        if self.as_published:
            teacher = None
            fitted = train_as_published(config, critic, generator, session.records_without_guarantee(), context)
        else:
            teacher = train_labels(session, context) if config.teacher_share else None
            self._train_conv1(critic, session, public, context)
            training = AggregatedTraining(config, critic, generator, teacher, facts, context)
            fitted = training.run(session, public, context)
        self._fitted = FittedGenerator(generator=fitted, teacher=teacher, facts=facts, device=context.device)

    def _train_conv1(
        self, critic: AggregatingCritic, session: Session, public: Records | None, context: Context
    ) -> None:
        """Lines 2 to 6 of Algorithm 1, in a form that holds; afterwards nothing moves conv1."""
        config, conv1 = self.config, critic.conv1
        if config.conv1 == "public":
            train_conv1_in_public(conv1, conv1.maps, session.facts, public, tanh=config.tanh, context=context)
        if config.private_conv1:
            event = session.planned(_CONV1)
            recipe = PrivateTraining(
                noise_multiplier=event.noise_multiplier,
                sampling_rate=event.sampling_rate,
                steps=event.count,
                clip_norm=config.conv1_clip_norm,
                learning_rate=config.conv1_learning_rate,
                label=_CONV1,
            )
            train_conv1_in_private(
                session, conv1, conv1.maps, recipe, others_frozen=config.conv1 == "frozen", tanh=config.tanh,
                context=context,
            )  # fmt: skip
        conv1.eval().requires_grad_(False)


class AggregatedTraining:
    """Critic and generator in turn. Private images are met in the two callbacks that paid steps call."""

    def __init__(
        self,
        config: DpafConfig,
        critic: AggregatingCritic,
        generator: nn.Module,
        teacher: nn.Module | None,
        facts: PublicFacts,
        context: Context,
    ) -> None:
        self.config, self.critic, self.teacher, self.facts = config, critic, teacher, facts
        self.seed, self.device = context.seed, context.device
        self.features, self.top = critic.features, critic.top
        self.upstream = torch.ones(facts.classes, self.features.width, device=self.device)
        self.gradients = ClippedGradients(
            self.features,
            lambda made, labels: loss_through_noisy_aggregate(made, labels, self.upstream),
            config.clip_norm,
            keep_fraction=config.keep_fraction,
        )
        self.each_class = torch.arange(facts.classes, device=self.device)
        # The decay makes the critic forget within one aggregate: one that remembers is late, and the game swings. SGD,
        # because Adam would give coordinates that hold noise as much weight as those that hold the difference.
        own: dict[str, Any] = {
            "params": list(self.top.of_class.parameters()),
            "lr": 1 / (config.top_decay * config.top_steps),
        }
        shared: dict[str, Any] = {"params": [*self.top.conv3.parameters(), *self.top.fc.parameters()]}
        self.top_optimizer = torch.optim.SGD(
            [own, shared], lr=config.critic_learning_rate, weight_decay=config.top_decay
        )
        self.conv2_optimizer = torch.optim.Adam(self.gradients.parameters, lr=config.conv2_learning_rate)
        self.of_generator = GeneratorTraining(
            generator,
            learning_rate=config.generator_learning_rate,
            ema_decay=config.ema_decay,
            seed=context.seed,
            device=context.device,
        )
        self.means = NoisyMeans(facts.classes, self.features.width, config.memory)
        self.replay = Replay(config.replay)

    def run(self, session: Session, public: Records | None, context: Context) -> nn.Module:
        """Take all paid steps, from where an earlier part of this run stopped; returns the generator."""
        images = torch.randint(0, 256, (3, *self.facts.shape), generator=torch_generator(0, "trial"), dtype=torch.uint8)
        labels = torch.arange(3) % self.facts.classes
        self.gradients.check((self._rows(to_inputs(images)), labels.to(self.device)), labels.to(self.device))
        aggregates = self._paid(session, _AGGREGATE, row_bound(self.features))
        updates = self._paid(session, _CONV2, self.gradients.sensitivity)
        updates.lease_size = 1  # a run that was cut off between two aggregates loses at most one
        earlier = aggregates.kept()
        if earlier is not None:
            self._load(earlier)
        else:
            self._see_generated()
            self._pretrain(public, context)
        event = aggregates.event
        expected, conv2_batch = (steps.event.sampling_rate * self.facts.units for steps in (aggregates, updates))
        spread = event.noise_multiplier * row_bound(self.features)
        with context.progress.task("critic and generator", aggregates.steps_left) as task:
            for step in range(event.count - aggregates.steps_left, event.count):
                (sums,) = aggregates.step(self._clipped_rows)
                self.means.add(sums)
                real, noise = (part.to(self.device) for part in self.means.read(self.features.bound, spread, expected))
                self._train_top(real, noise, f"{step}")  # lines 13 and 16
                if (step + 1) % self.config.mu == 0 and updates.steps_left:  # lines 11 to 14
                    self._train_conv2(updates.step, conv2_batch, real, noise, f"{step}")
                if (step + 1) % self.config.n_critic == 0:  # lines 18 to 20
                    self._train_generator(noise, f"{step}", 0.5 + 0.5 * math.cos(math.pi * step / event.count))
                if aggregates.lease_used_up:
                    aggregates.keep(self._state())
                task.advance()
        return self.of_generator.finish()

    def _paid(self, session: Session, label: str, clip_norm: float) -> GradientSteps:
        event = session.planned(label)
        return session.gradient_steps(
            label=label,
            clip_norm=clip_norm,
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=event.count,
            features=lambda images, _: self._rows(to_inputs(images)).cpu(),
        )

    @torch.no_grad()
    def _clipped_rows(self, rows: Tensor, labels: Tensor) -> list[Tensor]:
        """The aggregate before noise, (classes, width + 1).

        Privacy: unit one image; relation add/remove-one; sensitivity `row_bound`, for a row is clipped and stands in
        the block of its own class; event one step of the aggregate's; assumes a fixed conv1, and conv2* of noisy sums.
        """
        found = in_fixed_batches(
            lambda part, own: class_rows(self.features, part.to(self.device), own.to(self.device)).cpu(),
            (rows, labels),
            _AT_ONCE,
        )
        return [block_sum(found, labels, self.facts.classes, row_bound(self.features))]

    def _clipped_gradients(self, rows: Tensor, labels: Tensor) -> list[Tensor]:
        """The real half of conv2*'s gradient before noise.

        Privacy: unit one image; relation add/remove-one; sensitivity `clip_norm`; event one step of conv2*'s; assumes
        an upstream gradient taken at the noisy aggregate, so that an image's gradient is a function of that image.
        """
        labels = labels.to(self.device)
        return self.gradients.sum((rows.to(self.device), labels), labels)

    def _generated_means(self) -> Tensor:
        rows, labels = self.replay.all()
        return class_means(self.features(rows, labels), labels, self.facts.classes)

    def _like_real(self, means: Tensor, noise: Tensor, purpose: str) -> Tensor:
        """A generated aggregate with as much noise as the real one has: noise alone must not tell them apart."""
        drawn = torch.randn(means.shape, generator=torch_generator(self.seed, f"generated aggregate/{purpose}"))
        return means + noise * drawn.to(self.device)

    def _train_top(self, real: Tensor, noise: Tensor, step: str) -> None:
        means = self._generated_means().detach()
        parameters = list(self.top.parameters())
        for turn in range(self.config.top_steps):
            loss = loss_on_noisy_aggregate(self.top, real, self._like_real(means, noise, f"{step}/{turn}"))
            _descend(self.top_optimizer, parameters, list(torch.autograd.grad(loss * len(real), parameters)))

    def _train_conv2(self, clipped_step: ClippedStep, batch: float, real: Tensor, noise: Tensor, step: str) -> None:
        self.upstream, length = upstream_gradient(self.top, real)
        sums = clipped_step(self._clipped_gradients)
        parameters = self.gradients.parameters
        generated = self._like_real(self._generated_means(), noise, f"{step}/conv2")
        half = functional.softplus(self.top(generated, self.each_class)).mean()
        free = torch.autograd.grad(half, parameters)
        both = [total.to(self.device) * (length / batch) + own for total, own in zip(sums, free, strict=True)]
        _descend(self.conv2_optimizer, list(parameters), both)

    def _train_generator(self, noise: Tensor, step: str, rate: float) -> None:
        config = self.config
        images, labels = self.of_generator.draw(config.generated_batch, "step")
        rows = self._rows(images)
        seen = self.features(rows, labels)
        if config.generator_sees == "aggregate":
            with torch.no_grad():
                older, of_older = self.replay.all()
                kept = self.features(older, of_older)
            means = class_means(torch.cat([seen, kept]), torch.cat([labels, of_older]), self.facts.classes)
            seen = self._like_real(means, noise, f"{step}/generator")
        loss = loss_of_generated(self.top, seen, self.each_class if config.generator_sees == "aggregate" else labels)
        if self.teacher is not None and config.teacher_weight:
            shown = slice(config.teacher_images)
            loss = loss + config.teacher_weight * functional.cross_entropy(self.teacher(images[shown]), labels[shown])
        loss = loss + too_alike(images, self.facts.classes, config.least_difference)
        self.of_generator.descend(loss, rate)
        self.replay.add(rows, labels)

    def _see_generated(self) -> None:
        """Fill the replay before there is a first generator step."""
        with torch.no_grad():
            made, labels = self.of_generator.draw(self.config.generated_batch, "start")
            self.replay.add(self._rows(made), labels)

    def _pretrain(self, public: Records | None, context: Context) -> None:
        """The same turns on public images under labels drawn at random, without noise (Table 12); free."""
        config = self.config
        if config.pretrained == "nothing":
            return
        fresh = copy.deepcopy(self.of_generator.state())
        no_noise = torch.zeros(self.facts.classes, 1, device=self.device)
        batches = public_batches(public, self.facts, config.pretraining_steps, context.seed)
        for step, (images, labels) in enumerate(batches):
            self._public_turn(images, labels.to(self.device), no_noise, f"public {step}")
        if config.pretrained == "critic":
            self.of_generator.load(fresh)
            self.replay = Replay(config.replay)
            self._see_generated()

    def _public_turn(self, images: Tensor, labels: Tensor, no_noise: Tensor, step: str) -> None:
        with torch.no_grad():
            rows = self._rows(images)
            real = class_means(self.features(rows, labels), labels, self.facts.classes)
        self._train_top(real, no_noise, step)
        self._train_conv2(
            lambda clipped: [part.float() for part in clipped(rows, labels)], len(labels), real, no_noise, step
        )
        self._train_generator(no_noise, step, 1.0)

    def _rows(self, images: Tensor) -> Tensor:
        """What conv1 makes of images in [0, 1], (b, maps * side * side)."""
        rows: Tensor = self.critic.conv1(images.to(self.device)).flatten(1)
        return rows

    def _state(self) -> dict[str, Any]:
        """What a resumed run goes on from; all of it follows from noisy sums."""
        return {
            "features": self.features.state_dict(),
            "top": self.top.state_dict(),
            "optimizers": [self.top_optimizer.state_dict(), self.conv2_optimizer.state_dict()],
            "generator": self.of_generator.state(),
            "means": self.means.state(),
            "replay": self.replay.kept,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.features.load_state_dict(state["features"])
        self.top.load_state_dict(state["top"])
        self.top_optimizer.load_state_dict(state["optimizers"][0])
        self.conv2_optimizer.load_state_dict(state["optimizers"][1])
        self.of_generator.load(state["generator"])
        self.means.load(state["means"])
        self.replay.kept = [(rows.to(self.device), labels.to(self.device)) for rows, labels in state["replay"]]


def _build(config: DpafConfig, facts: PublicFacts, seed: int) -> AggregatingCritic:
    return AggregatingCritic(
        Layout.parse(config.layout), facts.shape, facts.classes, wavelets=config.conv1 == "wavelets",
        conv1_width=config.conv1_width, width=config.width, tanh=config.tanh, seed=seed,
    )  # fmt: skip


def _event(label: str, noise: float, batch: int, steps: int, facts: PublicFacts) -> Event:
    rate = sampling_rate_for(min(batch, facts.units), facts.units)
    return Event(label=label, noise_multiplier=noise, sampling_rate=rate, count=steps)


def _descend(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
