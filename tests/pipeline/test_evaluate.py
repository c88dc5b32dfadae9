"""One evaluation from end to end: every part says whether it needed private data, and nothing lands in the release."""

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.data.images import ImageSet
from veilset.evaluate.utility import reference_scores
from veilset.evaluate.utility.reference_scores import (
    Run,
    finished_score,
    private_teacher,
    public_score,
    released_classifier,
)
from veilset.methods import METHODS
from veilset.models import build_network
from veilset.models.descriptions import described
from veilset.pipeline.evaluate import FORMAT, FROM_SCRATCH, Evaluation, evaluate, pay_for_accuracy
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault
from veilset.release.format import load_release
from veilset.training.classifier import predict

SURE = "linear_student:linear"  # learns the brightness of images for certain
SUPPORT = str(Path(__file__).parent.parent / "support")
QUICK = Evaluation(epochs=1, wants_references=True)


def shades(count, seed):
    coins = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = (coins.integers(0, 80, (count, 16, 16, 1)) + 70 * labels[:, None, None, None]).astype(np.uint8)
    return ImageSet(images, labels, ("dark", "grey", "bright"))


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return made(tmp_path_factory.mktemp("release"), epsilon=4)


@pytest.fixture(scope="module")
def clear_release(tmp_path_factory):
    """Little noise, so that a student learns the shades for certain."""
    return made(tmp_path_factory.mktemp("clear"), epsilon=60)


def made(folder, epsilon):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [SUPPORT, *sys.path])
        patch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
        job = Job(method="tiny", epsilon=epsilon, delta=1e-5, samples=90)
        account = Account(folder / "account.sqlite")  # other fixtures of the session use the same records
        return run(Vault(shades(600, 0)), job, workspace=folder / "run", account=account).save(folder / "release")


@pytest.fixture(scope="module")
def result(release):
    before = {path.name: path.stat().st_mtime_ns for path in release.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        # The DP teacher has a test of its own; here it is a network that knows the shades.
        patch.setattr(reference_scores, "private_teacher", lambda *_: brightness())
        found = evaluate(release, QUICK, test=shades(60, 1), train=shades(600, 0), public=shades(150, 2))
    assert {path.name: path.stat().st_mtime_ns for path in release.iterdir()} == before
    return found


def brightness():
    import torch

    class Bright(torch.nn.Module):
        def forward(self, images):
            light = images.mean(dim=(1, 2, 3))[:, None]
            return -200 * (light - torch.tensor([40.0, 110.0, 180.0]) / 255) ** 2

    return Bright()


def test_the_result_is_json_with_the_keys_that_scripts_rely_on(result):
    again = json.loads(json.dumps(result, allow_nan=False))
    keys = {
        "accuracy",
        "accuracy_std",
        "balanced_accuracy",
        "auc",
        "calibration_error",
        "per_class",
        "seeds",
        "student",
    }
    assert keys <= set(again)
    assert again["format"] == FORMAT
    assert again["not_for_release"] is True
    assert again["students"][0]["accuracy"] == again["accuracy"]
    assert len(again["release"]["certificate_sha256"]) == 64


def test_all_three_yardsticks_are_there_and_private(result):
    marks = {mark["name"]: mark for mark in result["reference_scores"]}
    assert set(marks) == {"teacher", "public", "ceiling"}
    assert all(mark["needs_private_data"] for mark in marks.values())
    assert marks["teacher"]["accuracy"] > 0.9
    assert result["reference_scores_skipped"] == []


def test_likeness_is_marked_by_what_it_was_compared_with(result):
    marks = {(score["name"], score["against"]): score["needs_private_data"] for score in result["fidelity"]}
    assert marks[("diversity", "none")] is False
    assert marks[("fid", "public")] is False
    assert marks[("fid", "private")] is True
    assert marks[("nearest_ssim", "private")] is True
    shown = {picture["name"]: picture for picture in result["pictures"]}
    assert shown["nearest_internal"]["needs_private_data"] is True
    assert shown["nearest_public"]["needs_private_data"] is False
    assert shown["nearest_public"]["columns"] == ["synthetic", "public"]
    assert base64.b64decode(shown["nearest_public"]["png_base64"]).startswith(b"\x89PNG")


def test_what_cannot_be_had_is_said(release):
    found = evaluate(release, QUICK, test=shades(60, 1))
    assert found["reference_scores"] == []
    assert [mark["name"] for mark in found["reference_scores_skipped"]] == ["teacher", "public", "ceiling"]
    assert found["pictures"] == []


def test_misfits_are_refused_before_training(release, tmp_path):
    colour = ImageSet(np.zeros((9, 16, 16, 3), np.uint8), np.arange(9) % 3)
    two = ImageSet(np.zeros((9, 16, 16, 1), np.uint8), np.arange(9) % 2)
    for test, message in ((colour, "16x16x1 as in the release, got 16x16x3"), (two, "3 classes, got 2")):
        with pytest.raises(InputError, match=message):
            evaluate(release, QUICK, test=test)
    with pytest.raises(InputError, match="not a release"):
        evaluate(tmp_path, QUICK, test=shades(9, 1))
    forged = tmp_path / "forged"
    forged.mkdir()
    for path in release.iterdir():
        (forged / path.name).write_bytes(path.read_bytes() + (b" " if path.name == "card.md" else b""))
    with pytest.raises(VerificationError, match="not as it was published"):
        evaluate(forged, QUICK, test=shades(9, 1))
    with pytest.raises(InputError, match="different students"):
        Evaluation(students=("convnet", "convnet"))


def test_the_recommended_network_is_trained_once(release, monkeypatch):
    bare = load_release(release)
    recommending = replace(bare.certificate, settings={**bare.certificate.settings, "student_network": "lenet"})
    monkeypatch.setattr("veilset.pipeline.evaluate.load_release", lambda _: replace(bare, certificate=recommending))
    found = evaluate(release, Evaluation(students=("auto", "lenet"), epochs=1), test=shades(60, 1))
    assert [one["student"] for one in found["students"]] == ["lenet"]


def test_a_paid_accuracy_holds_nothing_else(release, tmp_path):
    account = Account(tmp_path / "account.sqlite")
    options = {"epsilon": 2.0, "delta": None, "account": account, "workspace": tmp_path / "run"}
    found = pay_for_accuracy(release, Evaluation(epochs=1), test=shades(300, 1), **options)
    assert set(found) == {"format", "release", "paid", "not_for_release"}
    assert found["not_for_release"] is False
    assert len(account.reservations) == 1
    with pytest.raises(InputError, match="one student with one seed"):
        pay_for_accuracy(release, Evaluation(seeds=2), test=shades(300, 1), **options)


def test_networks_of_a_release_are_rebuilt(release):
    bare = load_release(release)
    assert released_classifier(bare, "teacher") is None
    network = build_network("lenet", shape=(16, 16, 1), classes=3, seed=5)
    for description in (described("classifier", name="lenet"), {"student": "lenet"}):
        held = replace(bare, models={"student": (network.state_dict(), description)})
        rebuilt = released_classifier(held, "student")
        images = shades(6, 0).images
        np.testing.assert_allclose(predict(rebuilt, images), predict(network.eval(), images))
    own = replace(bare, models={"student": (network.state_dict(), {"student": "my:net"})})
    assert released_classifier(own, "student") is None
    misfit = replace(bare, models={"student": (network.state_dict(), described("classifier", name="convnet"))})
    with pytest.raises(InputError, match="does not fit the network 'convnet'"):
        released_classifier(misfit, "student")


def test_public_images_are_brought_to_shape_and_labelled():
    public = shades(120, 3).with_channels(3).resize(20)
    blind = ImageSet(public.images, np.zeros(120, np.int64))  # its own labels are not what is learned
    entry = public_score(brightness(), blind, shades(60, 1), 3, Run())
    assert entry["train_images"] == 120
    assert entry["accuracy"] > 0.5  # by its own labels it could only say one class of three


def stripes(count, seed):
    """Classes that differ in direction, which a teacher on scattering features sees; brightness it does not."""
    coins = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = coins.integers(0, 80, (count, 16, 16, 1))
    images[labels == 1, ::4] += 150
    images[labels == 2, :, ::4] += 150
    return ImageSet(images.astype(np.uint8), labels)


@pytest.mark.slow
def test_the_dp_teacher_is_trained_at_the_release_s_epsilon(release):
    teacher = private_teacher(stripes(600, 0), load_release(release), "record", Run())
    assert finished_score("teacher", teacher, stripes(60, 1), 3)["accuracy"] > 0.6


def test_a_test_set_in_another_order_of_classes_gets_the_same_score(clear_release):
    given = shades(60, 1)
    order = np.array([2, 0, 1])  # dark is now class 2, grey 0, bright 1
    turned = ImageSet(given.read(np.arange(60)), order[given.labels], ("grey", "bright", "dark"))
    wanted = Evaluation(students=(SURE,), epochs=600)
    one, other = (evaluate(clear_release, wanted, test=test)["accuracy"] for test in (given, turned))
    assert one == other > 0.6
    strange = ImageSet(given.read(np.arange(60)), given.labels, ("dark", "grey", "white"))
    with pytest.raises(InputError, match="Pass --classes"):
        evaluate(clear_release, wanted, test=strange)


def test_controls_stand_beside_the_score(clear_release):
    """Images teach: labelled noise and shuffled labels do not."""
    wanted = Evaluation(students=(SURE,), epochs=600, wants_controls=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_scores, "private_teacher", lambda *_: brightness())
        found = evaluate(clear_release, wanted, test=shades(60, 1), train=shades(600, 0))
    controls = {mark["name"]: mark["accuracy"] for mark in found["controls"]}
    assert set(controls) == {"noise", "shuffled"}
    assert found["mean_accuracy"] == found["accuracy"] > max(controls.values()) + 0.2


def test_three_networks_from_scratch_by_one_word(release):
    names = Evaluation(students=("scratch", "lenet")).names_for(load_release(release))
    assert names == [*FROM_SCRATCH, "lenet"]
