"""A federation has independent noise alone."""

import pytest

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.pipeline.federated.agreement import _require_sums
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


@pytest.mark.parametrize(("name", "preset"), [("imgsyn", "paper"), ("dfd", "paper"), ("pldk", "paper")])
def test_presets_of_papers_have_independent_noise(name: str, preset: str) -> None:
    plan = METHODS.get(name).configure(preset, {}).plan(FACTS, Budget(10.0, 1e-6))
    assert {event.bands for event in plan.events} <= {1}
