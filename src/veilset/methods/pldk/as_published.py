"""PLDK as the thesis has it: teacher, experts and sums without noise. It has NO guarantee: for research alone."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.core.records import Images, Labels, Records
from veilset.data.tensors import as_floats
from veilset.methods.base import Context
from veilset.methods.pldk.config import PldkSettings
from veilset.methods.pldk.trajectories import Trajectory
from veilset.privacy.session import ClippedSum
from veilset.training.augment import MILD, augment
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig

Plain = tuple[Images, Labels]
"""Private images and labels themselves."""

_TEACHER_IMAGES_SEEN = 100_000
_EXPERT_BATCH = 256


def read_all(records: Records) -> Plain:
    """All images and labels. Privacy: none."""
    labels = np.array(records.labels)
    return records.read(np.arange(len(labels))), labels


def train_plain_teacher(network: nn.Module, plain: Plain, context: Context) -> nn.Module:
    """Train the teacher without noise. Privacy: none."""
    epochs = min(50, max(2, round(_TEACHER_IMAGES_SEEN / len(plain[1]))))
    return train_classifier(
        network.to(context.device), *plain, config=TrainingConfig(epochs=epochs), seed=context.seed,
        device=context.device,
    )  # fmt: skip


def train_plain_expert(
    network: nn.Module, trajectory: Trajectory, plain: Plain, settings: PldkSettings, seed: int
) -> None:
    """Train an expert (equation 4.1) without noise, and keep its weights every few steps. Privacy: none."""
    images, labels = map(torch.tensor, plain)
    coins, device = torch_generator(seed, "batches"), next(network.parameters()).device
    optimizer = torch.optim.SGD(network.parameters(), lr=settings.expert_rate / 2, momentum=settings.expert_momentum)
    trajectory.add(0, network)
    for step in range(1, settings.expert_steps + 1):
        rows = torch.randint(len(labels), (min(_EXPERT_BATCH, len(labels)),), generator=coins)
        seen = as_floats(images[rows])
        if settings.augmented:
            seen = augment(seen, MILD, coins)
        loss = functional.cross_entropy(network(seen.to(device)), labels[rows].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % settings.expert_every == 0:
            trajectory.add(step // settings.expert_every, network)


class PlainSums:
    """Sums over random batches without noise, in the form of a session's steps. Privacy: none."""

    keeps_now = False

    def __init__(self, plain: Plain, *, batch: int, count: int, seed: int) -> None:
        self.total, self.steps_left = count, count
        self._images, self._labels = map(torch.tensor, plain)
        self._batch = min(batch, len(self._labels))
        self._coins = torch_generator(seed, "plain sums")

    def keep(self, state: object) -> None:
        """Nothing is kept."""

    def kept(self) -> None:
        """Nothing is leased, so nothing was kept."""

    def step(self, clipped_sum: ClippedSum) -> list[Tensor]:
        """The sum over the next batch."""
        self.steps_left -= 1
        rows = torch.randperm(len(self._labels), generator=self._coins)[: self._batch]
        return list(clipped_sum(self._images[rows], self._labels[rows]))
