"""`veilset generator` by its exit codes and files."""

import json
import pickle
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from archives import patient, write_dicom_archive
from veilset.cli.archives import arguments_of
from veilset.cli.main import app
from veilset.data.archives.reading import Reading
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


def test_a_training_that_the_clock_stops_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "g.safetensors"
    command = ["generator", "train", "builtin:digits", "--size", "16", "--preset", "fast", "--steps", "3", "--json"]
    result = RUNNER.invoke(app, [*command, "--out", str(out), "--minutes", "0"])
    assert result.exit_code == 0, result.output
    assert "Stopped after 1 steps" in result.output
    reached = out.read_bytes()
    assert (tmp_path / "g.png").read_bytes()[:4] == b"\x89PNG"
    assert RUNNER.invoke(app, [*command, "--out", str(out)]).exit_code == 2
    resumed = RUNNER.invoke(app, [*command, "--out", str(out), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert out.read_bytes() != reached
    assert not list(tmp_path.glob("*.veilset-training"))


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


def test_a_generator_of_dicom_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16), dtype=np.uint8)
    write_dicom_archive(tmp_path / "scans", images, ["a", "b"] * 20, [patient(number) for number in range(40)])
    out = tmp_path / "g.safetensors"
    command = ["generator", "train", str(tmp_path / "scans"), "--kind", "eigen", "--out", str(out)]
    result = RUNNER.invoke(app, [*command, "--frames", "first", "--burned-in", "keep"])
    assert result.exit_code == 0, result.output
    assert load_generator(out).size == 16
    refused = RUNNER.invoke(app, [*command[:-1], str(tmp_path / "h.safetensors"), "--frames", "last"])
    assert refused.exit_code == 2
    assert "--frames first, middle or all" in refused.output


def test_options_of_archives_survive_another_process() -> None:
    assert arguments_of(Reading()) == []
    reading = Reading(findings=("A", "B"), window=(40.0, 400.0), skip_bad=True, burned_in="mask", uncertain="zeros")
    assert arguments_of(reading) == [
        "--window=40.0,400.0",
        "--burned-in=mask",
        "--skip-bad",
        "--findings=A,B",
        "--uncertain=zeros",
    ]
