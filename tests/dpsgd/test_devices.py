"""Every tensor of the engine lies where the model lies, without a second device to try it on.

The default device is set to "meta", which holds no numbers, while model and batch stay on the CPU: a tensor that the
engine makes without saying where would be made there, and could not meet the others.
"""

import pytest
import torch
from reference import clipped, cross_entropy, difference, flat, unit_gradients
from torch import nn

from veilset.dpsgd import ClippedGradients, LinearHeadGradients
from veilset.training.settings import WeightAverage


class Everything(nn.Module):
    """A layer of every kind that has a rule, one used twice, one unused, one by vmap."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 16)
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.many = nn.Conv2d(96, 96, 3, padding=1)
        self.wide = nn.Conv2d(16, 96, 1)
        self.back = nn.ConvTranspose2d(96, 16, 2, stride=2)
        self.norm, self.slope = nn.GroupNorm(4, 8), nn.PReLU(16)
        self.scale = nn.Parameter(torch.ones(16))
        self.token = nn.Parameter(torch.zeros(1, 16))
        self.layer_norm, self.twice, self.head = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, images, classes):
        maps = self.slope(self.second(torch.relu(self.norm(self.first(images)))))
        maps = self.back(torch.relu(self.many(torch.relu(self.wide(maps)))))
        rows = self.scale * self.layer_norm(maps.mean(dim=(2, 3))) + self.table(classes)
        rows = rows + self.token.expand(len(rows), -1)
        return self.head(self.twice(torch.relu(self.twice(rows))))


@pytest.mark.parametrize("mode", ["flat", "per_layer"])
@pytest.mark.parametrize("keep_fraction", [1.0, 0.5])
def test_the_engine_makes_nothing_elsewhere(mode, keep_fraction):
    model = Everything()
    inputs, targets = (torch.rand(6, 1, 8, 8), torch.arange(6) % 3), torch.arange(6) % 3
    settings = {"mode": mode, "keep_fraction": keep_fraction, "max_rows": 4}
    expected = flat(ClippedGradients(model, cross_entropy, 0.5, **settings).sum(inputs, targets))
    with torch.device("meta"):
        engine = ClippedGradients(model, cross_entropy, 0.5, **settings)
        totals = engine.sum(inputs, targets)
        nothing = engine.sum(tuple(side[:0] for side in inputs), targets[:0])
    assert {total.device.type for total in totals + nothing} == {"cpu"}
    assert torch.equal(flat(totals), expected)


def test_the_whole_model_by_vmap():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))
    inputs, targets = torch.rand(4, 1, 4, 4), torch.arange(4) % 3
    rows = unit_gradients(model, cross_entropy, inputs, targets)
    with torch.device("meta"):
        engine = ClippedGradients(model, cross_entropy, 0.5)
        engine.check(inputs, targets)
        engine._route = type(engine._route)(whole=True)
        total = flat(engine.sum(inputs, targets))
    assert difference(total, clipped(rows, 0.5)) < 1e-5


def test_heads_and_averages():
    head, rows, targets = nn.Linear(5, 3), torch.rand(6, 5), torch.arange(6) % 3
    expected = flat(LinearHeadGradients(head, 0.5).sum(rows, targets))
    with torch.device("meta"):
        assert torch.equal(flat(LinearHeadGradients(head, 0.5).sum(rows, targets)), expected)
        average = WeightAverage(head, None)
        average.update(head, 0)
    assert {value.device.type for value in average.state.values()} == {"cpu"}


def test_a_tensor_made_elsewhere_does_not_pass_unseen():
    model, inputs, targets = nn.Linear(5, 3), torch.rand(6, 5), torch.arange(6) % 3
    with torch.device("meta"), pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        ClippedGradients(model, lambda o, t: cross_entropy(o, t) * torch.ones(len(o)), 0.5).sum(inputs, targets)
