"""Condensation: how far one record moves a sum, whom a network looks at, and a run that is taken up again."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from veilset.core.errors import VeilsetError
from veilset.methods.pldk.as_published import PlainSums
from veilset.methods.pldk.condensation import Condensation
from veilset.methods.pldk.config import CondensationSettings
from veilset.methods.pldk.method import condense
from veilset.methods.pldk.questions import alike, class_gradients, class_rows, require_alone
from veilset.models import build_network
from veilset.privacy.session import ClippedSum
from veilset.teachers.teacher import without_head

CLASSES, CLIP = 3, 0.7


def network(seed: int = 0) -> nn.Module:
    return build_network("convnet", shape=(16, 16, 1), classes=CLASSES, width=4, seed=seed)


def records(count: int) -> tuple[Tensor, Tensor]:
    coins = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 16, 16, 1), dtype=torch.uint8, generator=coins), torch.arange(count) % CLASSES


def question(kind: str) -> tuple[ClippedSum, float]:
    if kind == "distribution":
        return class_rows(without_head(network()), CLASSES, seed=3), 1.0
    return class_gradients(network(), CLASSES, CLIP, seed=3), CLIP


@pytest.mark.parametrize("kind", ["distribution", "gradient"])
@pytest.mark.parametrize("picture", ["white", "black", "dots"])
def test_one_record_moves_a_sum_by_its_sensitivity_at_most(kind: str, picture: str) -> None:
    ask, sensitivity = question(kind)
    images, labels = records(7)
    if picture != "dots":
        images[-1] = 255 if picture == "white" else 0
    (present,), (without,) = ask(images, labels), ask(images[:-1], labels[:-1])
    moved = present - without
    assert 0.1 * sensitivity < float(moved.norm()) <= sensitivity * (1 + 1e-5)
    others = [label for label in range(CLASSES) if label != int(labels[-1])]
    assert float(moved[others].abs().max()) < 1e-6


@pytest.mark.parametrize("kind", ["distribution", "gradient"])
def test_an_empty_sample_is_a_sum_of_zeros(kind: str) -> None:
    ask, _ = question(kind)
    images, labels = records(3)
    assert not ask(images[:0], labels[:0])[0].any()
    assert ask(images[:0], labels[:0])[0].shape == ask(images, labels)[0].shape


def test_a_network_that_mixes_images_is_refused() -> None:
    class Mixing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) - 0.5 * images.flatten(1).mean(dim=0)

    with pytest.raises(VeilsetError, match="mixes the images"):
        require_alone(Mixing(), (16, 16, 1))


def test_one_transformation_for_all() -> None:
    pictures = torch.rand(4, 3, 16, 16)
    together = alike(pictures, seed=5)
    assert torch.allclose(together[2:3], alike(pictures[2:3], seed=5), atol=1e-5)
    assert not torch.allclose(together, pictures, atol=1e-2)


class Whole:
    """Sums over all records without noise, which keep a state after every second of four rounds."""

    def __init__(self, state: dict[str, Any] | None = None, done: int = 0) -> None:
        self.total, self.steps_left, self.earlier = 4, 4 - done, state
        self.states: list[dict[str, Any]] = []

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[Tensor]:
        assert draws == 0
        self.steps_left -= 1
        return list(clipped_sum(*records(12)))

    @property
    def keeps_now(self) -> bool:
        return self.steps_left % 2 == 0

    def keep(self, state: Mapping[str, Any]) -> None:
        self.states.append(copy.deepcopy(dict(state)))

    def kept(self) -> dict[str, Any] | None:
        return self.earlier


def condensation(kind: Any, subspace: int = 0) -> Condensation:
    labels = torch.arange(6) % CLASSES
    coins = torch.Generator().manual_seed(2)
    start, pictures = (torch.rand(count, 1, 16, 16, generator=coins) for count in (6, 30))
    settings = CondensationSettings(networks=4, moves=5, subspace=subspace)
    return Condensation(kind, network, start, labels, settings, batch=12, clip_norm=CLIP, seed=4, pictures=pictures)


@pytest.mark.parametrize(("kind", "subspace"), [("distribution", 0), ("distribution", 5), ("gradient", 0)])
def test_a_run_is_taken_up_where_it_stopped(kind: str, subspace: int) -> None:
    whole = Whole()
    images = condense(condensation(kind, subspace), whole)
    assert torch.equal(condense(condensation(kind, subspace), Whole(whole.states[0], done=2)), images)


def test_a_public_subspace_makes_sums_short_and_moves_them_no_further() -> None:
    made = condensation("distribution", subspace=5)
    images, labels = records(7)
    ask = made.question(0, made.weights(0))
    (present,), (without,) = ask(images, labels), ask(images[:-1], labels[:-1])
    assert present.shape == (CLASSES, 5 + 1)
    assert 0.1 < float((present - without).norm()) <= 1 + 1e-5
    basis = made._basis(0, made.weights(0))
    assert torch.allclose(basis.T @ basis, torch.eye(5), atol=1e-5)


@pytest.mark.parametrize("subspace", [0, 5])
def test_images_come_closer_to_the_class_means(subspace: int) -> None:
    made = condensation("distribution", subspace)
    start = made.images.detach()
    end = condense(made, Whole())

    def distance(images: Tensor) -> float:
        return sum(
            float(made.distance_of_means(number, weights, alike(images, made.transformation(number)), seen))
            for number, weights, seen in made.asked
        )

    assert distance(end) < 0.8 * distance(start)


def test_sums_without_noise_are_over_random_batches() -> None:
    images, labels = records(12)
    sums = PlainSums((images.numpy(), labels.numpy()), batch=5, count=2, seed=0)

    def counts(_: Tensor, seen: Tensor) -> list[Tensor]:
        return [torch.bincount(seen, minlength=CLASSES)]

    assert [int(sums.step(counts)[0].sum()) for _ in range(2)] == [5, 5]
    assert sums.steps_left == 0
