"""Bad use gets the named error, before private data where that is possible."""

import pytest
import torch
from reference import cross_entropy
from torch import nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.dpsgd import ClippedGradients, LinearHeadGradients


def head() -> nn.Module:
    return nn.Linear(4, 3)


def head_gradients(model):
    return LinearHeadGradients(model, 1.0)


def run(model, loss=cross_entropy, **settings):
    rows = 4
    engine = ClippedGradients(model, loss, settings.pop("clip_norm", 1.0), **settings)
    return engine.sum(torch.rand(rows, 4), torch.randint(0, 3, (rows,)))


def test_batch_norm_is_refused_by_name():
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    message = "BatchNorm2d at 'features.1' mixes records, so per-record clipping is undefined. Use GroupNorm."
    with pytest.raises(InputError) as caught:
        ClippedGradients(model, cross_entropy, 1.0).sum(torch.rand(2, 1, 5, 5), torch.zeros(2, dtype=torch.int64))
    assert str(caught.value) == message


def test_running_statistics_are_refused():
    model = nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), head())
    with pytest.raises(InputError, match="InstanceNorm1d at '0' keeps running statistics"):
        run(model)


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.sum().detach()
        return x


def test_a_module_that_mixes_records_is_found_and_named():
    with pytest.raises(InputError, match="Centred at '1' mixes records"):
        run(nn.Sequential(nn.Linear(4, 4), Centred(), head()))


def test_a_module_that_remembers_records_is_found_and_left_as_it_was():
    model = nn.Sequential(Counting(), head())
    with pytest.raises(InputError, match=r"changes its buffer '0\.seen'"):
        run(model)
    assert float(model[0].seen) == 0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (functional.cross_entropy, r"Expected one loss for each record, shape \(\d+,\), got \(\)"),
        (lambda o, t: cross_entropy(o, t).mean().expand(len(o)), "The loss mixes records"),
        (lambda o, t: cross_entropy(o - o.mean(0), t), "The loss mixes records"),
        (lambda o, t: cross_entropy(o, t) / len(o), "changes with the size of its batch"),
        (lambda o, t: t.float(), "does not depend on the model's outputs"),
    ],
)
def test_a_loss_that_mixes_records_is_refused(loss, message):
    with pytest.raises(InputError, match=message):
        run(head(), loss)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("make", [lambda model: ClippedGradients(model, cross_entropy, 1.0), head_gradients])
def test_a_unit_that_is_not_finite_counts_as_zero_and_says_nothing(make, bad):
    """An error would tell that such a record is among the private ones."""
    engine = make(head())
    rows, labels = torch.rand(5, 4), torch.zeros(5, dtype=torch.int64)
    expected = engine.sum(rows, labels)
    more = torch.cat([rows, torch.full((1, 4), bad)])
    assert all(
        torch.equal(*pair) for pair in zip(expected, engine.sum(more, torch.zeros(6, dtype=torch.int64)), strict=True)
    )


@pytest.mark.parametrize("make", [lambda model: ClippedGradients(model, cross_entropy, 1.0), head_gradients])
def test_weights_that_are_not_finite_are_said_because_they_are_public(make):
    engine = make(head())
    rows, labels = torch.rand(2, 4), torch.zeros(2, dtype=torch.int64)
    engine.sum(rows, labels)
    with torch.no_grad():
        engine.parameters[0][0, 0] = float("nan")
    with pytest.raises(VeilsetError, match="The weights are not finite after 1 steps"):
        engine.sum(rows, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": 0.0}, "Expected clip_norm > 0, from 1e-09 to .*, got 0.0"),
        ({"clip_norm": -1.0}, "got -1.0"),
        ({"clip_norm": float("nan")}, "got nan"),
        ({"clip_norm": float("inf")}, "got inf"),
        ({"clip_norm": 1e-43}, "got 1e-43"),
        ({"stabiliser": 8e-315}, "Expected stabiliser from 1e-09 to .*, got 8e-315"),
        ({"stabiliser": float("inf")}, "Expected stabiliser from"),
        ({"mode": "ghost"}, "Expected mode to be one of flat, automatic, per_layer, got 'ghost'"),
        ({"keep_fraction": 0.0}, "Expected 0 < keep_fraction <= 1, got 0.0"),
        ({"keep_signs": -1}, "Expected keep_signs >= 0, got -1"),
        ({"keep_signs": 2, "mode": "automatic"}, "keep_signs is a rule of its own"),
        ({"copies": 0}, "Expected copies >= 1, got 0"),
        ({"copies": 4, "max_rows": 3}, "Expected max_rows >= copies=4, got 3"),
        ({"copies": 3}, "Expected 3 rows for each unit and as many targets, got 4 rows"),
        ({"stabiliser": 0.0}, "Expected stabiliser from 1e-09 to .*, got 0.0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        run(head(), **settings)


def test_a_model_without_trainable_parameters():
    with pytest.raises(InputError, match="Expected a model with trainable parameters"):
        run(head().requires_grad_(False))


def test_an_embedding_that_renormalises_is_refused():
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(InputError, match="without max_norm"):
        ClippedGradients(model, cross_entropy, 1.0).sum(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2).long())
