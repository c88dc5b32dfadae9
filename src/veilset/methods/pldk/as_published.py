"""PLDK as the thesis has it: teacher, experts and sums without noise. It has NO guarantee: for research alone."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.progress import Progress
from veilset.core.randomness import torch_generator
from veilset.core.records import Images, Labels, Records
from veilset.data.tensors import as_floats
from veilset.methods.base import Context
from veilset.methods.pldk.config import PldkSettings
from veilset.methods.pldk.trajectories import Trajectory
from veilset.privacy.mechanisms.resuming import Training
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
    optimizer = torch.optim.SGD(network.parameters(), lr=settings.expert_rate / 4, momentum=0.9)
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

    def __init__(self, plain: Plain, *, batch: int, count: int, seed: int) -> None:
        self.count, self.steps_left = count, count
        self._images, self._labels = map(torch.tensor, plain)
        self._batch = min(batch, len(self._labels))
        self._coins = torch_generator(seed, "plain sums")

    def resume(self, training: Training) -> bool:  # noqa: ARG002
        """Nothing is leased, so nothing was kept."""
        return False

    def each(self, training: Training, progress: Progress, name: str) -> Iterator[int]:  # noqa: ARG002
        """The number of every sum; the caller takes it."""
        with progress.task(name, self.count) as task:
            while self.steps_left:
                yield self.count - self.steps_left
                task.advance()

    def step(self, clipped_sum: ClippedSum) -> list[Tensor]:
        """The sum over the next batch."""
        self.steps_left -= 1
        rows = torch.randperm(len(self._labels), generator=self._coins)[: self._batch]
        return list(clipped_sum(self._images[rows], self._labels[rows]))
