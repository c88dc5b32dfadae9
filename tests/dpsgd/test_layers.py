"""Every rule against a loop of plain autograd, vmap and Opacus; small and large units, one and several rows each."""

import importlib.util
import warnings

import pytest
import torch
from reference import clipped, difference, flat, squared_error, unit_gradients
from torch import nn

from veilset.dpsgd import ClippedGradients
from veilset.dpsgd.layers import convolution, costs

UNITS = 4

# Torch says this of its own convolution, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def image(channels: int, side: int = 9) -> tuple[int, ...]:
    return (channels, side, side)


LAYERS = {
    "linear": (lambda: nn.Linear(7, 5), (7,)),
    "linear-no-bias": (lambda: nn.Linear(7, 5, bias=False), (7,)),
    "linear-positions": (lambda: nn.Linear(6, 5), (3, 6)),
    "linear-many-positions": (lambda: nn.Linear(3, 2), (5, 4, 3)),
    "linear-wide": (lambda: nn.Linear(300, 400), (2, 300)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, padding=1), image(3)),
    "conv-many-channels": (lambda: nn.Conv2d(16, 32, 3, padding=1), image(16)),
    "conv-ghost": (lambda: nn.Conv2d(96, 96, 3, padding=1), image(96, 4)),
    "conv-ghost-stride": (lambda: nn.Conv2d(96, 96, 3, stride=2, padding=1), image(96, 7)),
    "conv-ghost-dilation": (lambda: nn.Conv2d(96, 64, 3, padding=2, dilation=2), image(96, 5)),
    "conv-stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), image(3)),
    "conv-uneven": (lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(0, 2), dilation=(1, 2)), image(3)),
    "conv-large-stride": (lambda: nn.Conv2d(9, 4, 2, stride=3), image(9)),
    "conv-1x1": (lambda: nn.Conv2d(10, 4, 1, stride=2), image(10)),
    "conv-same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), image(3)),
    "conv-same-even": (lambda: nn.Conv2d(3, 4, (4, 2), padding="same", dilation=(1, 3)), image(3)),
    "conv-valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), image(3)),
    "conv-reflect": (lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), image(3)),
    "conv-circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), image(3)),
    "conv-groups": (lambda: nn.Conv2d(6, 4, 3, padding=1, groups=2), image(6)),
    "conv-depthwise": (lambda: nn.Conv2d(6, 12, 3, padding=1, groups=6), image(6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2), (3, 11)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1), image(3, 5)),
    "transposed-groups": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2),
        image(4, 5),
    ),
    "group-norm": (lambda: nn.GroupNorm(2, 6), image(6)),
    "group-norm-vector": (lambda: nn.GroupNorm(2, 6), (6,)),
    "layer-norm": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer-norm-vector": (lambda: nn.LayerNorm(6), (6,)),
    "layer-norm-two-axes": (lambda: nn.LayerNorm([4, 6]), (3, 4, 6)),
    "instance-norm": (lambda: nn.InstanceNorm2d(3, affine=True), image(3)),
    "prelu-by-vmap": (lambda: nn.PReLU(6), image(6)),
}
OPACUS_LACKS = {"transposed", "transposed-groups", "conv-circular", "conv-reflect", "conv-same-even", "prelu-by-vmap"}


def network(make, shape) -> nn.Module:
    """The layer behind a frozen one, so that gradients flow past it, and with weights that are not all equal."""
    layer = make()
    with torch.no_grad():
        for value in layer.parameters():
            value.normal_()
    return nn.Sequential(nn.Identity(), layer)


def batch(model: nn.Module, shape, units: int = UNITS) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(units, *shape)
    return inputs, torch.randn_like(model(inputs)).detach()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("copies", [1, 2])
def test_equals_a_loop_of_plain_autograd(name, copies):
    model = network(*LAYERS[name])
    inputs, targets = batch(model, LAYERS[name][1], UNITS * copies)
    rows = unit_gradients(model, squared_error, inputs, targets, copies)
    bound = float(rows.norm(dim=1).median())
    engine = ClippedGradients(model, squared_error, bound, copies=copies)
    assert difference(flat(engine.sum(inputs, targets)), clipped(rows, bound)) < 1e-5


@pytest.mark.parametrize("name", LAYERS)
def test_equals_vmap(name):
    model = network(*LAYERS[name])
    inputs, targets = batch(model, LAYERS[name][1])
    values = {key: value.detach() for key, value in model.named_parameters()}

    def one(values, row, target):
        return squared_error(torch.func.functional_call(model, values, (row[None],)), target[None]).sum()

    found = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(values, inputs, targets)
    rows = torch.cat([found[key].flatten(1) for key in values], dim=1)
    bound = float(rows.norm(dim=1).median())
    assert (
        difference(flat(ClippedGradients(model, squared_error, bound).sum(inputs, targets)), clipped(rows, bound))
        < 1e-5
    )


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="opacus is not installed")
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in OPACUS_LACKS])
def test_equals_opacus(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        model = network(*LAYERS[name])
        inputs, targets = batch(model, LAYERS[name][1])
        wrapped = GradSampleModule(network(*LAYERS[name]), strict=False)
        wrapped._module.load_state_dict(model.state_dict())
        squared_error(wrapped(inputs), targets).mean().backward()
        rows = torch.cat([value.grad_sample.flatten(1) for value in wrapped.parameters()], dim=1)
    bound = float(rows.norm(dim=1).median())
    assert (
        difference(flat(ClippedGradients(model, squared_error, bound).sum(inputs, targets)), clipped(rows, bound))
        < 1e-5
    )


CONVOLUTIONS = [name for name in LAYERS if name.startswith("conv") and "1d" not in name and "3d" not in name]


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if "groups" not in name and "depthwise" not in name])
@pytest.mark.parametrize("way", ["grouped", "gathered", "rows", "ghost"])
@pytest.mark.parametrize("copies", [1, 2])
def test_every_way_of_a_convolution_gives_the_same(name, way, copies, monkeypatch):
    monkeypatch.setattr(
        convolution._Convolution,
        "_cheapest",
        lambda self, inputs, gradient, must_write_out: "grouped" if must_write_out and way == "ghost" else way,
    )
    model = network(*LAYERS[name])
    inputs, targets = batch(model, LAYERS[name][1], UNITS * copies)
    rows = unit_gradients(model, squared_error, inputs, targets, copies)
    bound = float(rows.norm(dim=1).median())
    engine = ClippedGradients(model, squared_error, bound, copies=copies)
    assert difference(flat(engine.sum(inputs, targets)), clipped(rows, bound)) < 1e-5


def test_each_way_is_the_cheapest_somewhere():
    def ways(units, channels, out, side):
        work, weights = side * side, channels * out * 9
        ghost = costs.ghost_cost(units, [(work, channels), (work, out)], shifts=9)
        return {
            "grouped": costs.grouped_cost(units, work, weights, aligned=channels % 16 == 0),
            "gathered": costs.windows_cost(units, work, channels * 9, weights),
            "rows": costs.windows_cost(units, work, channels * 3 if channels >= 8 else channels * 9 + 1, weights),
            "ghost": ghost + costs.product_cost(units, work, weights),
        }

    shapes = [(64, 32, 32, 32), (64, 3, 64, 32), (64, 128, 128, 16), (64, 512, 512, 4)]
    best = [min(found, key=found.get) for found in (ways(*shape) for shape in shapes)]
    assert best == ["grouped", "gathered", "rows", "ghost"]


class Tokens(nn.Module):
    def __init__(self, padding=None):
        super().__init__()
        self.table = nn.Embedding(6, 5, padding_idx=padding)
        self.head = nn.Linear(5, 2)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("copies", [1, 2])
def test_embedding(padding, copies):
    model = Tokens(padding)
    tokens, targets = torch.randint(0, 6, (8, 7)), torch.randn(8, 2)
    rows = unit_gradients(model, squared_error, tokens, targets, copies)
    bound = float(rows.norm(dim=1).median())
    engine = ClippedGradients(model, squared_error, bound, copies=copies)
    assert difference(flat(engine.sum(tokens, targets)), clipped(rows, bound)) < 1e-5


@pytest.mark.parametrize("name", ["conv-ghost", "linear-many-positions"])
def test_a_norm_of_cancelling_terms_is_not_underestimated(name):
    """Two positions whose large contributions almost cancel: single precision alone would call this gradient zero."""
    model = network(*LAYERS[name])
    inputs, targets = batch(model, LAYERS[name][1], 1)
    inputs[:] = 1000.0 + 1e-3 * torch.randn_like(inputs)

    def swinging(outputs, targets):
        signs = torch.ones_like(outputs).flatten(1)
        signs[:, ::2] = -1
        return (outputs.flatten(1) * signs * (1 + 1e-4 * targets.flatten(1))).sum(1)

    bound = 1e-3
    total = flat(ClippedGradients(model, swinging, bound).sum(inputs, targets))
    assert 0.5 * bound < float(total.norm()) <= bound * (1 + 1e-6)
