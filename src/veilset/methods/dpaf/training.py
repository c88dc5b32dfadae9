"""Critic and generator of DPAF in turn (Algorithm 1, lines 7 to 20), between what method.py asks of private images.

Nothing here meets a private image: noisy sums come in, and all that is made of them is post-processing.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.core.records import Records
from veilset.data.tensors import to_inputs
from veilset.dpsgd import ClippedGradients
from veilset.methods.base import Context
from veilset.methods.dpaf.aggregate import (
    NoisyMeans,
    block_means,
    loss_of_generated,
    loss_on_noisy_aggregate,
    loss_through_noisy_aggregate,
    upstream_gradient,
)
from veilset.methods.dpaf.config import DpafSettings
from veilset.methods.dpaf.critic import AggregatingCritic
from veilset.methods.shared.gan import GeneratorTraining, Replay, public_batches, too_alike
from veilset.privacy.vault import PublicFacts


class AggregatedTraining:
    """What is trained, with the state that a resumed run goes on from."""

    def __init__(
        self,
        settings: DpafSettings,
        critic: AggregatingCritic,
        generator: nn.Module,
        teacher: nn.Module | None,
        facts: PublicFacts,
        context: Context,
    ) -> None:
        self.settings, self.critic, self.teacher, self.facts = settings, critic, teacher, facts
        self.seed, self.device = context.seed, context.device
        self.features, self.top = critic.features, critic.top
        self.upstream = torch.ones(critic.blocks, self.features.width, device=self.device)
        self.upstream_length = 1.0
        self.gradients = ClippedGradients(
            self.features,
            lambda made, labels: loss_through_noisy_aggregate(made, critic.block_of(labels), self.upstream),
            settings.clip_norm,
            keep_fraction=settings.keep_fraction,
            keep_signs=settings.keep_signs,
        )
        self.each_block = torch.arange(critic.blocks, device=self.device)
        # The decay makes the critic forget within one aggregate: one that remembers is late, and the game swings. SGD,
        # because Adam would give coordinates that hold noise as much weight as those that hold the difference.
        own = list(self.top.of_class.parameters()) if self.top.of_class is not None else []
        shared = [value for value in self.top.parameters() if all(value is not other for other in own)]
        groups: list[dict[str, Any]] = [{"params": shared}]
        if own:
            groups.append({"params": own, "lr": 1 / (settings.top_decay * settings.top_steps)})
        self.top_optimizer = torch.optim.SGD(groups, lr=settings.critic_learning_rate, weight_decay=settings.top_decay)
        self.conv2_optimizer = torch.optim.Adam(self.gradients.parameters, lr=settings.conv2_learning_rate)
        self.of_generator = GeneratorTraining(
            generator,
            learning_rate=settings.generator_learning_rate,
            ema_decay=settings.ema_decay,
            seed=context.seed,
            device=context.device,
        )
        self.means = NoisyMeans(critic.blocks, self.features.width, settings.memory)
        self.replay = Replay(settings.replay)

    def try_on_random_images(self) -> None:
        """Fail before anything is paid or read, where a layer mixes images."""
        images = torch.randint(0, 256, (3, *self.facts.shape), generator=torch_generator(0, "trial"), dtype=torch.uint8)
        labels = (torch.arange(3) % self.facts.classes).to(self.device)
        self.gradients.check((self.rows(to_inputs(images)), labels), labels)

    def begin(self, public: Records | None) -> None:
        """What comes before the first aggregate: generated images to compare with, and turns on public ones."""
        self._see_generated()
        self._pretrain(public)

    def rows(self, images: Tensor) -> Tensor:
        """What conv1 makes of images in [0, 1], (b, maps * side * side)."""
        return self.critic.rows(images.to(self.device))

    def averaged(self, sums: Tensor, spread: float, expected: float) -> tuple[Tensor, Tensor]:
        """Take in a noisy aggregate; means (blocks, width) of the last ones, and their noise (blocks, 1)."""
        self.means.add(sums)
        real, noise = self.means.read(self.features.bound, spread, expected)
        return real.to(self.device), noise.to(self.device)

    def train_top(self, real: Tensor, noise: Tensor, step: str) -> None:
        """Steps of conv3* and FC* by L_BCE."""
        means = self._generated_means().detach()
        parameters = list(self.top.parameters())
        for turn in range(self.settings.top_steps):
            loss = loss_on_noisy_aggregate(self.top, real, self._like_real(means, noise, f"{step}/{turn}"))
            _descend(self.top_optimizer, parameters, list(torch.autograd.grad(loss * len(real), parameters)))

    def look_through(self, real: Tensor) -> None:
        """Take the upstream gradient of L'_BCE at the (noisy) aggregate of real images, for `gradients`."""
        self.upstream, self.upstream_length = upstream_gradient(self.top, real)

    def train_conv2(self, sums: Sequence[Tensor], batch: float, noise: Tensor, step: str) -> None:
        """A step of conv2*: its (noisy) gradients of real images, summed, and those of generated ones."""
        parameters = self.gradients.parameters
        generated = self._like_real(self._generated_means(), noise, f"{step}/conv2")
        half = functional.softplus(self.top(generated, self.each_block)).mean()
        free = torch.autograd.grad(half, parameters)
        scale = self.upstream_length / batch
        both = [total.to(self.device) * scale + own for total, own in zip(sums, free, strict=True)]
        _descend(self.conv2_optimizer, list(parameters), both)

    def train_generator(self, noise: Tensor, step: str, rate: float) -> None:
        """A step of the generator by L''_BCE, the teacher's word, and a push against collapse."""
        settings = self.settings
        images, labels = self.of_generator.draw(settings.generated_batch, "step")
        rows = self.rows(images)
        seen = self.features(rows, labels)
        if settings.generator_sees == "aggregate":
            with torch.no_grad():
                older, of_older = self.replay.all()
                kept = self.features(older, of_older)
            means = self._means(torch.cat([seen, kept]), torch.cat([labels, of_older]))
            seen = self._like_real(means, noise, f"{step}/generator")
        aggregated = settings.generator_sees == "aggregate"
        loss = loss_of_generated(self.top, seen, self.each_block if aggregated else self.critic.block_of(labels))
        if self.teacher is not None and settings.teacher_weight:
            shown = slice(settings.teacher_images)
            loss = loss + settings.teacher_weight * functional.cross_entropy(self.teacher(images[shown]), labels[shown])
        loss = loss + too_alike(images, self.facts.classes, settings.least_difference)
        self.of_generator.descend(loss, rate)
        self.replay.add(rows, labels)

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from; all of it follows from noisy sums."""
        return {
            "features": self.features.state_dict(),
            "top": self.top.state_dict(),
            "optimizers": [self.top_optimizer.state_dict(), self.conv2_optimizer.state_dict()],
            "generator": self.of_generator.state(),
            "means": self.means.state(),
            "replay": self.replay.kept,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        self.features.load_state_dict(state["features"])
        self.top.load_state_dict(state["top"])
        self.top_optimizer.load_state_dict(state["optimizers"][0])
        self.conv2_optimizer.load_state_dict(state["optimizers"][1])
        self.of_generator.load(state["generator"])
        self.means.load(state["means"])
        self.replay.kept = [(rows.to(self.device), labels.to(self.device)) for rows, labels in state["replay"]]

    def _generated_means(self) -> Tensor:
        rows, labels = self.replay.all()
        return self._means(self.features(rows, labels), labels)

    def _means(self, features: Tensor, labels: Tensor) -> Tensor:
        return block_means(features, self.critic.block_of(labels), self.critic.blocks)

    def _like_real(self, means: Tensor, noise: Tensor, purpose: str) -> Tensor:
        """A generated aggregate with as much noise as the real one has: noise alone must not tell them apart."""
        drawn = torch.randn(means.shape, generator=torch_generator(self.seed, f"generated aggregate/{purpose}"))
        return means + noise * drawn.to(self.device)

    def _see_generated(self) -> None:
        """Fill the replay before there is a first generator step."""
        with torch.no_grad():
            made, labels = self.of_generator.draw(self.settings.generated_batch, "start")
            self.replay.add(self.rows(made), labels)

    def _pretrain(self, public: Records | None) -> None:
        """The same turns on public images under labels drawn at random, without noise (Table 12); free."""
        settings = self.settings
        if settings.pretrained == "nothing":
            return
        fresh = copy.deepcopy(self.of_generator.state())
        no_noise = torch.zeros(self.critic.blocks, 1, device=self.device)
        batches = public_batches(public, self.facts, settings.pretraining_steps, self.seed)
        for step, (images, labels) in enumerate(batches):
            self._public_turn(images, labels.to(self.device), no_noise, f"public {step}")
        if settings.pretrained == "critic":
            self.of_generator.load(fresh)
            self.replay = Replay(settings.replay)
            self._see_generated()

    def _public_turn(self, images: Tensor, labels: Tensor, no_noise: Tensor, step: str) -> None:
        with torch.no_grad():
            rows = self.rows(images)
            real = self._means(self.features(rows, labels), labels)
        self.train_top(real, no_noise, step)
        self.look_through(real)
        sums = [part.float() for part in self.gradients.sum((rows, labels), labels)]
        self.train_conv2(sums, len(labels), no_noise, step)
        self.train_generator(no_noise, step, 1.0)


def _descend(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
