"""The clipped sum: networks, modes, multiplicity, compression, micro-batches, and what must not survive."""

import copy
import gc
import importlib.util
import math
import warnings

import pytest
import torch
from reference import clipped, cross_entropy, difference, flat, squared_error, unit_gradients
from torch import nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.dpsgd import ClippedGradients
from veilset.dpsgd.exact import MARGIN
from veilset.dpsgd.passes import Route
from veilset.dpsgd.probe import probe
from veilset.methods.shared.critics import build_critic
from veilset.models import build_network


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 4, 3),
    )


def small_batch(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 1, 8, 8), torch.randint(0, 3, (rows,))


class Twice(nn.Module):
    """One module used three times, once on its own output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.norm = nn.GroupNorm(1, 5)

    def forward(self, x):
        return self.norm(self.layer(torch.tanh(self.norm(self.layer(x))))) + self.layer(x)


class Tied(nn.Module):
    """The embedding's table is also the decoder's weight."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.decoder = nn.Linear(4, 6, bias=False)
        self.decoder.weight = self.table.weight

    def forward(self, tokens):
        return self.decoder(torch.tanh(self.table(tokens))).mean(1)


class Positions(nn.Module):
    """Parameters of its own: a token, positions and a scale, as in a vision transformer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 5))
        self.positions = nn.Parameter(torch.randn(4, 5))
        self.scale = nn.Parameter(torch.randn(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head((self.scale * tokens).mean(1))


class Standardised(nn.Conv2d):
    """A weight that is computed from the parameter: no rule."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias)


class BatchSecond(nn.Module):
    """Works on (positions, batch, width): the rules look at the wrong axis, and the probe must notice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x.transpose(0, 1))).sum(0))


class Folded(nn.Module):
    """Folds positions into the batch, record after record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x.reshape(-1, 5))).view(len(x), -1, 5).sum(1))


NETWORKS = {
    "small": (small_network, lambda n: (torch.randn(n, 1, 8, 8), torch.randint(0, 3, (n,))), Route()),
    "twice": (Twice, lambda n: (torch.randn(n, 5), torch.randint(0, 5, (n,))), Route()),
    "tied": (Tied, lambda n: (torch.randint(0, 6, (n, 4)), torch.randint(0, 6, (n,))), Route()),
    "positions": (Positions, lambda n: (torch.randn(n, 3, 5), torch.randint(0, 3, (n,))), Route()),
    "apart": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.PReLU(4), Standardised(4, 3, 3), nn.Flatten(), nn.Linear(48, 3)),
        lambda n: (torch.randn(n, 1, 8, 8), torch.randint(0, 3, (n,))),
        Route(apart=("1", "2")),
    ),
    "batch-second": (
        BatchSecond,
        lambda n: (torch.randn(n, 3, 5), torch.randint(0, 3, (n,))),
        Route(whole=True),
    ),
    "folded": (Folded, lambda n: (torch.randn(n, 3, 5), torch.randint(0, 3, (n,))), Route()),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda n: (torch.randn(n, 3, 8), torch.randint(0, 3, (n, 8))),
        Route(whole=True),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("copies", [1, 3])
def test_networks_equal_a_loop_of_plain_autograd(name, copies):
    make, rows_of, route = NETWORKS[name]
    model = make()
    inputs, targets = rows_of(6)
    loss = cross_entropy if name != "attention" else lambda o, t: cross_entropy(o.transpose(1, 2), t[:, :3]).mean(1)
    rows = unit_gradients(model, loss, inputs, targets, copies)
    bound = float(rows.norm(dim=1).median())
    engine = ClippedGradients(model, loss, bound, copies=copies)
    assert difference(flat(engine.sum(inputs, targets)), clipped(rows, bound)) < 1e-5
    assert engine._route == route


@pytest.mark.parametrize(
    "name",
    [
        "convnet",
        "convnet-tanh",
        "convnet-even",
        "lenet",
        "resnet18",
        "vgg11",
        "mobilenetv2",
        "shufflenetv2",
        "wrn",
        "vit-tiny",
    ],
)
def test_every_network_of_ours_goes_by_rules(name):
    model = build_network(name, shape=(16, 16, 3), classes=4)
    inputs, targets = torch.rand(3, 3, 16, 16), torch.arange(3)
    torch.manual_seed(1)
    rows = unit_gradients(model.eval(), cross_entropy, inputs, targets)
    bound = float(rows.norm(dim=1).median())
    engine = ClippedGradients(model, cross_entropy, bound)
    assert difference(flat(engine.sum(inputs, targets)), clipped(rows, bound)) < 1e-5
    assert engine._route == Route()


# Small forms where the family has one.
OPACUS_NETWORKS = {
    "convnet": {"width": 16},
    "lenet": {},
    "resnet18": {},
    "wrn": {"width": 1, "depth": 10},
    "vgg11": {},
    "mobilenetv2": {},
    "shufflenetv2": {},
    "vit-tiny": {},
}


@pytest.mark.skipif(importlib.util.find_spec("opacus") is None, reason="opacus is not installed")
@pytest.mark.parametrize("name", OPACUS_NETWORKS)
def test_whole_networks_equal_opacus(name):
    model = build_network(name, shape=(16, 16, 3), classes=4, **OPACUS_NETWORKS[name])
    for part in model.modules():  # Opacus listens in training mode only, where dropout would differ between runs
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    inputs, targets = torch.rand(3, 3, 16, 16), torch.arange(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
        cross_entropy(wrapped(inputs), targets).sum().backward()
        rows = torch.cat([value.grad_sample.flatten(1) for value in wrapped.parameters()], dim=1)
    bound = float(rows.norm(dim=1).median())
    ours = flat(ClippedGradients(model, cross_entropy, bound).sum(inputs, targets))
    assert difference(ours, clipped(rows, bound)) < 1e-5


CRITICS_TO_TRY = {
    "dcgan": {"width": 8},
    "dcgan-layer": {"width": 8, "norm": "layer"},
    "dcgan-none": {"width": 8, "norm": "none"},
    "resnet": {"width": 8},
    "resnet-none": {"width": 8, "norm": "none"},
    "scattering": {},
}


def real_or_fake(logits, targets):
    return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")


@pytest.mark.parametrize("name", CRITICS_TO_TRY)
@pytest.mark.parametrize("copies", [1, 2])
def test_critics_of_images_and_classes(name, copies):
    """Two inputs: by rules, in micro-batches, the clipped sums are those of vmap over the whole model."""
    model = build_critic(name.partition("-")[0], size=28, channels=1, classes=3, **CRITICS_TO_TRY[name])
    inputs, targets = (torch.rand(6, 1, 28, 28), torch.tensor([0, 1, 2, 2, 1, 0])), torch.tensor([1.0, 0, 1, 0, 0, 1])
    engine = ClippedGradients(model, real_or_fake, 0.05, copies=copies, max_rows=4)
    ours = flat(engine.sum(inputs, targets))
    assert engine._route == Route()
    by_vmap = ClippedGradients(model, real_or_fake, 0.05, copies=copies)
    if name == "scattering":  # its own backward pass knows no vmap; plain autograd is the reference
        losses = real_or_fake(model(*inputs), targets).view(-1, copies).mean(1)
        rows = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
        expected = clipped(torch.stack([flat(list(row)) for row in rows]), 0.05)
    else:
        by_vmap._route = Route(whole=True)
        expected = flat(by_vmap.sum(inputs, targets))
    assert difference(ours, expected) < 1e-5


def test_a_critic_that_mixes_classes_of_others():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, rows, classes):
            return self.layer(rows)[:, 0] * classes.float().flip(0)

    engine = ClippedGradients(Mixing(), real_or_fake, 0.5)
    with pytest.raises(InputError, match="mixes records"):
        engine.check((torch.rand(5, 4), torch.tensor([1, 2, 3, 4, 5])), torch.ones(5))
    with pytest.raises(InputError, match="got 2 rows and 3 targets"):
        engine.sum((torch.rand(3, 4), torch.ones(2, dtype=torch.int64)), torch.ones(3))


def test_automatic_clipping():
    model, (inputs, targets) = small_network(), small_batch()
    rows = unit_gradients(model, cross_entropy, inputs, targets).double()
    expected = (0.5 * (1 - MARGIN) * rows / (rows.norm(dim=1, keepdim=True) + 0.02)).sum(0)
    engine = ClippedGradients(model, cross_entropy, 0.5, mode="automatic", stabiliser=0.02)
    assert difference(flat(engine.sum(inputs, targets)), expected) < 1e-5


def test_per_layer_clipping():
    model, (inputs, targets) = small_network(), small_batch()
    rows = unit_gradients(model, cross_entropy, inputs, targets)
    layers = [sum(value.numel() for value in module.parameters()) for module in model if list(module.parameters())]
    bound = 0.3
    pieces = [clipped(piece, bound / math.sqrt(len(layers))) for piece in rows.split(layers, dim=1)]
    engine = ClippedGradients(model, cross_entropy, bound, mode="per_layer")
    assert difference(flat(engine.sum(inputs, targets)), torch.cat(pieces)) < 1e-5


@pytest.mark.parametrize("fraction", [0.1, 0.9])
@pytest.mark.parametrize("mode", ["flat", "per_layer"])
def test_compression_keeps_the_largest_coordinates(fraction, mode):
    model, (inputs, targets) = small_network(), small_batch()
    rows = unit_gradients(model, cross_entropy, inputs, targets)
    kept = round(fraction * rows.shape[1])
    places = rows.abs().topk(kept, dim=1).indices
    sparse = torch.zeros_like(rows).scatter_(1, places, rows.gather(1, places))
    bound = 0.4
    layers = [sum(value.numel() for value in module.parameters()) for module in model if list(module.parameters())]
    if mode == "flat":
        expected = clipped(sparse, bound)
    else:
        expected = torch.cat([clipped(piece, bound / math.sqrt(len(layers))) for piece in sparse.split(layers, dim=1)])
    engine = ClippedGradients(model, cross_entropy, bound, keep_fraction=fraction, mode=mode)
    assert difference(flat(engine.sum(inputs, targets)), expected) < 1e-5


@pytest.mark.parametrize("kept", [1, 20, 10**6])
def test_signs_of_the_largest_coordinates_have_one_length(kept):
    model, (inputs, targets) = small_network(), small_batch()
    rows = unit_gradients(model, cross_entropy, inputs, targets)
    count = min(kept, rows.shape[1])
    places = rows.abs().topk(count, dim=1).indices
    signs = torch.zeros_like(rows).scatter_(1, places, rows.gather(1, places).sign())
    bound = 0.4
    engine = ClippedGradients(model, cross_entropy, bound, keep_signs=kept)
    found = flat(engine.sum(inputs, targets))
    assert difference(found, (bound / math.sqrt(count) * signs).sum(0)) < 1e-3  # the margin that rounding is left
    for row in range(len(inputs)):
        one = flat(engine.sum(inputs[row : row + 1], targets[row : row + 1]))
        assert float(one.norm()) <= engine.sensitivity


@pytest.mark.parametrize("max_rows", [2, 4, 5, 100])
@pytest.mark.parametrize("copies", [1, 2])
def test_micro_batches_change_nothing(max_rows, copies):
    model, (inputs, targets) = small_network(), small_batch(10)
    whole = ClippedGradients(model, cross_entropy, 0.5, copies=copies).sum(inputs, targets)
    parts = ClippedGradients(model, cross_entropy, 0.5, copies=copies, max_rows=max_rows).sum(inputs, targets)
    assert difference(flat(parts), flat(whole)) < 1e-6


def test_memory_decides_the_micro_batch(monkeypatch):
    model, (inputs, targets) = small_network(), small_batch(10)
    engine = ClippedGradients(model, cross_entropy, 0.5)
    expected = engine.sum(inputs, targets)
    assert engine._units_at_once == 64
    _, bytes_per_unit = probe(model, cross_entropy, engine.parameters, (inputs,), targets, 1, write_out=False)
    monkeypatch.setattr("veilset.dpsgd.clipping._MEMORY", 3.5 * bytes_per_unit)
    engine.check(inputs, targets)
    assert engine._units_at_once == 3
    assert difference(flat(engine.sum(inputs, targets)), flat(expected)) < 1e-6


@pytest.mark.parametrize("shape", [(0, 1, 8, 8)])
def test_an_empty_batch_gives_zeros(shape):
    model = small_network()
    engine = ClippedGradients(model, cross_entropy, 0.5)
    totals = engine.sum(torch.zeros(shape), torch.zeros(0, dtype=torch.int64))
    assert [total.shape for total in totals] == [value.shape for value in model.parameters()]
    assert not any(bool(total.any()) for total in totals)


def test_frozen_parameters_cost_nothing():
    model, (inputs, targets) = small_network(), small_batch()
    model[0].requires_grad_(False)
    model[4].weight.requires_grad_(False)
    rows = unit_gradients(model, cross_entropy, inputs, targets)
    totals = ClippedGradients(model, cross_entropy, 0.5).sum(inputs, targets)
    assert len(totals) == 5
    assert difference(flat(totals), clipped(rows, 0.5)) < 1e-5


@pytest.mark.parametrize("mode", ["flat", "automatic", "per_layer"])
@pytest.mark.parametrize("keep_fraction", [1.0, 0.5])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6, 1e15, 1e25])
def test_no_unit_contributes_more_than_the_bound(mode, keep_fraction, size):
    model = small_network()
    engine = ClippedGradients(
        model, lambda o, t: size * cross_entropy(o, t), 0.25, mode=mode, keep_fraction=keep_fraction
    )
    for _ in range(3):
        inputs, targets = small_batch(1)
        assert float(flat(engine.sum(inputs * 100, targets)).norm()) <= engine.sensitivity


def test_a_gradient_that_is_no_number_counts_as_zero():
    model = nn.Linear(3, 2, bias=False)
    inputs, targets = torch.rand(4, 3), torch.zeros(4)
    inputs[1] = 0  # the slope of the root is infinite there, while the loss is not
    engine = ClippedGradients(model, lambda outputs, _: outputs.abs().sqrt().sum(1), 0.5)
    others = torch.tensor([0, 2, 3])
    signs = ClippedGradients(model, lambda outputs, _: outputs.abs().sqrt().sum(1), 0.5, keep_signs=2)
    assert not flat(signs.sum(inputs[1:2], targets[1:2])).any()
    assert torch.equal(flat(engine.sum(inputs, targets)), flat(engine.sum(inputs[others], targets[others])))
    assert not flat(engine.sum(inputs[1:2], targets[1:2])).any()


@pytest.mark.parametrize("name", ["small", "twice", "tied", "positions", "apart", "batch-second", "folded"])
@pytest.mark.parametrize("copies", [1, 2])
def test_neighbouring_batches_differ_by_at_most_the_bound(name, copies):
    make, rows_of, _ = NETWORKS[name]
    model = make()
    inputs, targets = rows_of(6)
    loss = lambda o, t: 1e3 * cross_entropy(o, t)  # noqa: E731
    engine = ClippedGradients(model, loss, 0.7, copies=copies)
    more = flat(engine.sum(inputs, targets))
    for unit in range(6 // copies):
        kept = torch.arange(6) // copies != unit
        assert float((more - flat(engine.sum(inputs[kept], targets[kept]))).norm()) <= 0.7


def test_nothing_of_a_batch_survives():
    model, (inputs, targets) = small_network(), small_batch(5)
    engine = ClippedGradients(model, cross_entropy, 0.5)
    engine.sum(inputs, targets)
    gc.collect()
    before = {id(value) for value in gc.get_objects() if issubclass(type(value), torch.Tensor)}
    totals = engine.sum(inputs, targets)
    gc.collect()
    # A returned view and its base are one memory: the sum itself.
    returned = {total.untyped_storage().data_ptr() for total in totals}
    found = [value for value in gc.get_objects() if issubclass(type(value), torch.Tensor) and id(value) not in before]
    left = [value for value in found if value.untyped_storage().data_ptr() not in returned]
    assert left == []
    assert all(value.grad is None for value in model.parameters())


def test_hooks_and_parameters_are_restored_after_an_error():
    model = NETWORKS["apart"][0]()
    inputs, targets = NETWORKS["apart"][1](4)
    failing = False

    def loss(outputs, targets):
        if failing:
            raise RuntimeError("on purpose")
        return cross_entropy(outputs, targets)

    engine = ClippedGradients(model, loss, 0.5)
    expected = engine.sum(inputs, targets)
    failing = True
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.sum(inputs, targets)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(value.requires_grad for value in model.parameters())
    failing = False
    assert difference(flat(engine.sum(inputs, targets)), flat(expected)) < 1e-6


def test_the_callers_random_stream_is_kept():
    engine = ClippedGradients(small_network(), cross_entropy, 0.5)
    state = torch.random.get_rng_state()
    engine.check(torch.linspace(0, 1, 192).view(3, 1, 8, 8).sin(), torch.zeros(3, dtype=torch.int64))
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_same_batch_gives_the_same_bits():
    model, (inputs, targets) = small_network(), small_batch()
    engine = ClippedGradients(model, squared_error_of_classes, 0.5)
    assert torch.equal(flat(engine.sum(inputs, targets)), flat(engine.sum(inputs, targets)))


def squared_error_of_classes(outputs, targets):
    return squared_error(outputs, functional.one_hot(targets, 3).float())
