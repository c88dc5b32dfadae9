"""The conditional generator: shapes, ranges, conditioning and errors."""

import pytest
import torch

from veilset.core.errors import InputError
from veilset.models.generators import ConditionalGenerator


@pytest.mark.parametrize("size", [16, 17, 28, 32, 40, 41, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_colour(size: int, channels: int) -> None:
    generator = ConditionalGenerator(size, channels, classes=3)
    images = generator(torch.randn(4, 64), torch.tensor([0, 1, 2, 0]))
    assert images.shape == (4, channels, size, size)
    assert images.min() >= 0
    assert images.max() <= 1


def test_class_and_latent_both_matter() -> None:
    torch.manual_seed(0)
    generator = ConditionalGenerator(28, 1, classes=2)
    latent = torch.randn(1, 64)
    zero, one = generator(latent, torch.tensor([0])), generator(latent, torch.tensor([1]))
    other = generator(torch.randn(1, 64), torch.tensor([0]))
    assert (zero - one).abs().max() > 0.01
    assert (zero - other).abs().max() > 0.01


def test_one_hot_weights_are_the_class() -> None:
    generator = ConditionalGenerator(16, 1, classes=3)
    latents = torch.randn(3, 64)
    torch.testing.assert_close(generator(latents, torch.arange(3)), generator(latents, torch.eye(3)))


def test_records_do_not_mix() -> None:
    generator = ConditionalGenerator(28, 3, classes=10)
    latents, classes = torch.randn(6, 64), torch.arange(6)
    torch.testing.assert_close(generator(latents, classes)[2:3], generator(latents[2:3], classes[2:3]))


def test_every_weight_is_trained() -> None:
    generator = ConditionalGenerator(64, 1, classes=2, latent_size=8, width=16)
    generator(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])).square().sum().backward()
    for name, weight in generator.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 15}, "16 to 64 pixels, got 15"),
        ({"size": 65}, "16 to 64 pixels, got 65"),
        ({"classes": 0}, "at least 1"),
        ({"width": 24}, "multiple of 16, got 24"),
    ],
)
def test_bad_settings(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConditionalGenerator(**{"size": 28, "channels": 1, "classes": 2, **arguments})
