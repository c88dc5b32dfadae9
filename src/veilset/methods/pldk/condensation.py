"""Images condensed to what networks see of each class: noisy class means, or noisy class gradients.

Ideas: Zhao and Bilen, "Dataset condensation with distribution matching" (WACV 2023) and "Dataset condensation with
differentiable siamese augmentation" (ICML 2021); with clipped and noisy gradients, Chen, Kerkouche and Fritz, "Private
set generation with discriminative information" (NeurIPS 2022). The privacy argument is in docs/methods/pldk.md.

A round asks one network for one noisy sum (questions.py; method.py asks). The sum is kept, and images are moved towards
all sums kept so far. Nothing here reads private rows.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from veilset.core.errors import VeilsetError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.methods.pldk.config import CondensationKind, CondensationSettings
from veilset.methods.pldk.questions import (
    COUNT_PART,
    EMBEDDING_PART,
    alike,
    class_gradients,
    class_rows,
    require_alone,
    unit_rows,
)
from veilset.methods.pldk.trajectories import flatten, image_optimizer, to_logits, unflatten
from veilset.privacy.session import ClippedSum
from veilset.teachers.teacher import without_head
from veilset.training.augment import MILD, augment

_LEAST_COUNT = 0.1  # of what even classes would give
# How a network of gradient matching learns from the images between two rounds.
_LEARNING_STEPS, _LEARNING_RATE = 5, 0.05
_CLASSES_AT_ONCE = 5  # compared in one move
_PICTURES_AT_ONCE = 100


class Condensation:
    """Images in the making, and the noisy sums that lead them.

    Args:
        kind: what networks are asked for.
        make_network: from a seed to a network with random weights; all networks have one form.
        images: (n, C, H, W) in [0, 1] to start from.
        labels: their classes; every class has an image.
        settings: the public settings.
        batch: units of a sum on average.
        clip_norm: of one unit's gradient.
        seed: of networks and transformations, all of them public.
        pictures: (m, C, H, W) in [0, 1], public; they fix the subspace of class means, where one is asked for.
    """

    def __init__(
        self,
        kind: CondensationKind,
        make_network: Callable[[int], nn.Module],
        images: Tensor,
        labels: Tensor,
        settings: CondensationSettings,
        *,
        batch: float,
        clip_norm: float,
        seed: int,
        pictures: Tensor | None = None,
    ) -> None:
        self.kind, self.settings, self.clip_norm, self.seed = kind, settings, clip_norm, seed
        self.batch = batch
        self.labels, self.classes = labels, int(labels.max()) + 1
        self.logits = to_logits(images)
        self.optimizer = image_optimizer([{"params": [self.logits], "lr": settings.condensing_rate}])
        self.asked: list[tuple[int, Tensor, Tensor]] = []  # the round, its network's weights, what that saw
        self._make, self._pictures = make_network, pictures
        self._bases: dict[int, Tensor] = {}
        self._form = self._network(0)
        self._try_on_random_images((images.shape[2], images.shape[3], images.shape[1]))

    @property
    def images(self) -> Tensor:
        """In [0, 1], (n, C, H, W)."""
        return torch.sigmoid(self.logits)

    @property
    def sensitivity(self) -> float:
        """Of the sum that a question asks for."""
        return 1.0 if self.kind == "distribution" else self.clip_norm

    def transformation(self, number: int) -> int:
        """The seed of the transformation that all images of a round share."""
        return derive_seed(self.seed, f"transformation {number}")

    def weights(self, number: int) -> Tensor:
        """Of the network of a round: random, or for gradients also the last one after it learned from the images."""
        if self.kind == "distribution" or number % self.settings.restart == 0 or not self.asked:
            return flatten(self._network(number))
        weights, coins = self.asked[-1][1], torch_generator(self.seed, f"learning {number}")
        for _ in range(_LEARNING_STEPS):
            leaf = weights.clone().requires_grad_()
            loss = functional.cross_entropy(self._call(leaf, augment(self.images.detach(), MILD, coins)), self.labels)
            weights = weights - _LEARNING_RATE * torch.autograd.grad(loss, leaf)[0]
        return weights

    def question(self, number: int, weights: Tensor) -> ClippedSum:
        """What a round asks of private images."""
        network = copy.deepcopy(self._form)
        network.load_state_dict({name: value.clone() for name, value in unflatten(network, weights).items()})
        if self.kind == "distribution":
            if self._in_subspace:
                network = _projected(network, self._basis(number, weights))
            return class_rows(network, self.classes, self.transformation(number))
        return class_gradients(network, self.classes, self.clip_norm, self.transformation(number))

    def follow(self, number: int, weights: Tensor, seen: Tensor) -> None:
        """Keep what the network of a round saw, and move the images towards all that was seen so far."""
        self.asked.append((number, weights, seen))
        for move in range(self.settings.moves):
            self._move(torch_generator(self.seed, f"move {number}/{move}"))

    def distance_of_means(self, number: int, weights: Tensor, images: Tensor, seen: Tensor) -> Tensor:
        """Squared distance of the class means."""
        counts = seen[:, -1:] / COUNT_PART
        counts = counts.clamp_min(_LEAST_COUNT * self.batch / self.classes)
        found = self._call(weights, images)
        rows = unit_rows(found.flatten(1) @ self._basis(number, weights) if self._in_subspace else found)
        sums = torch.zeros(self.classes, rows.shape[1]).index_add(0, self.labels, rows)
        means = sums / torch.bincount(self.labels, minlength=self.classes)[:, None]
        return (means - seen[:, :-1] / EMBEDDING_PART / counts).square().sum()

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from; all of it follows from noisy sums."""
        return {"logits": self.logits.detach(), "optimizer": self.optimizer.state_dict(), "asked": self.asked}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        with torch.no_grad():
            self.logits.copy_(state["logits"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.asked = list(state["asked"])

    def _try_on_random_images(self, shape: tuple[int, int, int]) -> None:
        """Fail before anything is paid or read, where a network mixes images."""
        if self.kind == "distribution":
            require_alone(self._form, shape)
        else:
            coins = torch_generator(self.seed, "random images")
            images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=coins)
            self.question(0, flatten(self._form))(images, torch.arange(3) % self.classes)

    @property
    def _in_subspace(self) -> bool:
        return self.settings.subspace > 0 and self._pictures is not None

    def _basis(self, number: int, weights: Tensor) -> Tensor:
        """The main directions (d, k) of what a round's network sees in public pictures; follows from these alone."""
        if number not in self._bases:
            assert self._pictures is not None
            with torch.no_grad():
                parts = torch.split(self._pictures, _PICTURES_AT_ONCE)
                rows = torch.cat([unit_rows(self._call(weights, part)) for part in parts])
            _, directions = torch.linalg.eigh((rows.T @ rows).double())
            self._bases[number] = directions.flip(1)[:, : self.settings.subspace].float()
        return self._bases[number]

    def _network(self, number: int) -> nn.Module:
        network = self._make(derive_seed(self.seed, f"network {number}"))
        return (without_head(network) if self.kind == "distribution" else network).eval()

    def _move(self, coins: torch.Generator) -> None:
        """Move the images towards what one of the networks saw."""
        number, weights, seen = self.asked[int(torch.randint(len(self.asked), (), generator=coins))]
        images = alike(self.images, self.transformation(number))
        loss = (
            self.distance_of_means(number, weights, images, seen)
            if self.kind == "distribution"
            else self._distance_of_gradients(weights, images, seen, coins)
        )
        if not bool(torch.isfinite(loss)):
            raise VeilsetError("Condensing diverged. Lower condensing_rate.")
        (self.logits.grad,) = torch.autograd.grad(loss, self.logits)
        self.optimizer.step()

    def _distance_of_gradients(self, weights: Tensor, images: Tensor, seen: Tensor, coins: torch.Generator) -> Tensor:
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


def _projected(network: nn.Module, basis: Tensor) -> nn.Module:
    """The network, and of what it sees the coordinates in a basis (d, k)."""
    onto = nn.Linear(basis.shape[0], basis.shape[1], bias=False)
    with torch.no_grad():
        onto.weight.copy_(basis.T)
    return nn.Sequential(network, nn.Flatten(), onto).eval()
