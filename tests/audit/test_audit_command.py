"""`veilset audit` as a custodian calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import veilset.audit.mechanisms as mechanisms
import veilset.audit.sabotage as sabotage
import veilset.audit.sabotage_neighbours as sabotage_neighbours
from veilset.audit.game import Subject
from veilset.cli.main import app

KEYS = {"claimed_epsilon", "lower_bound", "confidence", "contradicted"}


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["audit", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_sound_mechanism(tmp_path: Path) -> None:
    code, stdout, _ = call("--mechanism", "histogram", "--runs", "50", "--json", "--out", str(tmp_path / "audit.json"))
    assert code == 0
    result = json.loads(stdout)
    assert result.keys() >= KEYS
    assert result["contradicted"] is False
    assert result["code_breaches"] == []
    assert json.loads((tmp_path / "audit.json").read_text()) == result
    code, stdout, stderr = call("--mechanism", "histogram", "--out", str(tmp_path / "audit.json"))
    assert code == 2
    assert "exists already" in stderr


def test_a_contradicted_claim_ends_with_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mechanism of one claim, sold under another."""
    honest = mechanisms.gaussian_sum(20.0)

    def sold(epsilon: float) -> Subject:
        from dataclasses import replace

        return honest if epsilon == 20.0 else replace(honest, name="sold")

    monkeypatch.setitem(mechanisms.MECHANISMS, "histogram", sold)
    monkeypatch.setattr("veilset.audit.bounds.epsilon_of", lambda events, delta: 0.5)
    code, stdout, stderr = call("--mechanism", "histogram", "--runs", "60", "--json")
    assert code == 4
    assert json.loads(stdout)["contradicted"] is True
    assert "CONTRADICTED" in stderr


def test_sabotages_are_listed_with_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tuple(twin for twin in sabotage.SABOTAGES if twin.name in ("noise removed", "a fixed seed"))
    monkeypatch.setattr(sabotage, "SABOTAGES", chosen)
    code, stdout, _ = call("--sabotage", "--runs", "60", "--json")
    assert code == 0
    listed = json.loads(stdout)["sabotages"]
    exact = [subject.name for subject in sabotage_neighbours.neighbour_sabotages()]
    assert [twin["name"] for twin in listed] == [*exact, "noise removed", "a fixed seed"]
    assert all(twin.keys() >= KEYS and twin["contradicted"] for twin in listed)
    code, stdout, _ = call("--sabotage", "--runs", "60")
    assert stdout.count("caught") == len(exact) + 2


def test_a_sabotage_that_is_missed_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    halved = next(twin for twin in sabotage.SABOTAGES if twin.name == "noise halved")
    monkeypatch.setattr(sabotage, "SABOTAGES", (halved,))
    code, _, stderr = call("--sabotage", "--runs", "50", "--confidence", "0.999999")
    assert code == 1
    assert "did not catch noise halved" in stderr


def test_several_audits_share_the_chance_of_a_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: mechanisms.MECHANISMS[name] for name in ("histogram", "gaussian_sum", "shards", "quantile")}
    monkeypatch.setattr(mechanisms, "MECHANISMS", few)
    # So sure that a false alarm, which chance allows, does not happen here.
    code, stdout, _ = call("--mechanism", "all", "--runs", "50", "--confidence", "0.999996", "--json")
    result = json.loads(stdout)
    assert code == 0
    assert result["confidence"] == 0.999996
    assert [1 - finding["confidence"] for finding in result["findings"]] == pytest.approx([1e-6] * 3)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--method", "merf", "--mechanism", "histogram"),
        ("--mechanism", "histogramm"),
        ("--method", "nothing"),
        ("--mechanism", "histogram", "--confidence", "1"),
    ],
)
def test_bad_options_end_with_code_2(arguments: tuple[str, ...]) -> None:
    code, _, stderr = call(*arguments)
    assert code == 2
    assert "Error" in stderr
