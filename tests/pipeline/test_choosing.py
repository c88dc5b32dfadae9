"""Recommendations follow the table on the page, and estimates follow what was measured."""

import json
import math
from pathlib import Path

import pytest

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.pipeline.choosing import AUDIENCE, EPSILON, RULES, Answers, recommend
from veilset.pipeline.costs import Measured, estimate, measured_runs, time_text
from veilset.privacy.vault import PublicFacts

ROOT = Path(__file__).resolve().parents[2]


def facts(units=2420, shape=(64, 64, 1), unit="record", findings=False):
    return PublicFacts(units=units, unit=unit, shape=shape, class_names=("a", "b"), findings=findings)


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        ({"facts": facts(findings=True), "look_alike": True}, "findings"),
        ({"facts": facts(shape=(32, 32, 3)), "look_alike": True, "public": "alike"}, "alike-colour"),
        ({"facts": facts(shape=(32, 32, 3)), "look_alike": True, "public": "other"}, "alike-colour"),
        ({"facts": facts(shape=(32, 32, 3)), "look_alike": True}, "alike"),
        ({"facts": facts(), "look_alike": True, "public": "alike"}, "alike"),
        ({"facts": facts(shape=(224, 224, 1)), "look_alike": True, "public": "alike"}, "alike-large"),
        ({"facts": facts(shape=(48, 64, 3)), "look_alike": True}, "alike-large"),
        ({"facts": facts(), "public": "other"}, "public"),
        ({"facts": facts()}, "nothing"),
    ],
)
def test_the_first_rule_that_applies_counts(answers, rule):
    found = recommend(Answers(**answers))
    assert found.method == RULES[rule].method
    assert RULES[rule].why in found.reasons[0]


def test_the_page_has_the_rules_and_the_epsilons_of_the_code():
    page = (ROOT / "docs" / "how_to" / "choose.md").read_text()
    for rule in RULES.values():
        assert f"| {rule.when} | `{rule.method}` | {rule.why} |" in page
        assert rule.method in METHODS
    for audience, text in AUDIENCE.items():
        assert f"| {text} | {EPSILON[audience]:g} |" in page
    assert len(page.split("## Epsilon")[0].split("|---|---|---|")[1].strip().split("\n\n")[0].splitlines()) == len(
        RULES
    )


def test_epsilon_is_explained_and_can_be_decided_before():
    found = recommend(Answers(facts=facts(unit="group"), audience="world"))
    assert found.epsilon == 1
    assert "one group was in the data" in found.reasons[1]
    assert "right at most 74 times" in found.reasons[1]
    own = recommend(Answers(facts=facts(), epsilon=2.5))
    assert (own.epsilon, own.delta) == (2.5, 1e-5)
    assert "you asked for it" in own.reasons[1]


def test_little_time_and_few_records_are_noticed():
    found = recommend(Answers(facts=facts(units=289), minutes=0.01))
    assert found.preset == "fast"
    assert any("Only 289 records" in warning for warning in found.warnings)
    with pytest.raises(InputError, match="public to be none, other, alike"):
        Answers(facts=facts(), public="some")


def test_estimates_come_back_where_they_were_measured_and_grow(monkeypatch):
    for run in measured_runs():
        channels = 1 if math.isqrt(run.pixels) ** 2 == run.pixels else 3
        side = math.isqrt(run.pixels // channels)
        found = estimate(run.method, run.preset, facts(run.records, (side, side, channels)), run.samples)
        assert found.seconds == pytest.approx(run.cpu_seconds)
        assert found.memory_mb == pytest.approx(run.peak_mb)
    small, wide, many = (
        estimate("merf", "default", facts(5000, shape), samples).seconds
        for shape, samples in (((32, 32, 1), 5000), ((64, 64, 3), 5000), ((32, 32, 1), 50_000))
    )
    assert small < wide
    assert small < many
    assert estimate("nosuch", "default", facts(), 10) is None


def test_every_measured_run_is_a_line_of_results():
    lines = []
    for path in ("mnist_fashion/results.jsonl", "costs.jsonl"):
        file = ROOT / "benchmarks" / "results" / path
        lines += [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    known = {(line["method"], line["samples"], line["cpu_seconds"], line["peak_mb"]) for line in lines}
    assert measured_runs()
    for run in measured_runs():
        assert isinstance(run, Measured)
        assert (run.method, run.samples, run.cpu_seconds, run.peak_mb) in known


@pytest.mark.parametrize(
    ("seconds", "text"), [(2, "5 seconds"), (61, "60 seconds"), (200, "3 minutes"), (9000, "2.5 hours")]
)
def test_times_are_told_as_people_tell_them(seconds, text):
    assert time_text(seconds) == text
