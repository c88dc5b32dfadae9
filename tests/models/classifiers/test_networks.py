"""Every network: shapes from 16 to 224 pixels, independence of records, determinism, the user's own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.models import NETWORKS, build_network
from veilset.models.classifiers.shufflenet import shuffle_halves
from veilset.models.classifiers.vit import grid_positions
from veilset.models.features.scattering import Scattering
from veilset.models.norms import group_count, halvings, stem_stride

# Trainable parameters for 32x32x3 and ten classes, counted by hand from the papers' tables where these have the form.
PARAMETERS = {
    "convnet": (100_000, 300_000),
    "convnet-tanh": (100_000, 300_000),
    "convnet-even": (100_000, 300_000),
    "lenet": (60_000, 65_000),
    "mlp": (820_874, 820_874),
    "scatternet": (155_530, 155_530),
    "resnet18": (11_173_962, 11_173_962),
    "resnet34": (21_282_122, 21_282_122),
    "vgg11": (9_200_000, 9_260_000),
    "mobilenetv2": (2_200_000, 2_300_000),
    "shufflenetv2": (1_250_000, 1_280_000),
    "wrn": (690_000, 693_000),
    "vit-tiny": (5_300_000, 5_600_000),
}


def test_every_network_has_an_expected_size():
    assert set(PARAMETERS) == {
        name for name in NETWORKS if not name.endswith("-tuned")
    }  # those have tests of their own


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name):
    least, most = PARAMETERS[name]
    network = build_network(name, shape=(32, 32, 3), classes=10)
    assert least <= sum(parameter.numel() for parameter in network.parameters()) <= most


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("shape", [(16, 16, 1), (28, 28, 1), (32, 40, 3), (64, 64, 3), (96, 96, 1)])
def test_logits_tell_images_apart(name, shape):
    height, width, channels = shape
    network = build_network(name, shape=shape, classes=7).eval()
    with torch.no_grad():
        logits = network(torch.rand(3, channels, height, width, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()
    assert (logits[0] - logits[1]).abs().max() > 1e-4


@pytest.mark.parametrize("name", PARAMETERS)
def test_large_images_keep_a_map_of_at_least_three_pixels(name):
    network = build_network(name, shape=(224, 224, 3), classes=2).eval()
    sides = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | Scattering):
            module.register_forward_hook(lambda _module, _inputs, output: sides.append(min(output.shape[2:])))
    with torch.no_grad():
        assert network(torch.rand(1, 3, 224, 224)).shape == (1, 2)
    assert min(sides, default=3) >= 3


@pytest.mark.parametrize("name", PARAMETERS)
def test_group_norm_networks_do_not_mix_records(name):
    network = build_network(name, shape=(16, 16, 1), classes=4).train()
    images = torch.rand(3, 1, 16, 16)
    with torch.no_grad():
        together, alone = network(images), network(images[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"vit-tiny", "scatternet", "mlp"}))
def test_batch_norm_by_choice(name):
    network = build_network(name, shape=(16, 16, 1), classes=4, norm="batch")
    kinds = {type(module) for module in network.modules()}
    assert nn.BatchNorm2d in kinds
    assert nn.GroupNorm not in kinds


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_gets_a_gradient(name):
    network = build_network(name, shape=(16, 16, 1), classes=4)
    nn.functional.cross_entropy(network(torch.rand(4, 1, 16, 16)), torch.tensor([0, 1, 2, 3])).backward()
    assert [key for key, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_seed_decides_the_weights_and_leaves_the_global_generator():
    before = torch.get_rng_state()
    first, again, other = (build_network("convnet", shape=(16, 16, 1), classes=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


@pytest.mark.parametrize(("name", "sees"), [("convnet-even", False), ("convnet", True)])
def test_an_even_convnet_does_not_see_brightness_and_contrast(name, sees):
    network = build_network(name, shape=(28, 28, 1), classes=4).eval()
    images = 0.3 + 0.4 * torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        moved = (network(images) - network(0.2 + 0.5 * images)).abs().max()
    assert (moved > 0.01) == sees


def test_a_tanh_convnet_has_bounded_activations():
    network = build_network("convnet-tanh", shape=(28, 28, 1), classes=4)
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(nn.Tanh) == 3
    assert nn.ReLU not in kinds
    plain = build_network("convnet", shape=(28, 28, 1), classes=4)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in network.state_dict().items())


def test_width_and_depth_reach_the_network():
    wide = build_network("convnet", shape=(32, 32, 3), classes=10, width=16, depth=4)
    convolutions = [module for module in wide.modules() if isinstance(module, nn.Conv2d)]
    assert [module.out_channels for module in convolutions] == [16, 32, 64, 128]
    with pytest.raises(InputError, match="vgg11 has no setting width"):
        build_network("vgg11", shape=(32, 32, 3), classes=10, width=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "convnot"}, "Did you mean convnet"),
        ({"norm": "layer"}, "Expected norm to be one of group, batch, got 'layer'"),
        ({"shape": (8, 8, 1)}, "at least 16x16 for convnet, got 8x8"),
        ({"classes": 0}, "positive"),
        ({"name": "wrn", "depth": 15}, "depth of 10, 16, 22"),
        ({"name": "vit-tiny", "norm": "batch"}, "LayerNorm"),
        ({"name": "scatternet", "norm": "batch"}, "within each record"),
        ({"name": "mlp", "norm": "batch"}, "mlp has no norm"),
        ({"depth": 0}, "depth of at least 1"),
    ],
)
def test_bad_settings_are_named(change, message):
    settings = {"name": "convnet", "shape": (16, 16, 1), "classes": 2} | change
    with pytest.raises(InputError, match=message):
        build_network(settings.pop("name"), **settings)


OWN = """
import torch
from torch import nn
def good(channels, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 8 * 12, classes))
def by_sides(**settings):
    return nn.Sequential(nn.Flatten(), nn.Linear(settings["height"] * settings["width"], settings["classes"]))
def narrow(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(96, classes - 1))
def no_module(classes):
    return "resnet"
def raises():
    raise RuntimeError("no weights here")
def wrong_input():
    return nn.Linear(3, 2)
number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "veilset_own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "veilset_own_networks"
    sys.modules.pop("veilset_own_networks", None)


@pytest.mark.parametrize("function", ["good", "by_sides"])
def test_own_network_from_the_working_directory(own_module, function):
    path = list(sys.path)
    network = build_network(f"{own_module}:{function}", shape=(8, 12, 1), classes=5)
    assert network(torch.rand(3, 1, 8, 12)).shape == (3, 5)
    assert network.training
    assert sys.path == path


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("narrow", r"logits of shape \(2, 5\) for 2 images, got \(2, 4\)"),
        ("no_module", "return a torch.nn.Module, got str"),
        ("raises", "RuntimeError: no weights here"),
        ("wrong_input", "failed on images of"),
        ("number", "function or class, got int"),
        ("missing", "Cannot load"),
    ],
)
def test_own_network_errors(own_module, function, message):
    with pytest.raises(InputError, match=message):
        build_network(f"{own_module}:{function}", shape=(8, 12, 1), classes=5)


def test_own_network_refuses_a_built_in_width(own_module):
    with pytest.raises(InputError, match="image's width"):
        build_network(f"{own_module}:good", shape=(8, 12, 1), classes=5, width=64)


def test_listing_networks_does_not_import_torch():
    code = "import sys, veilset.models as m; list(m.NETWORKS); print('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (6, 1), (16, 4), (24, 6), (58, 2), (116, 29), (512, 32)])
def test_group_count_divides_and_leaves_four_channels(channels, groups):
    assert group_count(channels) == groups
    assert channels % groups == 0


def test_sizes_by_hand():
    assert [halvings(size, most=5) for size in (16, 28, 32, 64, 96, 224)] == [2, 3, 3, 4, 5, 5]
    assert [stem_stride(size) for size in (16, 28, 55, 56, 112, 224)] == [1, 1, 1, 2, 4, 8]


def test_shuffle_interleaves_the_halves():
    maps = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffle_halves(maps).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_positions_differ_for_every_patch():
    positions = grid_positions(8, 9, 192)
    distances = torch.cdist(positions, positions) + 10 * torch.eye(72)
    assert distances.min() > 0.1
