"""The conditional generators: shapes, ranges, conditioning, round trips and errors."""

import json

import pytest
import torch

from veilset.core.errors import InputError
from veilset.models.generators.conditional import (
    GENERATORS,
    ConditionalGenerator,
    build_generator,
    description_of,
    rebuild_generator,
)

every_generator = pytest.mark.parametrize("name", list(GENERATORS))


@every_generator
@pytest.mark.parametrize("size", [16, 17, 28, 32, 40, 41, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_colour(name: str, size: int, channels: int) -> None:
    generator = build_generator(name, size=size, channels=channels, classes=3, width=32)
    images = generator(torch.randn(4, 64), torch.tensor([0, 1, 2, 0]))
    assert images.shape == (4, channels, size, size)
    assert images.min() >= 0
    assert images.max() <= 1


@every_generator
def test_class_and_latent_both_matter(name: str) -> None:
    torch.manual_seed(0)
    generator = build_generator(name, size=28, channels=1, classes=2)
    latent = torch.randn(1, 64)
    zero, one = generator(latent, torch.tensor([0])), generator(latent, torch.tensor([1]))
    other = generator(torch.randn(1, 64), torch.tensor([0]))
    assert (zero - one).abs().max() > 0.01
    assert (zero - other).abs().max() > 0.01


@every_generator
def test_one_hot_weights_are_the_class(name: str) -> None:
    generator = build_generator(name, size=16, channels=1, classes=3)
    latents = torch.randn(3, 64)
    torch.testing.assert_close(generator(latents, torch.arange(3)), generator(latents, torch.eye(3)))


@every_generator
def test_records_do_not_mix(name: str) -> None:
    generator = build_generator(name, size=28, channels=3, classes=10)
    latents, classes = torch.randn(6, 64), torch.arange(6)
    torch.testing.assert_close(generator(latents, classes)[2:3], generator(latents[2:3], classes[2:3]))


@every_generator
def test_every_weight_is_trained(name: str) -> None:
    generator = build_generator(name, size=64, channels=1, classes=2, latent_size=8, width=16)
    generator(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])).square().sum().backward()
    for name, weight in generator.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


@every_generator
def test_a_description_and_weights_give_the_same_images(name: str) -> None:
    generator = build_generator(name, size=28, channels=1, classes=3, latent_size=5, width=32, seed=4)
    again = rebuild_generator(json.loads(json.dumps(description_of(generator))), generator.state_dict())
    latents, classes = torch.randn(3, 5), torch.arange(3)
    assert torch.equal(again(latents, classes), generator.eval()(latents, classes))


def test_only_generators_of_ours_are_rebuilt() -> None:
    description = description_of(ConditionalGenerator(16, 1, 2))
    with pytest.raises(InputError, match="Not a generator and its weights: KeyError"):
        rebuild_generator(description | {"network": "os:system"}, {})
    with pytest.raises(InputError, match=r"Not a generator and its weights: ValueError: .* has the shape None"):
        rebuild_generator(description, {})


def test_a_seed_decides_the_first_weights() -> None:
    first, second, other = (
        build_generator("dcgan", size=28, channels=1, classes=2, width=16, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["first.weight"], other["first.weight"])
    with pytest.raises(InputError, match=r"Unknown generator 'dcgna'\. Did you mean dcgan\?"):
        build_generator("dcgna", size=28, channels=1, classes=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 15}, "16 to 256 pixels, got 15"),
        ({"size": 257}, "16 to 256 pixels, got 257"),
        ({"classes": 0}, "at least 1"),
        ({"width": 24}, "multiple of 16, got 24"),
    ],
)
def test_bad_settings(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ConditionalGenerator(**{"size": 28, "channels": 1, "classes": 2, **arguments})
