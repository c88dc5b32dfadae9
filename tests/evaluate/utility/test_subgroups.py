"""Scores by sex or age band: read from any source, each with its interval, and null where they cannot be told."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import veilset as vs
from veilset.cli.main import app
from veilset.core.errors import InputError
from veilset.data.opening import open_images
from veilset.data.subgroups import Subgroups, read_subgroups
from veilset.evaluate.utility.subgroups import scores_by

LABELS = np.array([0, 0, 1, 1, 0, 1])
SEX = Subgroups(column="sex", names=("f", "m", "x"), members=np.array([0, 0, 0, 0, 1, 1]))


def sure(answers: list[int]) -> np.ndarray:
    return np.eye(2)[answers] * 0.8 + 0.1


def test_each_part_has_its_own_scores() -> None:
    found = scores_by([SEX], LABELS, [sure([0, 0, 1, 1, 1, 0])])
    assert [(one["name"], one["n"], one.get("accuracy"), one.get("auc")) for one in found] == [
        ("f", 4, 1.0, 1.0),
        ("m", 2, 0.0, 0.0),
        ("x", 0, None, None),
    ]
    low, high = found[0]["accuracy_interval"]
    assert 0.3 < low < 0.7
    assert high == 1.0


def test_students_are_averaged_and_one_class_has_no_area() -> None:
    band = Subgroups(column="age", names=("young",), members=np.zeros(2, np.int64))
    (one,) = scores_by([band], np.array([1, 1]), [sure([1, 1]), sure([0, 1])])
    assert one["accuracy"] == 0.75
    assert one["auc"] is None
    json.dumps(one, allow_nan=False)


def test_findings_have_their_means() -> None:
    labels = np.array([[0, 1], [1, 0], [0, 1], [1, 0]])
    part = Subgroups(column="sex", names=("f", "m"), members=np.array([0, 0, 1, 1]))
    both = scores_by([part], labels, [np.array([[0.1, 0.9], [0.9, 0.2], [0.8, 0.2], [0.1, 0.7]])])
    assert [one["auc"] for one in both] == [1.0, 0.0]
    assert "average_precision" in both[0]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    coins = np.random.default_rng(0)
    labels = np.arange(120) % 2
    images = coins.integers(0, 120, (120, 16, 16)) + 120 * labels[:, None, None]
    np.savez(tmp_path / "data.npz", test_images=images.astype(np.uint8), test_labels=labels,
             test_sex=np.arange(120) // 2 % 2, test_age=np.arange(120))  # fmt: skip
    return tmp_path / "data.npz"


def test_columns_are_read_in_the_order_of_the_images(pack: Path) -> None:
    tested = open_images(f"{pack}:test")
    (sex,) = read_subgroups(f"{pack}:test", ["sex"], tested)
    assert sex.names == ("0", "1")
    assert np.array_equal(sex.members, np.arange(120) // 2 % 2)
    with pytest.raises(InputError, match="Make bands"):
        read_subgroups(f"{pack}:test", ["age"], tested)
    with pytest.raises(InputError, match="--limit"):
        read_subgroups(f"{pack}:test", ["sex"], tested, limit=10)


def test_evaluate_by_sex(pack: Path, tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (200, 16, 16, 1), dtype=np.uint8)
    vault = vs.Vault.from_arrays(images, np.arange(200) % 2)
    vs.synthesize(vault, method="merf", budget=vs.Budget(8.0, 1e-4), preset="smoke", samples=60).save(tmp_path / "r")
    command = ["evaluate", str(tmp_path / "r"), "--test", f"{pack}:test", "--epochs", "1", "--by", "sex"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "sex = 0 (60 images): AUC" in result.output
    as_json = CliRunner().invoke(app, [*command, "--json"])
    assert [part["n"] for part in json.loads(as_json.stdout.splitlines()[-1])["by"]] == [60, 60]
    unknown = CliRunner().invoke(app, [*command[:-1], "sez"])
    assert unknown.exit_code == 2
    assert "sez" in unknown.output


def test_balance_at_the_command_line() -> None:
    plan = ["plan", "--epsilon", "1", "--records", "5000", "--json"]
    found = CliRunner().invoke(app, [*plan, "--method", "imgsyn", "--balance", "as-found"])
    assert found.exit_code == 0, found.output
    assert "count" in found.stdout
    for more, problem in (
        (["--method", "pldk", "--balance", "even"], "--balance is for imgsyn, latent, merf"),
        (["--method", "imgsyn", "--balance", "odd"], "even or as-found"),
        (["--method", "imgsyn", "--balance", "even", "--set", "balance=even"], "say it twice"),
    ):
        refused = CliRunner().invoke(app, [*plan, *more])
        assert refused.exit_code == 2
        assert problem in refused.output.replace("\n", " ")
