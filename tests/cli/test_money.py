"""What a budget is charged for, and what people are told about it."""

import errno
import json
import os
import shutil
import sqlite3
import stat
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import veilset as vs
from veilset.cli.console import epsilon_text
from veilset.cli.main import app
from veilset.methods import METHODS
from veilset.privacy.ledger import Ledger
from veilset.privacy.sources import known_accounts
from veilset.release.format import Release

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "support"))
    monkeypatch.setitem(METHODS._targets, "tiny", "tiny_method:Tiny")
    monkeypatch.chdir(tmp_path)


def pack(path: Path, seed: int = 0, count: int = 1200) -> Path:
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16), dtype=np.uint8)
    patients = np.arange(count) // 4
    np.savez(path, images=images, labels=np.arange(count) % 3, patients=patients, names=patients.astype(str))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return pack(tmp_path / "data.npz")


@pytest.fixture
def synthesize(data: Path) -> Run:
    def call(
        source: object = data, *words: object, out: object = "rel", epsilon: object = 1, samples: int = 9
    ) -> Result:
        command = ["synthesize", source, "-m", "tiny", "-e", epsilon, "-o", out, "--samples", samples, *words]
        return command_line(*command)

    return call


def command_line(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def shown(*words: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(command_line(*words, "--json").stdout)
    return result


def refused(done: Result, code: int, *words: str) -> None:
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    for word in words:
        assert word in done.stderr, done.stderr


def charges() -> int:
    return sum(len(vs.Account(known.path).reservations) for known in known_accounts())


def test_views_of_one_source_share_its_limit(synthesize: Run, data: Path) -> None:
    assert synthesize(data, epsilon=0.7).exit_code == 0
    assert command_line("account", data, "--limit-epsilon", 1, "--limit-delta", 1e-5).exit_code == 0
    pack(data, count=1199)
    for number, view in enumerate((["--size", 8], ["--channels", 3], ["--limit", 600], [])):
        refused(synthesize(data, *view, epsilon=0.7, out=f"view-{number}"), 3, "overdraw")
    (known,) = known_accounts()
    assert len(vs.Account(known.path).reservations) == 1


def test_python_charges_the_account_of_the_command_line(synthesize: Run, data: Path) -> None:
    assert synthesize().exit_code == 0
    vs.synthesize(vs.Vault.open(str(data)), method="tiny", budget=vs.Budget(1.0, 1e-5), samples=9)
    found = shown("account", data)
    assert [run["method"] for run in found["runs"]] == ["tiny", "tiny"]
    assert found["unit"] == "record"


def test_resuming_nothing_is_refused_and_free(synthesize: Run) -> None:
    refused(synthesize("data.npz", "--resume", out="mistyped"), 2, "nothing to resume", "mistyped")
    assert charges() == 0


def cut_off(monkeypatch: pytest.MonkeyPatch, synthesize: Run, *words: object) -> Result:
    from tiny_method import FittedTiny

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(FittedTiny, "sample", full)
        return synthesize("data.npz", *words)


def test_a_failure_after_the_charge_says_so_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch, synthesize: Run) -> None:
    failed = cut_off(monkeypatch, synthesize)
    refused(failed, 1, "No space left", "Epsilon 1 is charged to", "--resume", "costs nothing more")
    assert synthesize("data.npz", "--resume").exit_code == 0
    assert charges() == 1


def test_a_failed_save_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch, synthesize: Run) -> None:
    def full(self: Release, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Release, "save", full)
        refused(synthesize(), 1, "Epsilon 1 is charged to", "--resume")
    assert synthesize("data.npz", "--resume").exit_code == 0
    assert charges() == 1


def test_resuming_with_other_data_of_the_same_shape_publishes_nothing(
    monkeypatch: pytest.MonkeyPatch, synthesize: Run, tmp_path: Path
) -> None:
    cut_off(monkeypatch, synthesize)
    other = pack(tmp_path / "other.npz", seed=1)
    (known,) = known_accounts()
    refused(synthesize(other, "--resume"), 3, "other data")
    refused(synthesize(other, "--resume", "--account", known.path), 2, "other data")
    refused(synthesize("data.npz", "--resume", "--account", "new.sqlite"), 3, "another account")
    assert not (tmp_path / "rel").exists()


def test_resuming_with_other_options_names_them(monkeypatch: pytest.MonkeyPatch, synthesize: Run) -> None:
    cut_off(monkeypatch, synthesize)
    refused(synthesize("data.npz", "--resume", epsilon=2), 2, "has other epsilon (1.0 then, 2.0 now). Resume it")
    refused(synthesize("data.npz", "--resume", "--seed", 3), 2, "has other seed (0 then, 3 now). Resume it")


def test_a_copied_folder_makes_no_second_release(
    monkeypatch: pytest.MonkeyPatch, synthesize: Run, tmp_path: Path
) -> None:
    cut_off(monkeypatch, synthesize)
    shutil.copytree("rel.veilset-run", "copy.veilset-run")
    assert synthesize("data.npz", "--resume").exit_code == 0
    refused(synthesize("data.npz", "--resume", out="copy"), 3, "has ended")
    assert not (tmp_path / "copy").exists()


def test_groups_that_are_named_are_the_unit(synthesize: Run) -> None:
    done = synthesize("data.npz", "--groups", "patients")
    assert done.exit_code == 0
    assert "each of 300 groups" in done.stdout
    assert json.loads(Path("rel/certificate.json").read_text())["unit"] == "group"
    refused(synthesize("data.npz", "--groups", "patients", "--unit", "record", out="b"), 2, "--images-per-group")
    words = ("--groups", "patients", "--unit", "record", "--images-per-group")
    refused(synthesize("data.npz", *words, 2, out="b"), 2, "a group with 4")
    assert synthesize("data.npz", *words, 4, out="b").exit_code == 0
    found = shown("account", "data.npz")
    assert (found["unit"], found["images_per_group"]) == ("group", 4)
    assert found["spent_epsilon"] > 3, "a run for each record counts fourfold"
    assert "for each group" in command_line("account", "data.npz").stdout


def test_blank_patients_are_refused(synthesize: Run, tmp_path: Path) -> None:
    arrays = dict(np.load("data.npz"))
    arrays["names"][7] = ""
    np.savez(tmp_path / "blank.npz", **arrays)
    refused(synthesize("blank.npz", "--groups", "names"), 2, "blank")


def test_a_place_that_cannot_be_written_to_costs_nothing(synthesize: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(synthesize(out="/proc/rel"), 2, "Cannot write to /proc")
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda place: usage(10**9, 10**9 - 10**6, 10**6))
        refused(synthesize(), 2, "1 MB free", "Free some space")
    assert charges() == 0
    assert not Path("rel.veilset-run").exists()


def test_samples_that_no_memory_holds_cost_nothing(synthesize: Run) -> None:
    refused(synthesize(samples=10**11), 2, "GB of memory", "fewer --samples")
    assert charges() == 0


def test_one_public_image_costs_nothing(synthesize: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", images=np.full((1, 16, 16), 7, np.uint8), labels=np.zeros(1, int))
    refused(synthesize("data.npz", "--public", "one.npz"), 2, "at least 10 public images, got 1")
    assert charges() == 0


def test_few_units_are_said_before_the_charge(synthesize: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = pack(tmp_path / "small.npz", count=289)
    real = vs.Account.reserve
    seen: list[str] = []

    def reserve(self: vs.Account, *arguments: Any, **options: Any) -> None:
        seen.append("charge")
        real(self, *arguments, **options)

    monkeypatch.setattr(vs.Account, "reserve", reserve)
    monkeypatch.setattr("veilset.cli.console.Console.warn", lambda self, text: seen.append(text))
    assert synthesize(small).exit_code == 0
    assert seen[0].startswith("Only 289 records")
    assert "Nothing is charged yet" in seen[0]
    assert seen[1] == "charge"


def test_on_a_terminal_a_person_can_stop(synthesize: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = pack(tmp_path / "small.npz", count=289)
    monkeypatch.setattr("veilset.cli.synthesize._is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda text: False)
    refused(synthesize(small), 2, "before anything was charged")
    assert charges() == 0
    assert synthesize(small, "--yes").exit_code == 0


def test_one_record_is_refused(synthesize: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", images=np.zeros((1, 16, 16), np.uint8), labels=np.zeros(1, int))
    refused(synthesize("one.npz"), 2, "at least 10 records, got 1")
    refused(command_line("plan", "-m", "tiny", "-n", 1, "-e", 1), 2, "at least 10 records, got 1")


def test_a_tiny_epsilon_has_digits_and_a_tiny_delta_is_refused(synthesize: Run) -> None:
    assert epsilon_text(1e-9) == "1e-09"
    assert epsilon_text(0.00123456) == "0.001235"
    assert epsilon_text(1.0) == "1.0000"
    refused(synthesize("data.npz", "--delta", "1e-13"), 2, "delta of at least 1e-12")


def test_any_other_database_as_an_account_is_refused(synthesize: Run, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "theirs.sqlite") as database:
        database.execute("CREATE TABLE guests (name TEXT)")
    before = Path("theirs.sqlite").read_bytes()
    refused(synthesize("data.npz", "--account", "theirs.sqlite"), 2, "another program")
    refused(command_line("account", "theirs.sqlite"), 2, "another program")
    refused(command_line("account", "theirs.sqlite", "--limit-epsilon", 1, "--limit-delta", 1e-5), 2, "another program")
    assert Path("theirs.sqlite").read_bytes() == before


def test_a_run_that_is_alive_is_said_to_be(synthesize: Run, tmp_path: Path) -> None:
    held = Ledger.create(tmp_path / "rel.veilset-run" / "ledger.jsonl", {"run": "x"})
    for words in ([], ["--resume"]):
        refused(synthesize("data.npz", *words), 2, "A run is alive there")
    held.close()
    assert charges() == 0


def test_files_of_a_release_can_be_read_by_others(synthesize: Run) -> None:
    assert synthesize().exit_code == 0
    modes = {place.name: stat.S_IMODE(place.stat().st_mode) for place in Path("rel").iterdir()}
    assert set(modes.values()) == {0o644}, modes


def test_classes_without_images_are_named(synthesize: Run) -> None:
    done = synthesize(samples=2)
    assert "1 of 3 classes have no released image: 2." in done.stderr


def test_accounts_are_listed_and_found_by_their_data(synthesize: Run, data: Path) -> None:
    assert "No account" in command_line("account").stdout
    assert synthesize().exit_code == 0
    (listed,) = shown("account")["accounts"]
    assert listed["data"] == [str(data)]
    assert (listed["runs"], listed["unit"]) == (1, "record")
    assert shown("account", "data.npz")["account"] == listed["account"]
    refused(command_line("account", "builtin:digits"), 2, "0 accounts were used for builtin:digits")
    refused(command_line("account", "--limit-epsilon", 1, "--limit-delta", 1e-5), 2, "Expected the account to change")


def test_a_certificate_tells_no_time_of_day(synthesize: Run) -> None:
    assert synthesize().exit_code == 0
    certificate = json.loads(Path("rel/certificate.json").read_text())
    assert len(certificate["created"]) == len("2026-01-31")
    assert all("time" not in line for line in certificate["ledger"])
