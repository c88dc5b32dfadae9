"""Every command as a person or a script would call it, with the smallest method behind it."""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner, Result

from veilset.cli.main import app
from veilset.methods import METHODS

SUPPORT = str(Path(__file__).parent.parent / "support")
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Run:
    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """1,200 train and 150 test images of three classes that differ in brightness."""
    coins = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 1200), ("test", 150)):
        labels = np.arange(count) % 3
        noise = coins.integers(0, 80, (count, 16, 16))
        arrays[f"{split}_images"] = (noise + 80 * labels[:, None, None]).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
        arrays[f"{split}_patients"] = np.arange(count) // 4
    np.savez(tmp_path / "pack.npz", **arrays)
    return tmp_path / "pack.npz"


@pytest.fixture
def release(run: Run, pack: Path, tmp_path: Path) -> Path:
    done = run("synthesize", f"{pack}:train", "-m", "tiny", "-e", 4, "--out", tmp_path / "rel", "--samples", 90)
    assert done.exit_code == 0, done.output
    return tmp_path / "rel"


def result_of(done: Result) -> dict[str, Any]:
    """`--json` puts exactly one object on stdout."""
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1, done.stdout
    loaded: dict[str, Any] = json.loads(lines[0])
    return loaded


def test_methods(run: Run) -> None:
    found = {m["name"]: m for m in result_of(run("methods", "--json"))["methods"]}
    assert {"name", "guarantee", "needs_public", "releases", "paper", "presets"} <= set(found["tiny"])
    shown = run("methods").stdout
    assert "tiny: " in shown
    assert "can do without public images" in shown


def test_plan(run: Run) -> None:
    drawn = result_of(run("plan", "-m", "tiny", "-n", 60000, "-e", 1, "--json"))
    assert drawn["epsilon"] == pytest.approx(1, rel=0.01)
    assert drawn["delta"] == 1e-6
    assert [event["label"] for event in drawn["events"]] == ["class sums 0", "class sums 1", "class sums 2"]
    assert (
        "epsilon 1.0000 at delta 1e-06" in run("plan", "-m", "tiny", "-n", 60000, "-e", 1, "--shape", "32x32x3").stdout
    )


def test_the_whole_story(run: Run, pack: Path, tmp_path: Path) -> None:
    assert run("keygen", tmp_path / "key").exit_code == 0
    made = result_of(
        run(
            *("synthesize", f"{pack}:train", "-m", "tiny", "-e", 4, "-o", tmp_path / "rel"),
            *("--samples", 90, "--sign", tmp_path / "key", "--json"),
        )
    )
    assert {"release", "epsilon", "delta", "guarantee", "seconds", "peak_mb"} <= set(made)
    assert made["guarantee"] == "dp"
    checked = result_of(run("verify", tmp_path / "rel", "--key", tmp_path / "key.pub", "--json"))
    assert checked["ok"]
    assert checked["epsilon"] == made["epsilon"]
    assert set(checked["recomputed"]) == {"pld", "rdp"}
    first = run("verify", tmp_path / "rel", "--key", tmp_path / "key.pub").stdout.splitlines()[0]
    assert first.startswith(f"OK, signed by {checked['signed_by']}, the owner of key.pub: ")
    unasked = run("verify", tmp_path / "rel").stdout
    assert "its claim holds" in unasked
    assert "That key came with the release" in unasked
    scored = result_of(run("evaluate", tmp_path / "rel", "--test", f"{pack}:test", "--student", "lenet", "--json"))
    assert {"accuracy", "accuracy_std", "balanced_accuracy", "per_class", "seeds", "student"} <= set(scored)
    trained = result_of(
        run("train", tmp_path / "rel", "--student", "lenet", "--epochs", 1, "-o", tmp_path / "student", "--json")
    )
    assert trained["epsilon"] == made["epsilon"]
    assert trained["trained_on"] == "rel"  # and no place on the disk
    assert (tmp_path / "student" / "student.safetensors").exists()
    for form in ("folder", "parquet", "webdataset", "npz"):
        assert run("export", tmp_path / "rel", "--to", form, "--out", tmp_path / form).exit_code == 0
    assert not (tmp_path / "rel.veilset-run").exists()


def test_runs_on_the_same_data_share_an_account(run: Run, pack: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = run(
            "synthesize", f"{pack}:train", "-m", "tiny", "-e", 1, "-o", tmp_path / name, "--samples", 9, "--json"
        )
        book = result_of(done)["account"]
    found = result_of(run("account", book, "--json"))
    assert len(found["runs"]) == 2
    assert 1 < found["spent_epsilon"] < 2
    assert found["spent_epsilon"] < found["guaranteed"]["epsilon"]
    shown = run("account", book, "--limit-epsilon", 5, "--limit-delta", 1e-5).stdout
    assert "all 2 runs together, if none was chosen by results" in " ".join(shown.split())
    assert "However they were chosen: epsilon" in shown
    assert "It was set late (after 2 run(s))" in shown


def test_an_account_with_a_limit(run: Run, pack: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    assert run("account", book, "--limit-epsilon", 1, "--limit-delta", 1e-5).exit_code == 0
    command = ("synthesize", f"{pack}:train", "-m", "tiny", "-e", 0.8, "--account", book, "--samples", 9)
    assert run(*command, "-o", tmp_path / "a").exit_code == 0
    refused = run(*command, "-o", tmp_path / "b")
    assert refused.exit_code == 3
    assert "overdraw" in refused.stderr
    assert not (tmp_path / "b").exists()
    assert run("account", book, "--limit-epsilon", 2, "--limit-delta", 1e-5).exit_code == 3
    assert run("account", book, "--limit-epsilon", 2, "--limit-delta", 1e-5, "--force").exit_code == 0
    found = result_of(run("account", book, "--json"))
    assert 0 < found["left_epsilon"] < 2
    assert found["limit_set_after_runs"] == 1
    assert found["guaranteed"]["delta"] == 2e-5


def test_groups_are_the_unit_when_asked_for(run: Run, pack: Path, tmp_path: Path) -> None:
    options = ("--unit", "group", "--groups", "patients", "--samples", 9, "-o", tmp_path / "rel")
    assert run("synthesize", f"{pack}:train", "-m", "tiny", "-e", 4, *options).exit_code == 0
    checked = result_of(run("verify", tmp_path / "rel", "--json"))
    assert checked["unit"] == "group"
    certificate = json.loads((tmp_path / "rel" / "certificate.json").read_text())
    assert certificate["declared_public"]["units"] == 300


def test_no_guarantee_is_said_and_no_epsilon_printed(run: Run, pack: Path, tmp_path: Path) -> None:
    done = run(
        *("synthesize", f"{pack}:train", "-m", "tiny", "-e", 4, "-o", tmp_path / "rel", "--samples", 9),
        "--as-published",
    )
    assert done.exit_code == 0
    assert "No guarantee" in done.stderr
    assert "psilon" not in done.stdout
    assert "NO privacy guarantee" in run("verify", tmp_path / "rel").stdout
    (book,) = (tmp_path / "state" / "accounts").glob("*.sqlite")
    assert "No epsilon holds" in run("account", book).stdout
    found = result_of(run("account", book, "--json"))
    assert found["spent_epsilon"] is None
    assert found["runs"][0]["epsilon"] is None


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (["missing.npz"], 2, "missing.npz"),
        (["{pack}:trian"], 2, "train"),
        (["{pack}:train", "-e", "0"], 2, "epsilon > 0"),
        (["{pack}:train", "--delta", "0.1"], 2, "Pass --delta"),
        (["{pack}:train", "-m", "tinny"], 2, "Did you mean tiny"),
        (["{pack}:train", "--set", "sums"], 2, "KEY=VALUE"),
        (["{pack}:train", "--set", "summs=1"], 2, "Did you mean sums"),
        (["{pack}:train", "--unit", "patient"], 2, "record or group"),
        (["{pack}:train", "--unit", "group"], 2, "--groups"),
        (["{pack}:train", "--channels", "2"], 2, "1 or 3"),
        (["{pack}:train", "--device", "cuda:9"], 2, "--device cpu"),
        (["{pack}:train", "--public", "{pack}:train"], 2, "public"),
        (["{pack}:train", "--sign", "nokey"], 2, "nokey"),
        (["{pack}:train", "--out", "{pack}"], 2, "exists already"),
        (["{pack}:train", "--samples", "0"], 2, "samples"),
    ],
)
def test_bad_input_gets_a_clear_error(
    run: Run, pack: Path, tmp_path: Path, change: list[str], code: int, message: str
) -> None:
    words = [word.replace("{pack}", str(pack)) for word in change]
    base = ["synthesize", words[0], "-m", "tiny", "-e", "1", "--out", str(tmp_path / "rel"), *words[1:]]
    done = run(*base)
    assert done.exit_code == code, done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "rel").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--changes", "wild"], "auto, mild, none"),
        (["--temperature", "0"], "temperature"),
        (["--learning-rate", "-1"], "learning_rate"),
        (["--student", "lennet"], "Did you mean lenet"),
    ],
)
def test_wrong_training_is_refused(run: Run, release: Path, wrong: list[str], message: str) -> None:
    done = run("train", release, "--out", release.parent / "student", *wrong)
    assert done.exit_code == 2
    assert message in done.output
    assert not (release.parent / "student").exists()


def test_errors_are_json_too(run: Run) -> None:
    done = run("verify", "nowhere", "--json")
    assert done.exit_code == 2
    assert "nowhere" in result_of(done)["error"]


@pytest.mark.parametrize("what", ["data.npz", "certificate.json", "card.md"])
def test_a_tampered_release_fails_with_code_5(run: Run, release: Path, what: str) -> None:
    content = bytearray((release / what).read_bytes())
    content[len(content) // 2] ^= 1
    (release / what).write_bytes(bytes(content))
    done = run("verify", release, "--json")
    assert done.exit_code == 5
    assert result_of(done)["problems"]
    assert run("export", release, "--to", "npz", "--out", release.parent / "x").exit_code == 5


def test_the_first_line_of_verify_is_the_verdict(run: Run, release: Path) -> None:
    done = run("verify", release)
    assert done.exit_code == 0
    assert done.stdout.startswith("OK, UNSIGNED: ")
    done = run("verify", release, "--require-signature", "--require-guarantee")
    assert done.exit_code == 5
    assert done.stdout.startswith("FAILED: ")
    assert "not signed" in done.stdout
    assert result_of(run("verify", release, "--require-signature", "--json"))["ok"] is False
    with (release / "card.md").open("a") as card:
        card.write("x")
    done = run("verify", release)
    assert done.exit_code == 5
    assert done.stdout.startswith("FAILED: ")
    assert "card.md was altered" in done.stdout


def test_a_release_without_a_guarantee_can_be_refused_by_a_script(run: Run, pack: Path, tmp_path: Path) -> None:
    words = ("synthesize", f"{pack}:train", "-m", "tiny", "-e", 4, "-o", tmp_path / "rel", "--samples", 9)
    assert run(*words, "--insecure-seed", 1).exit_code == 0
    done = run("verify", tmp_path / "rel")
    assert done.exit_code == 0
    assert done.stdout.startswith("OK, UNSIGNED, NO GUARANTEE: ")
    done = run("verify", tmp_path / "rel", "--require-guarantee")
    assert done.exit_code == 5
    assert "no privacy guarantee" in done.stdout


def test_measurements_do_not_go_into_a_release(run: Run, release: Path, pack: Path) -> None:
    done = run("evaluate", release, "--test", f"{pack}:test", "--out", release / "scores.json")
    assert done.exit_code == 2
    assert "does not go into the release" in done.stderr


def test_a_test_set_of_another_kind_is_refused(run: Run, release: Path) -> None:
    done = run("evaluate", release, "--test", "builtin:mnist5k:test", "--size", 28)
    assert done.exit_code == 2
    assert "16x16x1" in done.stderr
    done = run("evaluate", release, "--test", "builtin:mnist5k:test")
    assert done.exit_code == 2
    assert "3 classes, got 10" in done.stderr


def test_help_is_shown_as_it_is_written() -> None:
    """What looks like a tag of the terminal's markup would be swallowed."""

    def helps(command: Any) -> list[str]:
        inner = [text for one in getattr(command, "commands", {}).values() for text in helps(one)]
        return [command.help or "", *(getattr(option, "help", None) or "" for option in command.params), *inner]

    texts = helps(typer.main.get_command(app))
    assert len(texts) > 100
    for text in texts:
        assert Text.from_markup(text).plain == text


def test_help_says_what_an_argument_is() -> None:
    shown = CliRunner().invoke(app, ["verify", "--help"], terminal_width=120).output
    assert "A release directory" in shown


def test_help_is_quick() -> None:
    """Half a second on a quiet machine; the processor's seconds are counted, so that a busy one does not matter."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    seconds = []
    for _ in range(4):
        start = spent()
        subprocess.run([sys.executable, "-m", "veilset", "--help"], capture_output=True, check=True)
        seconds.append(spent() - start)
    assert min(seconds) < 1.0


def _hear_ctrl_c() -> None:
    """Jobs in the background of a shell ignore it, and so would their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("moment", [0.0, 0.6])
def test_ctrl_c_leaves_a_clean_state(run: Run, pack: Path, tmp_path: Path, moment: float) -> None:
    code = (
        f"import sys, time; sys.path.insert(0, {SUPPORT!r})\n"
        "import tiny_method\n"
        "from veilset.methods import METHODS\n"
        "METHODS._targets['tiny'] = 'tiny_method:Tiny'\n"
        "real = tiny_method.FittedTiny.sample\n"
        "def slow(self, *a):\n"
        "    sys.stderr.write('SAMPLING\\n'); sys.stderr.flush(); time.sleep(60); return real(self, *a)\n"
        "tiny_method.FittedTiny.sample = slow\n"
        "from veilset.cli.main import run; run()\n"
    )
    words = ["synthesize", f"{pack}:train", "-m", "tiny", "-e", "4", "-o", str(tmp_path / "rel"), "--samples", "9"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, preexec_fn=_hear_ctrl_c
    ) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "SAMPLING" in line:
                break
        time.sleep(moment)
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert child.returncode == 130
    assert "Traceback" not in rest
    assert "--resume" in rest
    assert not (tmp_path / "rel").exists()
    assert run(*words).exit_code == 2, "an unfinished run is not overwritten by mistake"
    assert run(*words, "--resume").exit_code == 0
    assert run("verify", tmp_path / "rel").exit_code == 0
