"""A federation has independent noise alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.pipeline.federated.admission import make_request
from veilset.pipeline.federated.agreement import Agreement, Rule, _require_sums
from veilset.pipeline.federated.server import draw_agreement
from veilset.pipeline.job import Job
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts

FACTS = PublicFacts(units=60_000, unit="record", shape=(16, 16, 1), class_names=("no", "yes"))


@pytest.mark.parametrize("name", ["imgsyn", "dfd"])
def test_bands_are_refused_with_what_to_set(name: str) -> None:
    kind, budget = METHODS.get(name), Budget(10.0, 1e-6)
    plan = kind.configure("default", {"teacher": "network"}).plan(FACTS, budget)
    assert any(event.bands > 1 for event in plan.events)
    with pytest.raises(InputError, match="--set teacher_bands=1"):
        _require_sums(name, plan)
    _require_sums(name, kind.configure("default", {"teacher": "network", "teacher_bands": 1}).plan(FACTS, budget))


def drawn(name: str, home: Path, **settings: str) -> Agreement:
    facts = replace(FACTS, units=30_000)
    requests = [make_request(home / site, facts, name=site, epsilon=10.0, delta=1e-6) for site in ("north", "south")]
    return draw_agreement(requests, Job(method=name, epsilon=1.0, settings=settings), Rule(min_sites=2), None)


@pytest.mark.parametrize("name", ["imgsyn", "dfd"])
def test_auto_is_independent_noise_in_a_federation_and_the_agreement_says_so(name: str, tmp_path: Path) -> None:
    found = drawn(name, tmp_path / "left out", teacher="network")
    assert found.settings == {"teacher": "network", "teacher_bands": "1"}
    assert {event.bands for event in found.plan().events} == {1}
    assert Agreement.from_bytes(found.to_bytes()) == found
    said = drawn(name, tmp_path / "said", teacher="network", teacher_bands="auto")
    assert said.plan().certified()["teacher_bands"] == 1
    assert drawn(name, tmp_path / "head", teacher="head").settings == {"teacher": "head"}, "a head has no bands"
    with pytest.raises(InputError, match=r"independent noise alone.* teacher_bands=auto"):
        drawn(name, tmp_path / "explicit", teacher="network", teacher_bands="4")


def test_a_site_draws_no_plan_of_an_agreement_that_leaves_bands_to_a_rule(tmp_path: Path) -> None:
    """The keeper writes the agreement, so a site does not rely on what `admit` decides."""
    found = replace(drawn("imgsyn", tmp_path, teacher="network"), settings={"teacher": "network"})
    with pytest.raises(InputError, match="independent noise alone"):
        found.plan_of(found.member("north"))


@pytest.mark.parametrize(("name", "preset"), [("imgsyn", "paper"), ("dfd", "paper"), ("pldk", "paper")])
def test_presets_of_papers_have_independent_noise(name: str, preset: str) -> None:
    plan = METHODS.get(name).configure(preset, {}).plan(FACTS, Budget(10.0, 1e-6))
    assert {event.bands for event in plan.events} <= {1}
