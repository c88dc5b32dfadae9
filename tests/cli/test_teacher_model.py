"""`veilset synthesize --teacher-model`: what it asks for, and a network of one's own from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from veilset.cli.main import app
from veilset.data.images import ImageSet
from veilset.models import build_network
from veilset.pipeline.job import Job
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


def synthesize(out: Path, *words: object) -> Result:
    return CliRunner().invoke(app, ["synthesize", *map(str, words), "--out", str(out)])


def test_a_network_of_ones_own(tmp_path: Path, weights: Path) -> None:
    np.savez(tmp_path / "pack.npz", images=np.zeros((40, 16, 16), dtype=np.uint8), labels=np.arange(40) % 2)
    chosen = [word for setting in SETTINGS for word in ("--set", setting)]
    done = synthesize(
        tmp_path / "rel", tmp_path / "pack.npz", "-m", "dfd", "--teacher-model", weights, "--teacher-network", "lenet",
        "--samples", 9, "--json", *chosen,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["guarantee"] == "none"


@pytest.mark.parametrize(
    ("method", "with_teacher", "message"),
    [
        ("dfd", False, "Expected PRIVATE and --epsilon"),
        ("merf", True, "is for the method dfd"),
        ("dfd", True, "Expected PRIVATE beside a network of your own"),
    ],
)
def test_what_is_missing(method: str, with_teacher: bool, message: str, tmp_path: Path, weights: Path) -> None:
    teacher = ("--teacher-model", weights) if with_teacher else ()
    done = synthesize(tmp_path / "rel", "-m", method, *teacher)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


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
    chosen = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ("-m", "dfd", "--teacher-model", published, "--samples", 9, *chosen)

    done = synthesize(tmp_path / "b", *words, "--sign", ours)
    assert done.exit_code == 2
    assert "Your signature would vouch" in " ".join(done.output.split())
    done = synthesize(tmp_path / "b", *words, "--sign", ours, "--key", public[theirs])
    assert done.exit_code == 5
    assert "is not signed" in " ".join(done.output.split())

    load_release(published).save(tmp_path / "signed", sign_key=theirs)
    words = ("-m", "dfd", "--teacher-model", tmp_path / "signed", "--samples", 9, *chosen)
    assert synthesize(tmp_path / "b", *words, "--sign", ours, "--key", public[other]).exit_code == 5
    done = synthesize(tmp_path / "b", *words, "--sign", ours, "--key", public[theirs])
    assert done.exit_code == 0, done.output
    assert verify_release(tmp_path / "b", public[ours]).ok
    assert synthesize(tmp_path / "c", *words).exit_code == 0
