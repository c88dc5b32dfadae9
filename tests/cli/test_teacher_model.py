"""`veilset synthesize --teacher-model`: what it asks for, and a network of one's own from end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from veilset.cli.main import app
from veilset.models import build_network

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
