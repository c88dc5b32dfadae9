"""`evaluate`, `report` and `compare` as a person or a script would call them."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from veilset.cli.main import app
from veilset.methods import METHODS

SUPPORT = str(Path(__file__).parent.parent / "support")


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def pack(tmp_path):
    coins, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 1200), ("test", 150)):
        labels = np.arange(count) % 3
        noise = coins.integers(0, 80, (count, 16, 16))
        arrays[f"{split}_images"] = (noise + 80 * labels[:, None, None]).astype(np.uint8)
        arrays[f"{split}_labels"] = labels
    np.savez(tmp_path / "pack.npz", **arrays)
    return tmp_path / "pack.npz"


@pytest.fixture
def release(pack, tmp_path):
    done = run("synthesize", f"{pack}:train", "-m", "tiny", "--epsilon", 4, "--out", tmp_path / "rel", "--samples", 90)
    assert done.exit_code == 0, done.output
    return tmp_path / "rel"


def test_evaluate_then_report(pack, release, tmp_path):
    test = ("--test", f"{pack}:test", "--epochs", 1)
    done = run("evaluate", release, *test, "--student", "convnet,lenet", "--out", "scores.json", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.strip())
    assert [one["student"] for one in result["students"]] == ["convnet", "lenet"]
    assert "pictures" not in result
    assert json.loads(Path("scores.json").read_text())["format"] == "veilset-evaluation/2"
    bought = run("evaluate", release, *test, "--paid-epsilon", 2, "--account", "a.sqlite", "--out", "paid.json")
    assert bought.exit_code == 0, bought.output
    assert "it may be published" in bought.stdout
    assert not Path("paid.json.veilset-run").exists()
    assert "paid test accuracy" in run("account", "a.sqlite").stdout
    files = ("--evaluation", "scores.json", "--evaluation", "paid.json")
    public = run("report", release, *files, "--out", "public.html")
    assert public.exit_code == 0, public.output
    assert "left out" in public.stdout
    inside = run("report", release, *files, "--internal", "--out", "internal.html", "--json")
    assert json.loads(inside.stdout)["version"] == "internal"
    assert "lenet trained on the release" in Path("internal.html").read_text()
    assert "lenet trained on the release" not in Path("public.html").read_text()
    assert "counted with noise" in Path("public.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("report", "rel", "--out", "rel/report.html"), "does not go into the release", 2),
        (("report", "nowhere"), "does not exist", 2),
        (("report", "foreign"), "not a release", 2),
        (("report", "rel", "--evaluation", "empty.json"), "is empty", 2),
        (("report", "rel", "--attack", "empty.json"), "is empty", 2),
        (("evaluate", "rel", "--test", "pack.npz:test", "--out", "rel/x.json"), "does not go into the release", 2),
        (("evaluate", "rel", "--test", "pack.npz:test", "--account", "a"), "belong to --paid-epsilon", 2),
        (("evaluate", "rel", "--test", "pack.npz:test", "--paid-epsilon", 1), "Pass --out FILE", 2),
        (("evaluate", "rel", "--test", "pack.npz:test", "--size", 20), "got 20x20x1", 2),
        (("compare", "none.toml", "--out", "out"), "no suite at", 2),
    ],
)
def test_mistakes_are_told_in_one_line(release, tmp_path, arguments, message, code):
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "foreign").mkdir()
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert message in " ".join(done.stderr.split())


def test_a_tampered_release_ends_with_code_5(release):
    (release / "card.md").write_text("nothing to see")
    for command in (("report", release), ("evaluate", release, "--test", "pack.npz:test")):
        assert run(*command).exit_code == 5


def test_compare_tells_what_failed(tmp_path):
    Path("suite.toml").write_text(
        'methods = ["merf"]\nepsilons = [1]\nseeds = [0]\n[[datasets]]\nname = "a"\ntrain = "a.npz"\ntest = "a.npz"\n'
    )
    assert run("compare", "suite.toml", "--out", "out").exit_code == 2, "there is no a.npz"
    Path("a.npz").write_bytes(b"damaged")
    done = run("compare", "suite.toml", "--out", "out")
    assert done.exit_code == 1
    assert "merf on a, epsilon 1, seed 0 failed" in done.stderr
    assert "nothing to compare" in done.stderr
    shown = run("compare", "suite.toml", "--out", "out", "--only-show")
    assert shown.exit_code == 1
    assert "failed" not in shown.stderr  # nothing was tried
    assert "nothing to compare" in shown.stderr


def test_the_demo_ends_with_a_report(monkeypatch, tmp_path):
    monkeypatch.setattr("veilset.cli.demo._METHOD", "tiny")
    monkeypatch.setattr("veilset.cli.demo._EPOCHS", 1)
    done = run("demo", "--out", tmp_path / "demo", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)  # one object and nothing else
    for name in ("report", "internal_report", "evaluation", "picture"):
        assert Path(told[name]).stat().st_size > 500
    assert "not for publication" in Path(told["internal_report"]).read_text()
    assert "not for publication" not in Path(told["report"]).read_text()
