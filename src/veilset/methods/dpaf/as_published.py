"""DPAF's Algorithm 1 as published. It has NO guarantee (docs/methods/dpaf.md): for research on what it would give.

Layers above conv1 are trained without noise on the same images, and conv2* through the aggregate without noise.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.tensors import to_inputs
from veilset.dpsgd import ClippedGradients
from veilset.methods.base import Context
from veilset.methods.dpaf.aggregate import (
    block_means,
    loss_of_generated,
    loss_on_noisy_aggregate,
    loss_through_noisy_aggregate,
    upstream_gradient,
)
from veilset.methods.dpaf.config import DpafSettings
from veilset.methods.dpaf.conv1 import classifier_of, squared_error
from veilset.methods.dpaf.critic import AggregatingCritic
from veilset.methods.shared.gan import GeneratorTraining

_LEARNING_RATE, _LARGEST_BATCH = 0.002, 256


def train_as_published(
    settings: DpafSettings, critic: AggregatingCritic, network: nn.Module, records: Records, context: Context
) -> nn.Module:
    """Lines 3 to 20; returns the generator `network`, trained. Privacy: none."""
    generator = GeneratorTraining(
        network, learning_rate=settings.generator_learning_rate, ema_decay=settings.ema_decay, seed=context.seed
    )
    batch_size = min(settings.batch, _LARGEST_BATCH)
    coins, noise = numpy_generator(context.seed, "published batches"), torch_generator(context.seed, "published noise")
    classes = len(records.class_names)

    def batch(times: int = 1) -> tuple[Tensor, Tensor]:
        size = min(times * batch_size, len(records.labels))
        rows = np.sort(coins.choice(len(records.labels), size, replace=False))
        return to_inputs(torch.from_numpy(records.read(rows))), torch.from_numpy(records.labels[rows])

    def noisy(total: Tensor, bound: float) -> Tensor:
        return total + settings.published_noise * bound * torch.randn(total.shape, generator=noise)

    if any(True for _ in critic.conv1.parameters()):
        _published_conv1(settings, critic, classes, batch, noisy, context)
    features, top = critic.features, critic.top
    upstream = torch.zeros(critic.blocks, features.width)
    clipping = ClippedGradients(
        features,
        lambda made, labels: loss_through_noisy_aggregate(made, critic.block_of(labels), upstream),
        settings.clip_norm,
        keep_fraction=settings.keep_fraction,
        keep_signs=settings.keep_signs,
    )

    def means(rows: Tensor, labels: Tensor) -> Tensor:
        return block_means(features(rows, labels), critic.block_of(labels), critic.blocks)

    of_top = torch.optim.Adam(top.parameters(), lr=_LEARNING_RATE, betas=(0.5, 0.99))
    of_conv2 = torch.optim.Adam(features.parameters(), lr=_LEARNING_RATE)
    for step in range(settings.steps):
        images, labels = batch()
        with torch.no_grad():
            made, own = generator.draw(batch_size, "critic")
            plain = means(critic.rows(images), labels)
            real = noisy(plain, features.bound * critic.blocks / batch_size)  # DPAGG
            generated = means(critic.rows(made), own)
        of_top.zero_grad()
        loss_on_noisy_aggregate(top, real, generated).backward()  # type: ignore[no-untyped-call]
        of_top.step()
        if (step + 1) % settings.mu == 0:
            images, labels = batch(settings.mu)
            with torch.no_grad():
                rows = critic.rows(images)
                plain = means(rows, labels)
            upstream, _ = upstream_gradient(top, plain)  # AGG: this is where one record moves all gradients
            for parameter, total in zip(clipping.parameters, clipping.sum((rows, labels), labels), strict=True):
                parameter.grad = noisy(total.float(), settings.clip_norm) / len(labels)
            of_conv2.step()
        if (step + 1) % settings.n_critic == 0:
            made, own = generator.draw(batch_size, "step")
            generator.descend(loss_of_generated(top, features(critic.rows(made), own), critic.block_of(own)))
    return generator.finish()


def _published_conv1(
    settings: DpafSettings,
    critic: AggregatingCritic,
    classes: int,
    batch: Callable[[], tuple[Tensor, Tensor]],
    noisy: Callable[[Tensor, float], Tensor],
    context: Context,
) -> None:
    """Lines 3 to 5: SGD on the upper layers and DPSGD on conv1, in one round on the same batch."""
    network = classifier_of(critic.conv1, critic.conv1.maps, classes, tanh=settings.tanh, seed=context.seed)
    network.rest.requires_grad_(False)
    clipping = ClippedGradients(
        network,
        squared_error,
        settings.conv1_clip_norm,
        keep_fraction=settings.keep_fraction,
        keep_signs=settings.keep_signs,
    )
    of_conv1 = torch.optim.SGD(critic.conv1.parameters(), lr=settings.conv1_learning_rate)
    of_rest = torch.optim.SGD(network.rest.parameters(), lr=0.05)
    for _ in range(settings.conv1_steps):
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
            parameter.grad = noisy(total.float(), settings.conv1_clip_norm) / len(labels)
        of_rest.step()
        of_conv1.step()
    critic.conv1.requires_grad_(False)
