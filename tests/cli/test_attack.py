"""`veilset attack` as a person or a script would call it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from veilset.cli.main import app
from veilset.methods import METHODS

SUPPORT = str(Path(__file__).parent.parent / "support")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A pack of 300 + 200 images of three classes, and a release made from the first 300."""
    folder = tmp_path_factory.mktemp("attack")
    coins = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 300), ("test", 200)):
        arrays[f"{split}_labels"] = np.arange(count) % 3
        noise = coins.integers(0, 80, (count, 16, 16))
        arrays[f"{split}_images"] = (noise + 80 * arrays[f"{split}_labels"][:, None, None]).astype(np.uint8)
    np.savez(folder / "pack.npz", **arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SUPPORT)
        patch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
        patch.setenv("VEILSET_STATE", str(folder / "state"))
        done = run(
            "synthesize",
            f"{folder}/pack.npz:train",
            "--method",
            "tiny",
            "--epsilon",
            4,
            "--out",
            folder / "rel",
            "--samples",
            60,
        )
    assert done.exit_code == 0, done.output
    return folder


def attack(place, *options, members="train", nonmembers="test"):
    pack = f"{place}/pack.npz"
    sides = ("--members", f"{pack}:{members}", "--nonmembers", f"{pack}:{nonmembers}")
    return run("attack", place / "rel", *sides, "--student", "lenet", "--epochs", 1, *options)


def test_the_result_and_the_pictures(place):
    chosen = ("--attacks", "confidence,gan-leaks,nearest-neighbour,latent-search")
    outside = ("--out", place / "attacks.json", "--pictures", place / "pictures")
    done = attack(place, *chosen, *outside, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [found["name"] for found in result["attacks"]] == ["confidence", "gan-leaks", "nearest-neighbour"]
    assert [found["name"] for found in result["skipped"]] == ["latent-search"]
    for found in result["attacks"]:
        assert {"auc", "accuracy", "tpr_at_fpr_0.001", "tpr_at_fpr_0.01", "intervals", "n", "verdict"} <= set(found)
        assert found["members"] == found["nonmembers"] == 100
    assert result["not_for_release"]
    assert len(result["release"]["certificate_sha256"]) == 64
    assert json.loads((place / "attacks.json").read_text()) == result
    pairs = place / "pictures" / "closest-pairs.png"
    if result["attacks"][-1]["details"]["nearest_is_a_member"] > 0:  # the release's noise decides
        assert pairs.read_bytes().startswith(b"\x89PNG")
    else:
        assert not pairs.exists()


def test_people_read_plain_words_and_what_is_not_proved(place):
    done = attack(place, "--attacks", "entropy")
    assert done.exit_code == 0, done.output
    assert "not for release" in done.stdout
    assert "a lenet trained on the release" in done.stdout
    assert "Passing an attack proves nothing" in done.stdout.strip().splitlines()[-1]
    assert "too few for a false positive rate of 0.1 %" in done.stdout


@pytest.mark.parametrize("option", ["--out", "--pictures"])
def test_measurements_do_not_go_into_the_release(place, option):
    before = sorted((place / "rel").iterdir())
    done = attack(place, option, place / "rel" / "inside")
    assert done.exit_code == 2
    assert "does not go into the release" in done.stderr
    assert sorted((place / "rel").iterdir()) == before


@pytest.mark.parametrize(
    ("options", "sides", "message"),
    [
        ((), {"nonmembers": "train"}, "300 of 300 different images of --nonmembers are in --members"),
        (("--attacks", "confidense"), {}, "Did you mean confidence"),
        (("--size", "32"), {}, "16x16x1"),
        (("--shadows", "1"), {}, "shadows"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(place, options, sides, message):
    done = attack(place, *options, **sides)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert "Traceback" not in done.output
    assert "training" not in done.output
