"""The conditional critics: shapes, conditioning, independence of records, gradients to the pixels, and errors."""

import pytest
import torch

from veilset.core.errors import InputError
from veilset.methods.shared.critics import CRITICS, build_critic

every_critic = pytest.mark.parametrize("name", list(CRITICS))


def built(name: str, size: int = 28, channels: int = 1, classes: int = 3, **settings: object) -> torch.nn.Module:
    critic = build_critic(name, size=size, channels=channels, classes=classes, **settings)
    if name == "scattering":  # heads that start at zero would hide everything
        torch.nn.init.normal_(critic.head.maps.weight, generator=torch.Generator().manual_seed(0))
    return critic


@every_critic
@pytest.mark.parametrize("size", [28, 32, 41, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_one_logit_for_each_image(name, size, channels):
    critic = built(name, size, channels)
    logits = critic(torch.rand(4, channels, size, size), torch.tensor([0, 1, 2, 0]))
    assert logits.shape == (4,)
    assert logits.isfinite().all()


@every_critic
def test_image_and_class_both_matter(name):
    critic = built(name)
    images = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    zero, one = critic(images, torch.tensor([0, 0])), critic(images, torch.tensor([1, 1]))
    assert (zero - one).abs().min() > 1e-3
    assert (zero[0] - zero[1]).abs() > 1e-4


@every_critic
def test_records_do_not_mix(name):
    critic = built(name, 32, 3)
    images, classes = torch.rand(5, 3, 32, 32), torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(critic(images, classes)[2:3], critic(images[2:3], classes[2:3]))
    assert not any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in critic.modules())


@every_critic
def test_gradients_reach_the_pixels_and_every_weight(name):
    critic = built(name, 28, 3, classes=2)
    images = torch.rand(4, 3, 28, 28).requires_grad_()
    critic(images, torch.tensor([0, 1, 0, 1])).square().sum().backward()
    assert (images.grad.flatten(1).norm(dim=1) > 0).all()
    for weight_name, weight in critic.named_parameters():
        assert weight.grad is not None, weight_name
        assert weight.grad.abs().sum() > 0, weight_name


@pytest.mark.parametrize("name", ["dcgan", "resnet"])
def test_norms_and_width(name):
    sizes = {norm: sum(p.numel() for p in built(name, norm=norm).parameters()) for norm in ("group", "layer", "none")}
    assert sizes["group"] == sizes["layer"] > sizes["none"]
    assert sum(p.numel() for p in built(name, width=8).parameters()) < sizes["none"]


def test_cached_features_are_enough():
    critic = built("scattering")
    images, classes = torch.rand(3, 1, 28, 28), torch.arange(3)
    features = critic.features(images)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(critic.head(features, classes), critic(images, classes))


def test_a_seed_decides_the_first_weights():
    first, second, other = (built("dcgan", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["stages.0.weight"], other["stages.0.weight"])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dcgan", {"size": 15}, "16 to 256 pixels, got 15"),
        ("resnet", {"classes": 0}, "at least 1"),
        ("resnet", {"norm": "batch"}, "Expected norm to be one of group, layer, none, got 'batch'"),
        ("scattering", {"width": 8}, "has no width"),
        ("dcgna", {}, r"Did you mean dcgan\?"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(InputError, match=message):
        build_critic(name, **{"size": 28, "channels": 1, "classes": 2, **settings})
