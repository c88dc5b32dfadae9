"""Trajectories of experts, and images that lead a network along them.

Cazenavette et al., "Dataset distillation by matching training trajectories" (CVPR 2022). An expert's weights are kept
every few steps as one flat vector; images and a step size are then learned so that training on the images follows.
Nothing here reads private rows.
"""

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import torch_generator
from veilset.methods.pldk.config import MatchingSettings
from veilset.training.augment import AugmentConfig, augment

_SAVE_EVERY = 20
# Keeps the logits of black and white pixels finite.
_EDGE = 0.02


class Trajectory:
    """The weights of one expert on its way, as flat vectors; on disk where a place is given."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self.points: list[Tensor] = []
        if place is not None and place.exists():
            self.points = list(torch.load(place, weights_only=True))

    def add(self, number: int, network: nn.Module) -> None:
        """Keep the weights as point `number`; one that is kept already stays."""
        if number < len(self.points):
            return
        self.points.append(flatten(network))
        if self.place is not None:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            partial = self.place.with_suffix(".part")
            torch.save(self.points, partial)
            partial.replace(self.place)


def flatten(network: nn.Module) -> Tensor:
    """The parameters of `network` as one flat vector of its own."""
    return torch.cat([parameter.detach().cpu().flatten() for parameter in network.parameters()])


def unflatten(network: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """The parameters of `network` by name, as views of a flat vector."""
    wanted = sum(parameter.numel() for parameter in network.parameters())
    if wanted != len(flat):
        raise VeilsetError(f"Expected {wanted} weights, got {len(flat)}: the trajectory is of another network.")
    parts, start = {}, 0
    for name, parameter in network.named_parameters():
        parts[name] = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return parts


def to_logits(images: Tensor) -> Tensor:
    """Images in [0, 1] as the logits of their pixels, a leaf to be moved: no move leaves [0, 1]."""
    return torch.logit(images.clamp(_EDGE, 1 - _EDGE)).requires_grad_()


def image_optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """What moves images, and what is learned beside them."""
    return torch.optim.Adam(groups, betas=(0.5, 0.99))


class Matching:
    """Images and a step size in the making."""

    def __init__(
        self,
        network: nn.Module,
        trajectories: list[Trajectory],
        images: Tensor,
        labels: Tensor,
        settings: MatchingSettings,
        augmentation: AugmentConfig | None,
        seed: int,
    ) -> None:
        if min(len(trajectory.points) for trajectory in trajectories) <= settings.expert_points:
            raise InputError(
                f"Expected trajectories of more than {settings.expert_points} points. Train experts for more steps, or "
                "lower expert_points."
            )
        self.network, self.trajectories, self.settings, self.seed = network.eval(), trajectories, settings, seed
        self.labels, self.augmentation = labels, augmentation
        self.logits = to_logits(images)
        self.log_step = torch.tensor(math.log(settings.first_step)).requires_grad_()
        self.optimizer = image_optimizer(
            [{"params": [self.logits], "lr": settings.image_rate}, {"params": [self.log_step], "lr": 0.01}]
        )
        self.iteration = 0
        self.losses: list[float] = []

    @property
    def images(self) -> Tensor:
        """In [0, 1], (n, C, H, W)."""
        return torch.sigmoid(self.logits)

    def run(self, place: Path | None = None, progress: Progress = SILENT) -> Tensor:
        """All iterations, from where an earlier part of this run stopped; the images (n, C, H, W) in [0, 1]."""
        if place is not None and place.exists():
            self._load(torch.load(place, weights_only=True))
        with progress.task("distilling", self.settings.iterations - self.iteration) as task:
            while self.iteration < self.settings.iterations:
                self.advance()
                task.advance()
                if place is not None and self.iteration % _SAVE_EVERY == 0:
                    self._save(place)
        return self.images.detach()

    def advance(self) -> None:
        """Move the images and the step size once."""
        coins = torch_generator(self.seed, f"matching {self.iteration}")
        points = self.trajectories[int(torch.randint(len(self.trajectories), (), generator=coins))].points
        last = len(points) - 1 - self.settings.expert_points
        start = int(torch.randint(min(last, round(self.settings.latest_start * last)) + 1, (), generator=coins))
        target = points[start + self.settings.expert_points]
        weights = points[start].clone().requires_grad_()
        images, step = self.images, self.log_step.exp()
        for _ in range(self.settings.student_steps):
            rows = torch.randperm(len(images), generator=coins)[: self.settings.match_batch]
            seed = int(torch.randint(2**31, (), generator=coins))
            arguments = (weights, images[rows], self.labels[rows], step, seed)
            weights = (
                checkpoint(self._train, *arguments, use_reentrant=False)
                if self.settings.low_memory
                else self._train(*arguments)
            )
        loss = (weights - target).square().sum() / (points[start] - target).square().sum().clamp_min(1e-12)
        if not bool(torch.isfinite(loss)):
            raise VeilsetError(f"Matching diverged at iteration {self.iteration}. Lower first_step or image_rate.")
        gradients = torch.autograd.grad(loss, [self.logits, self.log_step])
        self.logits.grad, self.log_step.grad = gradients
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.iteration += 1

    def _train(self, weights: Tensor, images: Tensor, labels: Tensor, step: Tensor, seed: int) -> Tensor:
        """One step of training on images, through which gradients flow."""
        if self.augmentation is not None:
            images = augment(images, self.augmentation, torch.Generator().manual_seed(seed))
        logits = functional_call(self.network, unflatten(self.network, weights), (images,))
        loss = functional.cross_entropy(logits, labels)
        (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
        return weights - step * gradient

    def _save(self, place: Path) -> None:
        content = io.BytesIO()
        state = {"logits": self.logits.detach(), "log_step": self.log_step.detach()}
        torch.save(state | {"optimizer": self.optimizer.state_dict(), "iteration": self.iteration}, content)
        write_whole(place, content.getvalue())

    def _load(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.logits.copy_(state["logits"])
            self.log_step.copy_(state["log_step"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = int(state["iteration"])
