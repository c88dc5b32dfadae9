"""What newcomers run into, each as they met it."""

import errno
import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from veilset.cli import main
from veilset.cli.console import RichProgress
from veilset.cli.federate.common import public_for, public_for_server
from veilset.cli.main import app
from veilset.cli.pulse import Pulse
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.privacy.vault import Vault

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "support"))
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def result_of(done: Result) -> dict[str, Any]:
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, done.stdout
    loaded: dict[str, Any] = json.loads(lines[0])
    return loaded


def images(count: int, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    coins, labels = np.random.default_rng(0), np.arange(count) % 3
    return (coins.integers(0, 80, (count, size, size)) + 80 * labels[:, None, None]).astype(np.uint8), labels


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    pixels, labels = images(1200)
    np.savez(tmp_path / "pack.npz", images=pixels, labels=labels, patients=np.arange(1200) // 4)
    return tmp_path / "pack.npz"


@pytest.fixture
def release(pack: Path, tmp_path: Path) -> Path:
    done = run("synthesize", pack, "-m", "tiny", "-e", 4, "--out", tmp_path / "rel", "--samples", 90)
    assert done.exit_code == 0, done.output
    return tmp_path / "rel"


def test_a_release_is_looked_at_before_it_goes_out(pack: Path, tmp_path: Path) -> None:
    assert run("keygen", "key").exit_code == 0
    words = ("--title", "Shades", "--publisher", "Us", "--description", "Made up")
    done = run("synthesize", pack, "-m", "tiny", "-e", 4, "-o", "rel", "--samples", 9, "--sign", "key", *words)
    assert done.exit_code == 0, done.output
    lacking = run("publish", "rel", "--dry-run", "--key", "key.pub")
    assert lacking.exit_code == 2
    assert "MISSING  licence" in lacking.stdout
    assert run("publish", "rel", "--out", "up", "--key", "key.pub").exit_code == 2
    assert not (tmp_path / "up").exists()
    ready = run("publish", "rel", "--dry-run", "--license", "cc-by-4.0", "--json")
    assert ready.exit_code == 0, ready.output
    assert result_of(ready)["ok"] is True
    assert run("publish", "rel", "--out", "up", "--license", "cc-by-4.0").exit_code == 0
    assert "license: cc-by-4.0" in (tmp_path / "up" / "README.md").read_text()
    (tmp_path / "rel" / "evaluation.json").write_text("{}")
    assert run("publish", "rel", "--dry-run", "--license", "cc-by-4.0").exit_code == 5
    assert run("publish", "rel").exit_code == 2
    assert run("publish", "rel", "--dry-run", "--license", "cc-by").exit_code == 2


def test_a_release_is_signed_after_it_was_made(release: Path) -> None:
    assert run("keygen", "key").exit_code == 0
    assert "veilset sign RELEASE --key KEY" in run("publish", release, "--dry-run").stdout
    done = run("sign", release, "--key", "key")
    assert done.exit_code == 0, done.output
    assert result_of(run("verify", release, "--key", "key.pub", "--require-signature", "--json"))["ok"] is True
    again = run("sign", release, "--key", "key")
    assert again.exit_code == 2
    assert "signed already" in again.stderr


def test_one_file_is_exported_as_a_file(release: Path, tmp_path: Path) -> None:
    assert run("export", release, "--to", "npz", "-o", "x.npz").exit_code == 0
    assert (tmp_path / "x.npz").is_file()
    assert run("export", release, "--to", "label", "-o", "label.md", "--title", "Shades").exit_code == 0
    assert (tmp_path / "label.md").read_text().startswith("# Privacy label: Shades")


@pytest.mark.parametrize("words", [("plan", "--json"), ("verify", "--nosuch", "--json"), ("nosuch", "--json")])
def test_usage_errors_are_json_where_json_was_asked_for(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["veilset", *words])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == 2
    assert said["error"]


def test_results_and_other_errors_keep_their_codes_with_json(
    release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, code in ((release, 0), (release / "nosuch", 2)):
        monkeypatch.setattr("sys.argv", ["veilset", "verify", str(place), "--json"])
        with pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == code
        assert ("ok" in json.loads(capsys.readouterr().out)) is (code == 0)


def test_no_part_of_a_key_stays_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("veilset.release.signing.os.fsync", full)
    done = run("keygen", tmp_path / "key")
    assert done.exit_code == 2
    assert "No space left" in done.output
    assert not list(tmp_path.glob("key*"))


def test_long_work_says_how_far_it_is_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("veilset.cli.console.time.monotonic", lambda: next(clock))
    with RichProgress().task("Steps", 9) as task:
        for _ in range(9):
            task.advance()
    assert capsys.readouterr().err.splitlines() == ["Steps", "Steps: 3 of 9", "Steps: 6 of 9", "Steps: 9 of 9"]


def png_folder(place: Path, count: int = 1200, *, flat: bool = False, seed: int = 0) -> list[str]:
    """A folder of PNGs with a sub-folder for each of two classes, or with none."""
    coins, names = np.random.default_rng(seed), []
    for number in range(count):
        kind = "" if flat else ("normal", "pneumonia")[number % 2]
        names.append(f"{kind}/{number:04}.png".lstrip("/"))
        (place / kind).mkdir(parents=True, exist_ok=True)
        pixels = coins.integers(0, 100, (20, 20)) + 100 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / names[-1])
    return names


def test_a_folder_with_its_patients_and_flat_public_images(tmp_path: Path) -> None:
    names = png_folder(tmp_path / "xrays")
    png_folder(tmp_path / "photos", 20, flat=True, seed=1)
    lines = [f"{name},{number // 3}" for number, name in enumerate(names)]
    (tmp_path / "patients.csv").write_text("\n".join(["path,patient", *lines]) + "\n")
    words = ("--groups-file", "patients.csv", "--public", "photos/", "-m", "tiny", "-e", 1, "--size", 16)
    done = run("synthesize", "xrays/", *words, "--samples", 90, "-o", "rel")
    assert done.exit_code == 0, done.output
    assert "each of 400 groups" in done.stdout
    certificate = json.loads((tmp_path / "rel" / "certificate.json").read_text())
    assert certificate["unit"] == "group"
    assert result_of(run("inspect", "xrays/", "--groups-file", "patients.csv", "--json"))["groups"]["most"] == 3


def test_public_images_of_a_federation_need_no_classes_either(tmp_path: Path) -> None:
    png_folder(tmp_path / "photos", 20, flat=True)
    private, labels = images(40)
    vault = Vault(ImageSet(private[..., None], labels))
    assert len(public_for(vault, "photos/") or ()) == 20
    assert len(public_for_server((16, 16, 1), "photos/") or ()) == 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("site", "xrays/", "--home", "nohome", "--invitation", "no.json"), "no file nohome/request.json"),
        (("check", "xrays/", "--home", "nohome", "--invitation", "no.json"), "no file nohome/request.json"),
        (("admit", "no.json", "--method", "merf", "--address", "a:1", "--out", "fed"), "no file no.json"),
        (("server", "nofolder", "--out", "rel"), "nofolder"),
    ],
)
def test_a_federation_names_the_file_that_is_missing(words: tuple[str, ...], said: str) -> None:
    done = run("federate", *words)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "federate" in done.stderr, "it says how the file is made"


def test_real_images_are_read_as_the_release_has_them(release: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        pixels, labels = images(60, size=20)
        noise = np.random.default_rng(seed).integers(0, 9, pixels.shape)
        colour = np.repeat((pixels + noise).astype(np.uint8)[..., None], 3, axis=-1)
        np.savez(tmp_path / f"{name}.npz", images=colour, labels=labels)
    quick = ("--student", "lenet", "--epochs", 1)
    scored = run("evaluate", release, "--test", "a.npz", *quick, "--json")
    assert scored.exit_code == 0, scored.output
    assert result_of(scored)["test_images"] == 60
    attacked = run("attack", release, "--members", "a.npz", "--nonmembers", "b.npz", "--attacks", "confidence", *quick)
    assert attacked.exit_code == 0, attacked.output


def test_a_student_of_ones_own_is_tried_before_it_is_trained(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def small(channels, classes, size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))\n"
        "def odd(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes + 1))\n"
        "def unknown(depth_of_field):\n"
        "    return None\n"
    )
    good = run("train", release, "--student", "mine:small", "--epochs", 1, "-o", "student")
    assert good.exit_code == 0, good.output
    for name, cause in (
        ("mine:odd", "logits of shape (2, 3) for 2 images, got (2, 4)"),
        ("mine:unknown", "failed with TypeError"),
        ("mine:gone", "Check the spelling"),
        ("nosuch:small", "Check the spelling"),
    ):
        bad = run("train", release, "--student", name, "-o", "other")
        assert bad.exit_code == 2, bad.output
        assert cause in bad.stderr
        assert "Traceback" not in bad.output
    assert "module:function" in run("train", "--help").stdout


def test_a_suite_is_checked_before_its_first_cell(pack: Path, tmp_path: Path) -> None:
    data = '[[datasets]]\nname = "a"\ntrain = "pack.npz"\ntest = "pack.npz"\n'
    good = f'methods = ["tiny"]\nepsilons = [1]\nseeds = [0]\n{data}'
    for change, cause in (
        (("[1]", "[-1]"), "epsilons > 0"),
        (("seeds", "delta = 2\nseeds"), "0 < delta < 1"),
        (('test = "pack.npz"', 'test = "gone.npz"'), "gone.npz does not exist"),
        (("[1]", '"1"'), "expected epsilons = a list"),
    ):
        (tmp_path / "suite.toml").write_text(good.replace(*change))
        done = run("compare", "suite.toml", "-o", "out")
        assert done.exit_code == 2, done.output
        assert cause in done.stderr
        assert not (tmp_path / "out").exists()


def test_a_full_disk_under_the_weights_is_one_line(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*arguments: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    done = run("train", release, "--student", "lenet", "--epochs", 1, "-o", "student")
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.output
    assert not list(tmp_path.glob("*student*"))


def test_an_interruption_while_the_command_is_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), *(place for place in sys.path if place)])
    command = [sys.executable, "-m", "veilset", "methods"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


SLEEPER = "import time; from veilset.cli.console import guarded; guarded(lambda **words: time.sleep(2))()"


def test_something_moves_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", SLEEPER], stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert said.count("working, 1 s") > 1, said
    assert said.endswith("\r\x1b[K"), "the mark is taken away at the end"


def test_long_silence_is_broken_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr("veilset.cli.pulse.BETWEEN_LINES", 1.0)
    pulse = Pulse()
    with pulse.beating():
        pulse.heard("counting")
        time.sleep(2.5)
    lines = written.getvalue().splitlines()
    assert lines
    assert all(line.startswith("counting: ") and line.endswith(" s so far") for line in lines)


def test_a_plan_says_how_long_and_recommends_what_is_not_named() -> None:
    done = run("plan", "-n", 300, "--shape", "64x64x1", "--classes", 2, "-m", "merf", "-e", 1, "-p", "fast")
    assert done.exit_code == 0, done.output
    assert "Time: about " in done.stdout
    assert "Memory: about " in done.stdout
    told = result_of(run("plan", "-n", 3000, "--json"))
    assert (told["method"], told["epsilon"] <= 1) == ("dfd", True)
    assert told["seconds"] > 0
    assert told["memory_mb"] > 0
    assert "Epsilon 1" in told["recommended"][1]


def test_choose_answers_scripts_and_people(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--records", 2420, "--unit", "group", "--public", "other", "--audience", "world", "--json")
    told = result_of(run("choose", *words))
    assert told["method"] == "imgsyn"
    assert told["command"].startswith("veilset synthesize IMAGES --method imgsyn --epsilon 1 ")
    assert "--groups-file" in told["command"]
    assert run("choose", "-n", 5000, "--public", "some").exit_code == 2
    nobody = run("choose")
    assert nobody.exit_code == 2
    assert "Expected --records" in nobody.stderr
    monkeypatch.setattr("veilset.cli.choose._is_terminal", lambda: True)
    asked = CliRunner().invoke(app, ["choose"], input="5000\n28x28x1\n10\nrecord\nnone\ny\npartners\n")
    assert asked.exit_code == 0, asked.output
    assert "Method merf" in asked.stdout
    assert "Epsilon 3" in asked.stdout


def test_a_federation_without_flower_says_what_to_install(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    monkeypatch.setattr("veilset.cli.federate.common.find_spec", lambda name: None)
    done = run("federate", "simulate", pack, "-m", "merf", "-e", 1, "-o", "rel")
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert "pip install 'veilset[federated]'" in done.stderr
