"""Images condensed to what networks see of each class: noisy class means, or noisy class gradients.

Ideas: Zhao and Bilen, "Dataset condensation with distribution matching" (WACV 2023) and "Dataset condensation with
differentiable siamese augmentation" (ICML 2021); with clipped and noisy gradients, Chen, Kerkouche and Fritz, "Private
set generation with discriminative information" (NeurIPS 2022). The privacy argument is in docs/pldk.md.

A round asks one network for one noisy sum. The sum is kept, and images are moved towards all sums kept so far.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed, torch_generator
from veilset.dpsgd.clipping import ClippedGradients
from veilset.dpsgd.exact import block_sum
from veilset.dpsgd.trainer import cross_entropy, to_inputs
from veilset.methods.pldk.trajectories import flatten, image_optimizer, to_logits, unflatten
from veilset.privacy.session import ClippedSum
from veilset.privacy.shapes import in_fixed_batches
from veilset.teachers.teacher import without_head
from veilset.training.augment import MILD, AugmentConfig, augment

Kind = Literal["distribution", "gradient"]

# Only what moves pixels about: it does the same to every image of a step without looking at any.
_ALIKE = AugmentConfig(erase=0.0, contrast=0.0, brightness=0.0, noise=0.0)
# Parts of a row's squared length; a hair below 1 together, so that rounding cannot lengthen it.
_EMBEDDING_PART, _COUNT_PART = math.sqrt(0.9 - 1e-6), math.sqrt(0.1)
_LEAST_COUNT = 0.1  # of what even classes would give
_ROUNDS_AT_ONCE = 10  # leased together; a run that is cut off loses at most so many
# How a network of gradient matching learns from the images between two rounds.
_LEARNING_STEPS, _LEARNING_RATE = 5, 0.05
_CLASSES_AT_ONCE = 5  # compared in one move
_EMBEDDED_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class CondensationConfig:
    """How images are condensed.

    Args:
        networks: rounds; each asks one network for one noisy sum.
        network_batch: units that a network sees on average, as far as there are so many.
        moves: of the images in each round.
        condensing_rate: learning rate of the images.
        restart: rounds after which a network of gradient matching is drawn anew; until then it learns from the images.
    """

    networks: int = 40
    network_batch: int = 4096
    moves: int = 20
    condensing_rate: float = 0.1
    restart: int = 10

    def __post_init__(self) -> None:
        for name in ("networks", "network_batch", "moves", "restart"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not self.condensing_rate > 0:
            raise InputError(f"Expected condensing_rate > 0, got {self.condensing_rate}.")


class Sums(Protocol):
    """What a round needs: `GradientSteps` of a session, or sums without noise."""

    lease_size: int
    steps_left: int

    def step(self, clipped_sum: ClippedSum) -> list[Tensor]:
        """The next sum over a fresh sample."""

    @property
    def lease_used_up(self) -> bool:
        """Whether a state may be kept."""

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep what a resumed run goes on from."""

    def kept(self) -> Mapping[str, Any] | None:
        """What an earlier part of this run kept."""


def class_rows(network: nn.Module, classes: int, seed: int) -> ClippedSum:
    """Sums (classes, d + 1) of embeddings of length at most one, each beside a part that counts.

    Privacy: sensitivity 1 in L2 over the whole sum, because a row is no longer than that and stands in one block;
    assumes that `network` treats every image alone.
    """

    def rows(images: Tensor, labels: Tensor) -> list[Tensor]:
        with torch.no_grad():
            found = in_fixed_batches(
                lambda part: unit_rows(network(alike(to_inputs(part), seed))), (images,), _EMBEDDED_AT_ONCE
            )
        found = torch.cat([_EMBEDDING_PART * found, torch.full((len(found), 1), _COUNT_PART)], dim=1)
        return [block_sum(found, labels, classes, 1.0)]

    return rows


def class_gradients(network: nn.Module, classes: int, clip_norm: float, seed: int) -> ClippedSum:
    """Sums (classes, weights) of gradients, each clipped and in the block of its class.

    Privacy: sensitivity `clip_norm` in L2 over the whole sum; assumes what `ClippedGradients` assumes, which it tries
    on random images first.
    """
    gradients = ClippedGradients(network, cross_entropy, clip_norm)

    def blocks(images: Tensor, labels: Tensor) -> list[Tensor]:
        inputs = in_fixed_batches(lambda part: alike(to_inputs(part), seed), (images,), _EMBEDDED_AT_ONCE)
        sums = [gradients.sum(inputs[labels == label], labels[labels == label]) for label in range(classes)]
        return [torch.stack([torch.cat([part.flatten() for part in block]) for block in sums])]

    return blocks


def unit_rows(found: Tensor) -> Tensor:
    """What a network without its head saw, as rows of length one; nothing, or nothing finite, stays zero."""
    return torch.nan_to_num(functional.normalize(found.flatten(1), dim=1, eps=1e-6), nan=0.0)


def alike(inputs: Tensor, seed: int) -> Tensor:
    """Every image (b, C, H, W) under one transformation, drawn from the seed: siamese augmentation."""
    if not len(inputs):
        return inputs
    one = inputs.reshape(1, -1, *inputs.shape[2:])
    return augment(one, _ALIKE, torch.Generator().manual_seed(seed)).reshape(inputs.shape)


def require_alone(network: nn.Module, shape: tuple[int, int, int]) -> None:
    """Refuse a network that mixes the images of a batch; tried on random ones."""
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(3)
    rows = class_rows(network, 3, seed=0)
    together = rows(images, labels)[0]
    alone = torch.stack([rows(images[k : k + 1], labels[k : k + 1])[0][k] for k in range(3)])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise VeilsetError("The network mixes the images of a batch, so a row bounds nothing. Use another network.")


class Condensation:
    """Images in the making, and the noisy sums that lead them.

    Args:
        kind: what networks are asked for.
        make_network: from a seed to a network with random weights; all networks have one form.
        images: (n, C, H, W) in [0, 1] to start from.
        labels: their classes; every class has an image.
        config: the public settings.
        batch: units of a sum on average.
        clip_norm: of one unit's gradient.
        seed: of networks and transformations, all of them public.
    """

    def __init__(
        self,
        kind: Kind,
        make_network: Callable[[int], nn.Module],
        images: Tensor,
        labels: Tensor,
        config: CondensationConfig,
        *,
        batch: float,
        clip_norm: float,
        seed: int,
    ) -> None:
        self.kind, self.config, self.clip_norm, self.seed = kind, config, clip_norm, seed
        self.batch = batch
        self.labels, self.classes = labels, int(labels.max()) + 1
        self.logits = to_logits(images)
        self.optimizer = image_optimizer([{"params": [self.logits], "lr": config.condensing_rate}])
        self.asked: list[tuple[int, Tensor, Tensor]] = []  # the round, its network's weights, what that saw
        self._make = make_network
        self._form = self._network(0)
        self._try_on_random_images((images.shape[2], images.shape[3], images.shape[1]))

    @property
    def images(self) -> Tensor:
        """In [0, 1], (n, C, H, W)."""
        return torch.sigmoid(self.logits)

    def transformation(self, number: int) -> int:
        """The seed of the transformation that all images of a round share."""
        return derive_seed(self.seed, f"transformation {number}")

    def run(self, sums: Sums, progress: Progress = SILENT) -> Tensor:
        """All rounds, from where an earlier part of this run stopped; the images (n, C, H, W) in [0, 1].

        Privacy: one sum of each round, of the sensitivity that `class_rows` or `class_gradients` has; the rest is
        post-processing of the sums that `sums` made noisy.
        """
        sums.lease_size = _ROUNDS_AT_ONCE
        earlier = sums.kept()
        if earlier is not None:
            self._load(earlier)
        rounds = self.config.networks
        with progress.task("condensing", sums.steps_left) as task:
            for number in range(rounds - sums.steps_left, rounds):
                weights = self._weights(number)
                self.asked.append((number, weights, sums.step(self._question(number, weights))[0].float()))
                for move in range(self.config.moves):
                    self._move(torch_generator(self.seed, f"move {number}/{move}"))
                if sums.lease_used_up:
                    sums.keep(self._state())
                task.advance()
        return self.images.detach()

    def _try_on_random_images(self, shape: tuple[int, int, int]) -> None:
        """Fail before anything is paid or read, where a network mixes images."""
        if self.kind == "distribution":
            require_alone(self._form, shape)
        else:
            coins = torch_generator(self.seed, "random images")
            images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=coins)
            self._question(0, flatten(self._form))(images, torch.arange(3) % self.classes)

    def _network(self, number: int) -> nn.Module:
        network = self._make(derive_seed(self.seed, f"network {number}"))
        return (without_head(network) if self.kind == "distribution" else network).eval()

    def _weights(self, number: int) -> Tensor:
        """Of the network of a round: random, or for gradients also the last one after it learned from the images."""
        if self.kind == "distribution" or number % self.config.restart == 0 or not self.asked:
            return flatten(self._network(number))
        weights, coins = self.asked[-1][1], torch_generator(self.seed, f"learning {number}")
        for _ in range(_LEARNING_STEPS):
            leaf = weights.clone().requires_grad_()
            loss = functional.cross_entropy(self._call(leaf, augment(self.images.detach(), MILD, coins)), self.labels)
            weights = weights - _LEARNING_RATE * torch.autograd.grad(loss, leaf)[0]
        return weights

    def _question(self, number: int, weights: Tensor) -> ClippedSum:
        """What a round asks of private images."""
        network = copy.deepcopy(self._form)
        network.load_state_dict({name: value.clone() for name, value in unflatten(network, weights).items()})
        if self.kind == "distribution":
            return class_rows(network, self.classes, self.transformation(number))
        return class_gradients(network, self.classes, self.clip_norm, self.transformation(number))

    def _move(self, coins: torch.Generator) -> None:
        """Move the images towards what one of the networks saw."""
        number, weights, seen = self.asked[int(torch.randint(len(self.asked), (), generator=coins))]
        images = alike(self.images, self.transformation(number))
        loss = (
            self._from_means(weights, images, seen)
            if self.kind == "distribution"
            else self._from_gradients(weights, images, seen, coins)
        )
        if not bool(torch.isfinite(loss)):
            raise VeilsetError("Condensing diverged. Lower condensing_rate.")
        (self.logits.grad,) = torch.autograd.grad(loss, self.logits)
        self.optimizer.step()

    def _from_means(self, weights: Tensor, images: Tensor, seen: Tensor) -> Tensor:
        """Squared distance of the class means."""
        counts = seen[:, -1:] / _COUNT_PART
        counts = counts.clamp_min(_LEAST_COUNT * self.batch / self.classes)
        rows = unit_rows(self._call(weights, images))
        sums = torch.zeros(self.classes, rows.shape[1]).index_add(0, self.labels, rows)
        means = sums / torch.bincount(self.labels, minlength=self.classes)[:, None]
        return (means - seen[:, :-1] / _EMBEDDING_PART / counts).square().sum()

    def _from_gradients(self, weights: Tensor, images: Tensor, seen: Tensor, coins: torch.Generator) -> Tensor:
        """One less the cosine between gradients, over some classes."""
        leaf, loss = weights.clone().requires_grad_(), torch.zeros(())
        for label in torch.randperm(self.classes, generator=coins)[:_CLASSES_AT_ONCE].tolist():
            own = self.labels == label
            wrong = functional.cross_entropy(self._call(leaf, images[own]), self.labels[own])
            (gradient,) = torch.autograd.grad(wrong, leaf, create_graph=True)
            loss = loss + 1 - functional.cosine_similarity(gradient, seen[label], dim=0)
        return loss

    def _call(self, weights: Tensor, images: Tensor) -> Tensor:
        found: Tensor = functional_call(self._form, unflatten(self._form, weights), (images,))
        return found

    def _state(self) -> dict[str, Any]:
        return {"logits": self.logits.detach(), "optimizer": self.optimizer.state_dict(), "asked": self.asked}

    def _load(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.logits.copy_(state["logits"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.asked = list(state["asked"])


class PlainSums:
    """Sums over random batches without noise, for the form that has no guarantee."""

    def __init__(self, images: Tensor, labels: Tensor, *, batch: int, count: int, seed: int) -> None:
        self.lease_size, self.steps_left, self.lease_used_up = count, count, False
        self._images, self._labels, self._batch = images, labels, min(batch, len(labels))
        self._coins = torch_generator(seed, "plain sums")

    def step(self, clipped_sum: ClippedSum) -> list[Tensor]:
        """The sum over the next batch."""
        self.steps_left -= 1
        rows = torch.randperm(len(self._labels), generator=self._coins)[: self._batch]
        return list(clipped_sum(self._images[rows], self._labels[rows]))

    def keep(self, state: Mapping[str, Any]) -> None:
        """Nothing is leased, so nothing is kept."""

    def kept(self) -> None:
        """Nothing."""
