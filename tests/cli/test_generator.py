"""`veilset generator` by its exit codes and files."""

import json
import pickle
from pathlib import Path

from typer.testing import CliRunner

from veilset.cli.main import app
from veilset.models.generators.files import load_generator

RUNNER = CliRunner()


def test_train_writes_a_generator(tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    command = ["generator", "train", "builtin:digits", "--size", "16", "--preset", "fast", "--steps", "2", "--json"]
    result = RUNNER.invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["size"] == 16
    assert load_generator(out).channels == 1
    assert not list(tmp_path.glob("*.veilset-training"))
    again = RUNNER.invoke(app, [*command, "--out", str(out)])
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_an_eigen_generator_takes_no_training(tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    command = ["generator", "train", "builtin:digits", "--size", "16", "--out", str(out), "--json"]
    result = RUNNER.invoke(app, [*command, "--kind", "eigen"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["network"] == "eigen_generator"
    assert load_generator(out).size == 16
    unknown = RUNNER.invoke(app, [*command, "--kind", "eigne"])
    assert unknown.exit_code == 2
    assert "eigen" in unknown.output


def test_an_unfinished_training_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "g.safetensors.veilset-training").write_bytes(b"")
    result = RUNNER.invoke(app, ["generator", "train", "builtin:digits", "--out", str(tmp_path / "g.safetensors")])
    assert result.exit_code == 2
    assert "--resume" in result.output


def test_convert_refuses_what_is_no_stylegan2(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps([1, 2]))
    result = RUNNER.invoke(app, ["generator", "convert", str(path), "--out", str(tmp_path / "x.safetensors")])
    assert result.exit_code == 2
    assert "Nothing was run" in result.output
    wrong = RUNNER.invoke(app, ["generator", "convert", str(path), "--out", str(tmp_path / "x.pt")])
    assert wrong.exit_code == 2
    assert ".safetensors" in wrong.output


def test_a_release_does_not_pass_for_public_images(tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text("{}")
    (tmp_path / "data.npz").write_bytes(b"")
    for source in (tmp_path, tmp_path / "data.npz", f"{tmp_path / 'data.npz'}:train"):
        result = RUNNER.invoke(app, ["generator", "train", str(source), "--out", str(tmp_path / "g.safetensors")])
        assert result.exit_code == 2
        assert "is a release" in result.output
        words = ["synthesize", "builtin:digits", "-m", "merf", "-e", "1", "--public", str(source)]
        result = RUNNER.invoke(app, [*words, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert "is a release" in result.output
