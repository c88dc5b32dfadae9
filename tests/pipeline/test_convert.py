"""Conversion of a trained network: a release's guarantee carries over, a network of one's own has none."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from veilset.core.errors import InputError, VerificationError
from veilset.data.images import ImageSet
from veilset.models import build_network
from veilset.pipeline.convert import Conversion, convert_network, convert_networks, convert_release
from veilset.pipeline.job import Job
from veilset.pipeline.model_files import Declared, Together
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import load_release
from veilset.release.verify import verify_release

LOOP = {"steps": "2", "settle_steps": "2", "batch": "16", "student_batch": "16", "bank": "32", "width": "16"}
SMALL = {**LOOP, "warmup_steps": "2", "random_features": "64", "pictures": "60", "variant": "B", "teachers": "20"}
CONVERSION = Conversion(samples=20, settings=LOOP)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    coins, labels = np.random.default_rng(0), np.arange(400) % 2
    images = coins.integers(0, 120, (400, 16, 16, 1)) + 120 * labels[:, None, None, None]
    vault = Vault(ImageSet(images.astype(np.uint8), labels))
    release = run(vault, Job(method="dfd", epsilon=8.0, settings=SMALL, samples=20), workspace=tmp_path / "run")
    return release.save(tmp_path / "first")


def test_the_guarantee_of_a_release_carries_over(published: Path, tmp_path: Path) -> None:
    before = load_release(published).certificate
    made = convert_release(published, CONVERSION).save(tmp_path / "second")
    verified = verify_release(made)
    assert verified.ok, verified.problems
    after = load_release(made).certificate
    assert after.guarantee == "dp"
    assert (after.epsilon, after.ledger, after.samples) == (before.epsilon, before.ledger, 20)
    assert any("post-processing" in warning for warning in after.warnings)


def test_a_release_that_does_not_verify_is_refused(published: Path) -> None:
    with (published / "student.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(VerificationError, match="does not verify"):
        convert_release(published, CONVERSION)


def test_the_release_that_was_verified_is_the_one_that_is_converted(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a signed one could be shown for the signature, and another exchanged for it."""
    other = dataclasses.replace(load_release(published).certificate, warnings=("another",), files={})
    exchanged = dataclasses.replace(load_release(published), certificate=other).save(tmp_path / "other")
    monkeypatch.setattr("veilset.pipeline.convert.load_release", lambda _: load_release(exchanged))
    with pytest.raises(VerificationError, match="not the release that was verified"):
        convert_release(published, CONVERSION)


OWN = Declared(network="lenet", size=16, class_names=("a", "b"))


def test_a_network_of_ones_own_has_no_guarantee(tmp_path: Path) -> None:
    save_file(build_network("lenet", shape=(16, 16, 1), classes=2).state_dict(), tmp_path / "own.safetensors")
    made = convert_network(tmp_path / "own.safetensors", OWN, CONVERSION).save(tmp_path / "release")
    verified = verify_release(made)
    assert verified.ok, verified.problems
    certificate = load_release(made).certificate
    assert (certificate.guarantee, certificate.epsilon) == ("none", None)
    assert "user's own" in certificate.reasons[0]
    with pytest.raises(InputError, match="not those of convnet"):
        convert_network(tmp_path / "own.safetensors", dataclasses.replace(OWN, network="convnet"), CONVERSION)


def test_teachers_of_ones_own_answer_together_and_have_no_guarantee(published: Path, tmp_path: Path) -> None:
    """Nothing in files of weights shows that their training images were disjoint."""
    places = [tmp_path / f"own-{seed}.safetensors" for seed in range(3)]
    for seed, place in enumerate(places):
        save_file(build_network("lenet", shape=(16, 16, 1), classes=2, seed=seed).state_dict(), place)
    made = convert_networks(places, OWN, CONVERSION).save(tmp_path / "release")
    verified = verify_release(made)
    assert verified.ok, verified.problems
    certificate = load_release(made).certificate
    assert (certificate.guarantee, certificate.epsilon) == ("none", None)
    assert certificate.settings["teachers"] == 3
    assert "nor on whose images" in certificate.reasons[0]
    with pytest.raises(InputError, match="is a release, which converts alone"):
        convert_networks([places[0], published], OWN, CONVERSION)
    save_file(build_network("lenet", shape=(16, 16, 3), classes=2).state_dict(), tmp_path / "colour.safetensors")
    with pytest.raises(InputError, match="networks of one shape"):
        convert_networks([places[0], tmp_path / "colour.safetensors"], OWN, CONVERSION)
    with pytest.raises(InputError, match="at least one"):
        convert_networks([], OWN, CONVERSION)


def test_networks_together_say_the_mean_of_their_probabilities() -> None:
    networks = [build_network("lenet", shape=(16, 16, 1), classes=3, seed=seed).eval() for seed in range(4)]
    images = torch.rand(5, 1, 16, 16)
    said = torch.stack([network(images).softmax(dim=1) for network in networks]).mean(dim=0)
    assert torch.allclose(Together(networks)(images).softmax(dim=1), said, atol=1e-6)


def test_statistics_are_not_to_be_had(tmp_path: Path) -> None:
    save_file(build_network("lenet", shape=(16, 16, 1), classes=2).state_dict(), tmp_path / "own.safetensors")
    wanting = dataclasses.replace(CONVERSION, settings={**LOOP, "statistics_share": "0.2"})
    with pytest.raises(InputError, match="no statistics"):
        convert_network(tmp_path / "own.safetensors", OWN, wanting)


@pytest.mark.parametrize("name", ["stranger:network", "timm:resnet18", "torchvision:resnet18", "unknown", 3])
def test_what_a_strangers_file_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: object
) -> None:
    """A student's folder says what network it is of. That must be one of ours, or the user has to name it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stranger.py").write_text("raise SystemExit('code of a stranger ran')")
    save_file(build_network("lenet", shape=(16, 16, 1), classes=2).state_dict(), tmp_path / "student.safetensors")
    said = {"student": name, "shape": [16, 16, 1], "class_names": ["a", "b"]}
    (tmp_path / "student.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match=r"none of ours|does not say what network"):
        convert_network(tmp_path, Declared(), CONVERSION)
    assert convert_network(tmp_path, Declared(network="lenet"), CONVERSION).certificate.guarantee == "none"


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        "{",
        '{"student": "lenet", "shape": [1000000, 1000000, 1]}',
        '{"student": "lenet", "shape": [16]}',
        '{"student": "lenet", "shape": [16, 16, 1], "class_names": [1, 2]}',
    ],
)
def test_a_description_of_another_form_is_named(tmp_path: Path, said: str) -> None:
    save_file(build_network("lenet", shape=(16, 16, 1), classes=2).state_dict(), tmp_path / "student.safetensors")
    (tmp_path / "student.json").write_text(said)
    with pytest.raises(InputError, match=r"student\.json"):
        convert_network(tmp_path, Declared(), CONVERSION)
