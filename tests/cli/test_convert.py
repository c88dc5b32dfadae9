"""`veilset convert`: what it asks for, and a network of one's own from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from veilset.cli.main import app
from veilset.data.images import ImageSet
from veilset.models import build_network
from veilset.pipeline.job import Job
from veilset.pipeline.model_files import Declared, read_model
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import load_release
from veilset.release.signing import generate_key
from veilset.release.verify import verify_release

SETTINGS = ("steps=1", "settle_steps=1", "batch=8", "student_batch=8", "bank=8", "width=16")


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    place = tmp_path / "own.safetensors"
    save_file(build_network("lenet", shape=(16, 16, 1), classes=2).state_dict(), place)
    return place


CHOSEN = [word for setting in SETTINGS for word in ("--set", setting)]


def convert(out: Path, *words: object) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, words), "--out", str(out)])


def test_a_network_of_ones_own_needs_no_images(tmp_path: Path, weights: Path) -> None:
    words = (weights, "--network", "lenet", "--size", 16, "--samples", 9, "--json", *CHOSEN)
    done = convert(tmp_path / "rel", *words, "--classes", "well,ill")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["guarantee"] == "none"
    release = load_release(tmp_path / "rel")
    assert release.certificate.facts.class_names == ("well", "ill")
    assert release.images.shape == (9, 16, 16, 1)
    assert verify_release(tmp_path / "rel").ok


def test_a_state_dict_of_torch_with_other_inputs(tmp_path: Path) -> None:
    """Wrapped as training scripts do, from several GPUs, with pixels that were normalised."""
    network = build_network("lenet", shape=(16, 16, 1), classes=3)
    place = tmp_path / "own.pt"
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in network.state_dict().items()}}, place)
    declared = Declared(network="lenet", size=16, mean=(0.5,), deviation=(0.25,))
    teacher, facts, name = read_model(place, declared)
    assert (facts.shape, facts.classes, name) == ((16, 16, 1), 3, "lenet")
    images = torch.rand(4, 1, 16, 16)
    assert torch.allclose(teacher(images), network.eval()((images - 0.5) / 0.25), atol=1e-6)


def test_a_student_of_train_says_itself_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "student"
    folder.mkdir()
    network = build_network("lenet", shape=(16, 16, 1), classes=2)
    save_file(network.state_dict(), folder / "student.safetensors")
    said = {"student": "lenet", "shape": [16, 16, 1], "classes": 2, "class_names": ["a", "b"]}
    (folder / "student.json").write_text(json.dumps(said))
    _, facts, name = read_model(folder, Declared())
    assert (facts.shape, facts.class_names, name) == ((16, 16, 1), ("a", "b"), "lenet")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("own.safetensors",), "does not say what network it is of. Pass --network"),
        (("own.safetensors", "--network", "lenet"), "does not say how large its images are. Pass --size"),
        (("own.safetensors", "--network", "convnet", "--size", "16"), "The weights are not those of convnet"),
        (("own.safetensors", "--network", "timm:no", "--size", "16"), "timm"),
        (("own.safetensors", "--network", "lenet", "--size", "16", "--mean", "x"), "--mean as numbers"),
        (("own.safetensors", "--network", "lenet", "--size", "16", "--mean", "0,0"), "1 numbers for --mean"),
        (("own.safetensors", "--key", "k.pem"), "--key belongs to a release"),
        (("junk.pt", "--network", "lenet", "--size", "16"), "Expected weights at"),
        (("nosuch",), "nosuch does not exist"),
    ],
)
def test_what_is_missing(
    words: tuple[str, ...], message: str, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(weights.parent)
    (tmp_path / "junk.pt").write_bytes(b"no weights at all")
    done = convert(tmp_path / "rel", *words)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output
    assert not (tmp_path / "rel").exists()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A release with a student, made by somebody."""
    coins, labels = np.random.default_rng(0), np.arange(400) % 2
    images = coins.integers(0, 120, (400, 16, 16, 1)) + 120 * labels[:, None, None, None]
    chosen = dict(setting.split("=") for setting in SETTINGS) | {"warmup_steps": "1", "random_features": "32"}
    chosen |= {"pictures": "60", "variant": "B", "teachers": "20"}
    job = Job(method="dfd", epsilon=8.0, settings=chosen, samples=20)
    return Path(
        run(Vault(ImageSet(images.astype(np.uint8), labels)), job, workspace=tmp_path / "run").save(tmp_path / "a")
    )


def test_a_strangers_claim_is_not_signed_unless_a_key_vouches_for_it(tmp_path: Path, published: Path) -> None:
    theirs, ours, other = (tmp_path / name for name in ("theirs.pem", "ours.pem", "other.pem"))
    public = {key: generate_key(key) for key in (theirs, ours, other)}
    words = (published, "--samples", 9, *CHOSEN)

    done = convert(tmp_path / "b", *words, "--sign", ours)
    assert done.exit_code == 2
    assert "Your signature would vouch" in " ".join(done.output.split())
    done = convert(tmp_path / "b", *words, "--sign", ours, "--key", public[theirs])
    assert done.exit_code == 5
    assert "is not signed" in " ".join(done.output.split())

    load_release(published).save(tmp_path / "signed", sign_key=theirs)
    words = (tmp_path / "signed", "--samples", 9, *CHOSEN)
    assert convert(tmp_path / "b", *words, "--sign", ours, "--key", public[other]).exit_code == 5
    done = convert(tmp_path / "b", *words, "--sign", ours, "--key", public[theirs])
    assert done.exit_code == 0, done.output
    assert verify_release(tmp_path / "b", public[ours]).ok
    assert convert(tmp_path / "c", *words).exit_code == 0


def test_a_release_says_itself_what_its_network_is(tmp_path: Path, published: Path) -> None:
    done = convert(tmp_path / "b", published, "--network", "convnet")
    assert done.exit_code == 2
    assert "Leave --network" in " ".join(done.output.split())
