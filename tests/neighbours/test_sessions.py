"""Every mechanism and registered method, on datasets that differ by one unit: nothing moves that was not paid for."""

import pytest

from veilset.audit.mechanisms import MECHANISMS
from veilset.audit.methods import AUDITS
from veilset.audit.neighbour_methods import WORLDS, mechanism_neighbours, method_neighbours
from veilset.audit.neighbours import neighbour_run


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_mechanism(name: str) -> None:
    subject = mechanism_neighbours(name)
    assert neighbour_run(subject.play, subject.worlds) == []


CASES = [(name, number, world) for name in sorted(AUDITS) for number in range(len(AUDITS[name])) for world in WORLDS]


@pytest.mark.parametrize(("name", "form", "world"), CASES, ids=lambda value: str(value))
def test_a_method(name: str, form: int, world: str) -> None:
    subject = method_neighbours(name, WORLDS[world]())[form]
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name
