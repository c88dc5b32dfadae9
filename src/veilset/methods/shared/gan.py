"""What GANs share (dpaf, dpgan, sanitized_gan; pldk its labels): losses, their balance, a generator in training.

Nothing here reads private rows. The loss of real images is a function of one row, so that a mechanism can clip and sum
it; everything about generated images is free, since whoever holds the released generator could compute it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Images, Records
from veilset.data.tensors import as_bytes, to_inputs
from veilset.methods.shared.choices import AdversarialLoss
from veilset.privacy.vault import PublicFacts
from veilset.training.settings import WeightAverage

Critic = Callable[[Tensor, Tensor], Tensor]
"""Images (b, C, H, W) and classes (b,) to one logit each, (b,); high means real."""

_AT_ONCE = 500
_PUBLIC_BATCH = 256


def real_losses(logits: Tensor, kind: AdversarialLoss) -> Tensor:
    """The critic's loss of each real image, (b,), from its own logit alone."""
    if kind == "bce":
        return functional.softplus(-logits)
    return functional.relu(1 - logits) if kind == "hinge" else -logits


def generated_losses(logits: Tensor, kind: AdversarialLoss) -> Tensor:
    """The critic's loss of each generated image, (b,)."""
    if kind == "bce":
        return functional.softplus(logits)
    return functional.relu(1 + logits) if kind == "hinge" else logits


def generator_losses(logits: Tensor, kind: AdversarialLoss) -> Tensor:
    """The generator's loss of each of its images, (b,): the non-saturating form of "bce"."""
    return functional.softplus(-logits) if kind == "bce" else -logits


def penalty_on_generated(critic: Critic, images: Tensor, labels: Tensor) -> Tensor:
    """The mean squared length of the critic's gradient at generated images (R2 of Mescheder et al. 2018).

    A penalty at private images, or between private and generated ones, would be a private quantity; this one is free.
    """
    points = images.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(critic(points, labels).sum(), points, create_graph=True)
    return gradient.flatten(1).square().sum(dim=1).mean()


def too_alike(images: Tensor, classes: int, least: float) -> Tensor:
    """How far two images of one class fall short of a wanted difference, on average; 0 where they do not.

    The pairs are a batch's images i and i + classes, as `GeneratorTraining.draw` orders them. Their difference is the
    root mean square over pictures shrunk to a quarter, where fine noise does not count as variety. A batch without a
    pair gives 0.
    """
    if len(images) <= classes:
        return images.new_zeros(())
    small = functional.avg_pool2d(images, 4, ceil_mode=True)
    squares = (small[:-classes] - small[classes:]).square().flatten(1).mean(dim=1)
    return functional.relu(least - (squares + 1e-8).sqrt()).mean()


def public_batches(
    public: Records | None, facts: PublicFacts, count: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches of public images in [0, 1] under labels drawn at random, for pre-training."""
    if count and (public is None or tuple(public.shape) != tuple(facts.shape)):
        raise InputError(f"Pre-training needs public images of the shape {facts.shape}. Pass --public.")
    coins = numpy_generator(seed, "public batches")
    for _ in range(count):
        assert public is not None
        rows = np.sort(coins.choice(len(public.labels), min(_PUBLIC_BATCH, len(public.labels)), replace=False))
        labels = torch.from_numpy(coins.integers(facts.classes, size=len(rows)))
        yield to_inputs(torch.from_numpy(public.read(rows))), labels


class Balance:
    """How many critic steps a generator step waits for, by a public rule.

    The critic's accuracy on generated images is public. Where it falls below `floor` the critic no longer leads, and
    its number of steps is doubled; where it stays above `ceiling` the number is halved (after Bie et al. 2023, who
    only double).
    """

    def __init__(self, steps: int, most: int, *, floor: float = 0.6, ceiling: float = 0.95) -> None:
        if not 1 <= steps <= most or not 0 <= floor < ceiling <= 1:
            raise InputError(
                f"Expected 1 <= critic_steps <= most_critic_steps and a floor below a ceiling, got {steps}, {most}, "
                f"{floor} and {ceiling}."
            )
        self.least, self.most, self.steps = steps, most, steps
        self.floor, self.ceiling = floor, ceiling
        self.accuracy = 0.5 * (floor + ceiling)
        self.waited = 0

    def due(self) -> bool:
        """Count a critic step; whether the generator is next."""
        self.waited += 1
        if self.waited < self.steps:
            return False
        self.waited = 0
        return True

    def observe(self, logits: Tensor) -> None:
        """Take in the critic's logits of generated images: below zero is right."""
        self.accuracy += 0.1 * (float((logits < 0).float().mean()) - self.accuracy)
        wanted = self.steps
        if self.accuracy < self.floor:
            wanted = min(self.most, 2 * self.steps)
        elif self.accuracy > self.ceiling:
            wanted = max(self.least, self.steps // 2)
        if wanted != self.steps:
            self.steps, self.accuracy = wanted, 0.5 * (self.floor + self.ceiling)

    def state(self) -> dict[str, Any]:
        """Plain data that `load` takes up."""
        return {"steps": self.steps, "accuracy": self.accuracy, "waited": self.waited}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.steps, self.accuracy, self.waited = int(state["steps"]), float(state["accuracy"]), int(state["waited"])


class Replay:
    """The rows and labels of the last few generator steps: one small batch alone is a noisy picture of a generator."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Take in a batch in the place of the oldest."""
        self.kept = [*self.kept, (rows.detach(), labels)][-self.batches :]

    def all(self) -> tuple[Tensor, Tensor]:
        """All rows and their labels."""
        rows, labels = zip(*self.kept, strict=True)
        return torch.cat(rows), torch.cat(labels)


class MovingAverage:
    """Of lists of tensors, over about `memory` of them; the first ones count alike, so that it starts without bias."""

    def __init__(self, memory: int) -> None:
        self.memory, self.count = memory, 0
        self.value: list[Tensor] = []

    def add(self, tensors: list[Tensor]) -> list[Tensor]:
        """Take in one list; the average so far."""
        self.count += 1
        share = 1 / min(self.count, self.memory)
        self.value = [old.lerp(new, share) for old, new in zip(self.value or tensors, tensors, strict=True)]
        return self.value

    def state(self) -> dict[str, Any]:
        """Tensors and plain data that `load` takes up."""
        return {"count": self.count, "value": self.value}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.count, self.value = int(state["count"]), list(state["value"])


class GeneratorTraining:
    """A conditional generator, its optimizer and the moving average of its weights, which is what is released.

    Args:
        generator: of models/generators/conditional.py.
        learning_rate: of Adam.
        ema_decay: of the average.
        seed: of latents and labels.
        device: where the generator lives.
        bernoulli: feed it coins of -1 and 1 in the place of normal numbers.
    """

    def __init__(
        self,
        generator: nn.Module,
        *,
        learning_rate: float,
        ema_decay: float = 0.99,
        seed: int = 0,
        device: str = "cpu",
        bernoulli: bool = False,
    ) -> None:
        self.generator = generator.to(device)
        self.classes, self.latent_size = int(generator.classes), int(generator.latent_size)  # type: ignore[arg-type]
        self.learning_rate, self.seed, self.device, self.bernoulli = learning_rate, seed, device, bernoulli
        self.optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate, betas=(0.5, 0.99))
        self.average = WeightAverage(generator, decay=ema_decay)
        self.step = 0

    def draw(self, count: int, purpose: str) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and their labels, every class alike often; gradients flow to the generator.

        The same seed, `purpose` and step give the same latents.
        """
        coins = torch_generator(self.seed, f"generator/{purpose}/{self.step}")
        start = int(torch.randint(self.classes, (), generator=coins))
        labels = ((torch.arange(count) + start) % self.classes).to(self.device)
        latents = draw_latents(count, self.latent_size, coins, bernoulli=self.bernoulli).to(self.device)
        images: Tensor = self.generator(latents, labels)
        return images, labels

    def descend(self, loss: Tensor, rate: float = 1.0) -> None:
        """One step against `loss`, at `rate` times the learning rate. A loss that is not finite raises."""
        if not bool(torch.isfinite(loss)):
            raise VeilsetError(
                f"The generator's loss is not finite after {self.step} steps: training diverged. Lower the learning "
                "rates; what was spent stays spent."
            )
        parameters = list(self.generator.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.learning_rate
        self.optimizer.step()
        self.average.update(self.generator, self.step)
        self.step += 1

    def finish(self) -> nn.Module:
        """The generator with averaged weights, which no longer move."""
        if self.step:
            self.generator.load_state_dict(self.average.state)
        return self.generator.eval().requires_grad_(False)

    def state(self) -> dict[str, Any]:
        """Tensors and plain data that `load` takes up."""
        return {
            "generator": self.generator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state,
            "step": self.step,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier `state`."""
        self.generator.load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, value in state["average"].items():
            self.average.state[name].copy_(value)
        self.step = int(state["step"])


def weighed_alike(real: Tensor, generated: Tensor) -> Tensor:
    """The real half of a linear critic's gradient (classes, d), each class scaled to weigh as the generated half.

    The features' last coordinate is a constant, so the last column is the (noisy) weight of each class: without this, a
    class that is rarer than others among the private images, or clipped more, would look unlike its own images.
    """
    weights, wanted = -real[:, -1:], generated[:, -1:]
    return real * (wanted / weights.clamp(min=0.1 * float(wanted.abs().mean()) + 1e-9)).clamp(0.1, 10)


@torch.no_grad()
def sample_images(generator: nn.Module, labels: NDArray[np.int64], seed: int, *, bernoulli: bool = False) -> Images:
    """8-bit images (b, H, W, C) of these classes, as a release stores them."""
    device = next(generator.parameters()).device
    coins = torch_generator(seed, "generator/samples")
    parts = []
    for part in torch.split(torch.from_numpy(labels), _AT_ONCE):
        size = int(generator.latent_size)  # type: ignore[arg-type]
        latents = draw_latents(len(part), size, coins, bernoulli=bernoulli)
        parts.append(as_bytes(generator(latents.to(device), part.to(device))))
    return torch.cat(parts).numpy()


def draw_latents(count: int, size: int, coins: torch.Generator, *, bernoulli: bool = False) -> Tensor:
    """What a generator is fed, (count, size): normal numbers, or coins of -1 and 1."""
    drawn = torch.randn(count, size, generator=coins)
    return drawn.sign() if bernoulli else drawn


def even_labels(count: int, classes: int) -> NDArray[np.int64]:
    """`count` labels, every class alike often: the class shares of private data are not asked for."""
    return np.arange(count, dtype=np.int64) % classes
