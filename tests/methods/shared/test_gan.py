"""Losses, balance, replay and a generator in training; and what a look at generated images finds."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from veilset.core.errors import InputError, VeilsetError
from veilset.methods.shared.choices import AdversarialLoss
from veilset.methods.shared.gan import (
    Balance,
    GeneratorTraining,
    MovingAverage,
    Replay,
    even_labels,
    generated_losses,
    generator_losses,
    penalty_on_generated,
    real_losses,
    sample_images,
    too_alike,
    weighed_alike,
)
from veilset.methods.shared.image_health import inspect, require_finite
from veilset.models.generators.conditional import build_generator

LOSSES: tuple[AdversarialLoss, ...] = ("bce", "hinge", "wasserstein")


def training(seed: int = 0) -> GeneratorTraining:
    generator = build_generator("modulated", size=16, channels=1, classes=3, latent_size=4, width=16)
    return GeneratorTraining(generator, learning_rate=0.01, ema_decay=0.5, seed=seed)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_critic_gains_where_the_generator_loses(kind: AdversarialLoss) -> None:
    logits = torch.tensor([-0.5, 0.5])
    assert real_losses(logits, kind)[0] > real_losses(logits, kind)[1]
    assert generated_losses(logits, kind)[0] < generated_losses(logits, kind)[1]
    assert generator_losses(logits, kind)[0] > generator_losses(logits, kind)[1]


def test_the_generator_keeps_a_gradient_where_the_critic_is_sure() -> None:
    logits = torch.tensor([-20.0], requires_grad=True)
    generator_losses(logits, "bce").sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.item() == pytest.approx(-1.0, abs=1e-6)


def test_the_penalty_is_the_squared_length_of_the_gradient() -> None:
    weights = torch.randn(16)

    def critic(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) @ weights

    penalty = penalty_on_generated(critic, torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64))
    assert penalty.item() == pytest.approx(float(weights.square().sum()), rel=1e-5)


def test_only_images_that_are_too_alike_are_pushed_apart() -> None:
    apart = torch.zeros(4, 1, 8, 8)
    apart[2:] = 0.5  # images 0 and 2 are of one class, 1 and 3 of the other
    assert too_alike(apart, 2, 0.12) == 0.0
    assert too_alike(torch.zeros(4, 1, 8, 8), 2, 0.12) == pytest.approx(0.12, abs=1e-3)
    assert too_alike(torch.zeros(2, 1, 8, 8), 2, 0.12) == 0.0, "a batch without a pair"
    checkers = torch.zeros(4, 1, 8, 8)
    checkers[2:, :, ::2, ::2] = checkers[2:, :, 1::2, 1::2] = 0.2
    checkers[:2, :, ::2, 1::2] = checkers[:2, :, 1::2, ::2] = 0.2
    assert too_alike(checkers, 2, 0.12) == pytest.approx(0.12, abs=1e-3), "fine noise counted as variety"


def test_a_collapsed_generator_is_pushed_apart() -> None:
    generator = build_generator("dcgan", size=16, channels=1, classes=2, latent_size=8, width=16, seed=0)
    training = GeneratorTraining(generator, learning_rate=0.002)
    before = float(too_alike(training.draw(16, "look")[0].detach(), 2, 0.2))
    for _ in range(30):
        training.descend(too_alike(training.draw(16, "step")[0], 2, 0.2))
    assert float(too_alike(training.draw(16, "look")[0].detach(), 2, 0.2)) < 0.5 * before


def test_the_balance_doubles_for_a_weak_critic_and_halves_for_a_strong_one() -> None:
    balance = Balance(2, 8)
    for _ in range(40):
        balance.observe(torch.ones(10))
    assert balance.steps == 8
    for _ in range(60):
        balance.observe(-torch.ones(10))
    assert balance.steps == 2
    assert [balance.due() for _ in range(4)] == [False, True, False, True]
    with pytest.raises(InputError, match="critic_steps"):
        Balance(3, 2)


def test_replay_forgets_the_oldest() -> None:
    replay = Replay(2)
    for number in range(3):
        replay.add(torch.full((2, 1), float(number)), torch.tensor([number, number]))
    rows, labels = replay.all()
    assert rows[:, 0].tolist() == [1, 1, 2, 2]
    assert labels.tolist() == [1, 1, 2, 2]


def test_a_moving_average_starts_without_bias() -> None:
    average = MovingAverage(4)
    assert average.add([torch.tensor(2.0)])[0] == 2
    assert average.add([torch.tensor(4.0)])[0] == 3
    for _ in range(40):
        last = average.add([torch.tensor(7.0)])
    assert last[0] == pytest.approx(7.0, abs=1e-3)


def test_a_rare_class_weighs_as_much_as_its_generated_images() -> None:
    means = torch.tensor([[0.3, 0.4, 0.1], [0.5, 0.2, 0.1]])
    generated = 0.5 * means
    real = -torch.tensor([[0.9], [0.1]]) * means
    torch.testing.assert_close(weighed_alike(real, generated), -generated)
    assert weighed_alike(torch.zeros(2, 3), generated).isfinite().all()


def test_a_generator_learns_and_goes_on_from_a_state() -> None:
    first = training()
    for _ in range(8):
        images, _ = first.draw(12, "step")
        first.descend(images.mean())
    assert first.draw(12, "step")[0].mean() < training().draw(12, "step")[0].mean()
    second = training()
    second.load(copy.deepcopy(first.state()))
    for each in (first, second):
        images, _ = each.draw(12, "step")
        each.descend(images.mean())
    for name, value in first.finish().state_dict().items():
        torch.testing.assert_close(value, second.finish().state_dict()[name])


def test_labels_of_generated_images_are_even() -> None:
    _, labels = training().draw(30, "step")
    assert labels.bincount().tolist() == [10, 10, 10]
    assert np.bincount(even_labels(30, 3)).tolist() == [10, 10, 10]


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    with pytest.raises(VeilsetError, match="diverged"):
        training().descend(torch.tensor(float("nan")))
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, float("inf"))
    with pytest.raises(VeilsetError, match="diverged"):
        require_finite(broken, "the generator")


def test_samples_are_bytes_and_repeatable() -> None:
    generator = training().finish()
    images = sample_images(generator, even_labels(7, 3), seed=1)
    assert images.shape == (7, 16, 16, 1)
    assert images.dtype == np.uint8
    assert np.array_equal(images, sample_images(generator, even_labels(7, 3), seed=1))
    assert not np.array_equal(images, sample_images(generator, even_labels(7, 3), seed=2))


def test_collapse_alike_classes_and_lost_classes_are_named() -> None:
    coins = np.random.default_rng(0)
    labels = even_labels(60, 3)
    healthy = (coins.integers(0, 80, (60, 4, 4, 1)) + 80 * labels[:, None, None, None]).astype(np.uint8)
    names = ("cat", "dog", "cow")
    well = inspect(healthy, labels, 3, labels)
    assert well.warnings(names) == []
    assert well.coverage == 1
    collapsed = healthy.copy()
    collapsed[labels == 1] = collapsed[1]
    (found,) = inspect(collapsed, labels, 3).warnings(names)
    assert "Mode collapse" in found
    assert "dog" in found
    alike = coins.integers(0, 255, (60, 1, 1, 1)).astype(np.uint8).repeat(16, axis=1).reshape(60, 4, 4, 1)
    alike[labels == 2] = alike[labels == 1]
    assert any("alike on average: dog, cow" in text for text in inspect(alike, labels, 3).warnings(names))
    lost = inspect(healthy, labels, 3, np.where(labels == 2, 0, labels))
    assert lost.coverage == pytest.approx(2 / 3)
    assert any("cow" in text for text in lost.warnings(names))
