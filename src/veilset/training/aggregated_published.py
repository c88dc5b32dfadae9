"""DPAF's Algorithm 1 as it is published. It has NO guarantee (docs/dpaf.md): for research on what it would give.

Layers above conv1 are trained without noise on the same images, and conv2* through the aggregate without noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.models.aggregation import AggregatingCritic
from veilset.training.aggregated import (
    class_means,
    loss_of_generated,
    loss_on_noisy_aggregate,
    loss_through_noisy_aggregate,
    upstream_gradient,
)
from veilset.training.conv1 import classifier_of, squared_error
from veilset.training.dpsgd import ClippedGradients
from veilset.training.dpsgd.trainer import to_inputs
from veilset.training.gan import GeneratorTraining
from veilset.training.teachers.fitting import Context


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """The numbers of Algorithm 1. The noise multiplier is one for all three places, as nothing is accounted for."""

    steps: int
    batch: int
    mu: int
    n_critic: int
    clip_norm: float
    keep_fraction: float
    noise_multiplier: float = 1.0
    learning_rate: float = 0.002
    tanh: bool = False


def train_as_published(
    run: PublishedRun, critic: AggregatingCritic, generator: GeneratorTraining, records: Records, context: Context
) -> nn.Module:
    """Lines 3 to 20. Privacy: none."""
    coins, noise = numpy_generator(context.seed, "published batches"), torch_generator(context.seed, "published noise")
    classes = len(records.class_names)

    def batch(times: int = 1) -> tuple[Tensor, Tensor]:
        size = min(times * run.batch, len(records.labels))
        rows = np.sort(coins.choice(len(records.labels), size, replace=False))
        return to_inputs(torch.from_numpy(records.read(rows))), torch.from_numpy(records.labels[rows])

    def noisy(total: Tensor, bound: float) -> Tensor:
        return total + run.noise_multiplier * bound * torch.randn(total.shape, generator=noise)

    if any(True for _ in critic.conv1.parameters()):
        _published_conv1(run, critic, classes, batch, noisy, context)
    features, top = critic.features, critic.top
    upstream = torch.zeros(classes, features.width)
    clipping = ClippedGradients(
        features,
        lambda made, labels: loss_through_noisy_aggregate(made, labels, upstream),
        run.clip_norm,
        keep_fraction=run.keep_fraction,
    )
    of_top = torch.optim.Adam(top.parameters(), lr=run.learning_rate, betas=(0.5, 0.99))
    of_conv2 = torch.optim.Adam(features.parameters(), lr=run.learning_rate)
    for step in range(run.steps):
        images, labels = batch()
        with torch.no_grad():
            made, own = generator.draw(run.batch, "critic")
            plain = class_means(features(critic.conv1(images).flatten(1), labels), labels, classes)
            real = noisy(plain, features.bound * classes / run.batch)  # DPAGG
            generated = class_means(features(critic.conv1(made).flatten(1), own), own, classes)
        of_top.zero_grad()
        loss_on_noisy_aggregate(top, real, generated).backward()  # type: ignore[no-untyped-call]
        of_top.step()
        if (step + 1) % run.mu == 0:
            images, labels = batch(run.mu)
            with torch.no_grad():
                rows = critic.conv1(images).flatten(1)
                plain = class_means(features(rows, labels), labels, classes)
            upstream, _ = upstream_gradient(top, plain)  # AGG: this is where one record moves all gradients
            for parameter, total in zip(clipping.parameters, clipping.sum((rows, labels), labels), strict=True):
                parameter.grad = noisy(total, run.clip_norm) / len(labels)
            of_conv2.step()
        if (step + 1) % run.n_critic == 0:
            made, own = generator.draw(run.batch, "step")
            generator.descend(loss_of_generated(top, features(critic.conv1(made).flatten(1), own), own))
    return generator.finish()


def _published_conv1(
    run: PublishedRun,
    critic: AggregatingCritic,
    classes: int,
    batch: Callable[[], tuple[Tensor, Tensor]],
    noisy: Callable[[Tensor, float], Tensor],
    context: Context,
) -> None:
    """Lines 3 to 5: SGD on the upper layers and DPSGD on conv1, in one round on the same batch."""
    network = classifier_of(critic.conv1, critic.conv1.maps, classes, tanh=run.tanh, seed=context.seed)
    network.rest.requires_grad_(False)
    clipping = ClippedGradients(network, squared_error, run.clip_norm)
    of_conv1 = torch.optim.SGD(critic.conv1.parameters(), lr=0.5)
    of_rest = torch.optim.SGD(network.rest.parameters(), lr=0.05)
    for _ in range(run.steps):
        images, labels = batch()
        gradients = clipping.sum(images, labels)
        network.rest.requires_grad_(True)
        loss = squared_error(network(images), labels).mean()
        for parameter, gradient in zip(
            network.rest.parameters(), torch.autograd.grad(loss, list(network.rest.parameters())), strict=True
        ):
            parameter.grad = gradient
        network.rest.requires_grad_(False)
        for parameter, total in zip(clipping.parameters, gradients, strict=True):
            parameter.grad = noisy(total, run.clip_norm) / len(labels)
        of_rest.step()
        of_conv1.step()
    critic.conv1.requires_grad_(False)
