"""Ordinary training: it learns, repeats by seed, follows its recipe and names what is wrong."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from veilset.cli.train import recipe_of
from veilset.core.errors import InputError, VeilsetError
from veilset.models import build_network
from veilset.training import classifier
from veilset.training.augment import MILD, AugmentConfig
from veilset.training.classifier import predict, to_float, train_classifier
from veilset.training.settings import TrainingConfig, WeightAverage, make_optimizer, rate_share

QUICK = TrainingConfig(epochs=4, batch_size=32, learning_rate=0.01, augmentation=None, label_smoothing=0.0)


def bars(count=160, size=16, seed=0):
    """Two classes, upright and lying bars, in noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = rng.integers(0, 60, (count, size, size, 1), dtype=np.uint8)
    for image, label, place in zip(images, labels, rng.integers(2, size - 2, count), strict=True):
        if label:
            image[place, :, 0] = 220
        else:
            image[:, place, 0] = 220
    return images, labels.astype(np.int64)


def small(seed=0, classes=2):
    return build_network("convnet", shape=(16, 16, 1), classes=classes, width=8, depth=2, seed=seed)


def accuracy(network, seed=1):
    images, labels = bars(seed=seed)
    return float((predict(network, images).argmax(1) == labels).mean())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"optimizer": "sgd", "learning_rate": 0.1},
        {"schedule": "cosine"},
        {"ema_decay": 0.9},
        {"label_smoothing": 0.1},
        {"clip_norm": 1.0},
        {"channels_last": False},
        {"augmentation": AugmentConfig(rotation=5.0, erase=0.1)},
    ],
)
def test_every_recipe_learns(change):
    config = TrainingConfig(**({"epochs": 8, "batch_size": 32, "learning_rate": 0.01, "augmentation": None} | change))
    network = train_classifier(small(), *bars(), config=config)
    assert not network.training
    assert accuracy(network) > 0.9


def test_features_train_the_same_head_when_they_are_computed_once(monkeypatch):
    def trained(config=QUICK):
        network = build_network("scatternet", shape=(16, 16, 1), classes=2)
        return train_classifier(network, *bars(), config=config)

    once = trained()
    assert accuracy(once) > 0.9
    assert torch.equal(once.head.weight, trained(QUICK.changed(augmentation=MILD)).head.weight)
    monkeypatch.setattr(classifier, "_MOST_FEATURE_BYTES", 0)
    anew = trained(QUICK.changed(augmentation=MILD))
    assert not torch.equal(once.head.weight, anew.head.weight)  # half precision, so the two ways are told apart
    torch.testing.assert_close(once.head.weight, anew.head.weight, rtol=0.0, atol=0.01)


@pytest.mark.parametrize(
    ("epochs", "soft_labels", "expected"), [(10, True, None), (11, True, MILD), (10, False, MILD), (60, False, MILD)]
)
def test_images_with_soft_labels_change_only_when_they_are_seen_often(epochs, soft_labels, expected):
    assert TrainingConfig(epochs=epochs).changes_for(1000, soft_labels=soft_labels) == expected
    assert TrainingConfig(epochs=epochs, augmentation=None).changes_for(1000, soft_labels=soft_labels) is None
    assert TrainingConfig(epochs=epochs, augmentation=MILD).changes_for(1000, soft_labels=soft_labels) == MILD


def test_soft_labels_replace_hard_ones():
    images, labels = bars()
    soft = np.where(np.eye(2, dtype=np.float32)[labels] > 0, 0.8, 0.2).astype(np.float32)
    config = TrainingConfig(epochs=12, batch_size=32, learning_rate=0.01, augmentation=None)
    network = train_classifier(small(), images, 1 - labels, soft, config=config)
    assert accuracy(network) > 0.9
    odds = np.abs(np.diff(predict(network, images), axis=1)).mean()
    assert odds == pytest.approx(np.log(4), abs=0.35)  # logits match the 0.8 : 0.2 of the labels


def test_temperature_keeps_the_optimum():
    images, labels = bars()
    soft = np.where(np.eye(2, dtype=np.float32)[labels] > 0, 0.8, 0.2).astype(np.float32)
    config = TrainingConfig(epochs=12, batch_size=32, learning_rate=0.01, augmentation=None, temperature=3.0)
    network = train_classifier(small(), images, labels, soft, config=config)
    assert np.abs(np.diff(predict(network, images), axis=1)).mean() == pytest.approx(np.log(4), abs=0.35)


def test_a_network_is_as_sure_as_the_teacher_whose_labels_were_softened():
    images, labels = bars()
    soft = np.where(np.eye(2, dtype=np.float32)[labels] > 0, 0.8, 0.2).astype(np.float32) ** (1 / 3)
    config = TrainingConfig(epochs=12, batch_size=32, learning_rate=0.01, augmentation=None, label_temperature=3.0)
    network = train_classifier(small(), images, labels, soft, config=config)
    assert np.abs(np.diff(predict(network, images), axis=1)).mean() == pytest.approx(np.log(4), abs=0.35)


def test_same_seed_same_weights_and_the_global_generator_is_kept():
    before = torch.get_rng_state()
    config = TrainingConfig(epochs=1, batch_size=32)
    first, again, other = (train_classifier(small(), *bars(), config=config, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_dropout_repeats_by_seed():
    results = []
    for _ in range(2):
        network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, 2))
        with torch.no_grad():
            network[2].weight.zero_()
            network[2].bias.zero_()
        torch.rand(7)  # moves the global generator between the runs
        results.append(train_classifier(network, *bars(), config=QUICK, seed=5)[2].weight)
    assert torch.equal(*results)


def test_inputs_are_left_as_they_were():
    images, labels = bars()
    images.setflags(write=False)
    train_classifier(small(), images, labels, config=QUICK)
    assert np.array_equal(images, bars()[0])


class Counting:
    """A progress that remembers."""

    def __init__(self):
        self.total, self.done = 0, 0

    @contextlib.contextmanager
    def task(self, label, total):
        self.total = total
        yield self

    def advance(self, amount=1):
        self.done += amount

    def note(self, text):
        raise AssertionError("training has nothing to say")


@pytest.mark.parametrize(("count", "steps"), [(160, 20), (100, 12), (20, 4)])
def test_progress_counts_every_step(count, steps):
    progress = Counting()
    train_classifier(small(), *bars(count), config=QUICK, progress=progress)
    assert progress.total == progress.done == steps == QUICK.steps_for(count)


def test_default_epochs_see_a_level_number_of_images():
    config = TrainingConfig()
    seen = [config.epochs_for(count) for count in (100, 5_000, 10_000, 60_000)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] >= 5
    assert TrainingConfig(epochs=7).epochs_for(10**6) == 7


@pytest.mark.parametrize("schedule", ["onecycle", "cosine"])
@pytest.mark.parametrize("total", [1, 2, 100])
def test_schedule_rises_to_one_then_falls(schedule, total):
    shares = [rate_share(step, total, schedule) for step in range(total)]
    peak = shares.index(max(shares))
    assert max(shares) == 1
    assert min(shares) > 0
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    assert total < 100 or shares[-1] < 0.05


def test_no_weight_decay_on_norms_and_biases():
    groups = make_optimizer(small(), TrainingConfig(weight_decay=0.5)).param_groups
    decay = {parameter.ndim: group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decay == {4: 0.5, 2: 0.5, 1: 0.0}


def test_weight_average_is_the_running_mean():
    network = nn.BatchNorm1d(1)
    average = WeightAverage(network, decay=0.5)
    with torch.no_grad():
        network.weight.fill_(3.0)
        network.num_batches_tracked.fill_(4)
    average.update(network, step=1000)
    assert average.state["weight"].item() == pytest.approx(0.5 * 1.0 + 0.5 * 3.0)
    assert average.state["num_batches_tracked"].item() == 4


def test_ema_is_what_is_returned():
    plain = train_classifier(small(), *bars(), config=QUICK, seed=1)
    config = TrainingConfig(
        epochs=4, batch_size=32, learning_rate=0.01, augmentation=None, label_smoothing=0.0, ema_decay=0.9
    )
    assert not torch.equal(plain.head.weight, train_classifier(small(), *bars(), config=config, seed=1).head.weight)


def test_predict_equals_the_network_and_keeps_its_mode():
    network = build_network("convnet", shape=(16, 16, 1), classes=2, norm="batch", width=8, depth=2).train()
    images, _ = bars(37)
    in_parts = predict(network, images, batch_size=10)
    assert network.training
    expected = network.eval()(to_float(torch.from_numpy(images).permute(0, 3, 1, 2))).detach().numpy()
    np.testing.assert_allclose(in_parts, expected, atol=1e-5)
    assert in_parts.dtype == np.float32


def test_to_float_spans_zero_to_one():
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
    torch.testing.assert_close(to_float(pixels), torch.tensor([0.0, 0.2, 1.0]))
    assert pixels.tolist() == [0, 51, 255]


def test_a_diverging_loss_is_an_error():
    config = TrainingConfig(epochs=4, batch_size=32, optimizer="sgd", learning_rate=1e9, augmentation=None)
    network = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 2))
    with pytest.raises(VeilsetError, match="Lower learning_rate"):
        train_classifier(network, *bars(), config=config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((4, 16, 16), dtype=np.uint8)}, "uint8 images"),
        ({"images": np.zeros((4, 16, 16, 1), dtype=np.float32)}, "uint8 images"),
        ({"labels": np.zeros(3, dtype=np.int64)}, "one label for each of the 4 images"),
        ({"labels": np.full(4, 2, dtype=np.int64)}, "3 or more outputs, got 2"),
        ({"soft_labels": np.zeros((4, 3), dtype=np.float32)}, "3 or more outputs, got 2"),
        ({"soft_labels": np.full((4, 2), -1, dtype=np.float32)}, "finite soft labels"),
        ({"images": np.zeros((0, 16, 16, 1), dtype=np.uint8), "labels": np.zeros(0, dtype=np.int64)}, "at least one"),
    ],
)
def test_bad_arrays_are_named(change, message):
    arrays = {"images": np.zeros((4, 16, 16, 1), dtype=np.uint8), "labels": np.zeros(4, dtype=np.int64)} | change
    with pytest.raises(InputError, match=message):
        train_classifier(small(), **arrays, config=QUICK)


def test_a_network_without_parameters_is_refused():
    with pytest.raises(InputError, match="parameters to train"):
        train_classifier(nn.Flatten(), *bars(), config=QUICK)
    with pytest.raises(InputError, match="at least one image"):
        predict(small(), np.zeros((0, 16, 16, 1), dtype=np.uint8))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"optimizer": "adam"},
        {"schedule": "step"},
        {"learning_rate": 0.0},
        {"temperature": 0.0},
        {"label_temperature": 0.0},
        {"label_smoothing": 1.0},
        {"ema_decay": 1.0},
        {"weight_decay": -0.1},
    ],
)
def test_bad_recipes_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        TrainingConfig(**settings)


def test_a_rate_in_steps():
    milestones = (0.6, 0.75, 0.9)
    shares = [rate_share(step, 100, "steps", milestones) for step in (0, 59, 60, 75, 99)]
    assert shares == pytest.approx([1, 1, 0.1, 0.01, 0.001])


def test_milestones_are_epochs():
    found = recipe_of("sgd", 0.9, 256, 1e-4, "120,150,180", 200)
    config = TrainingConfig(epochs=200, **found)
    assert (config.optimizer, config.schedule, config.milestones) == ("sgd", "steps", (0.6, 0.75, 0.9))
    with pytest.raises(InputError, match="milestones"):
        recipe_of("sgd", 0.9, 256, 1e-4, "120", None)
    with pytest.raises(InputError, match="milestones"):
        recipe_of("sgd", 0.9, 256, 1e-4, "250", 200)
