"""Methods at random settings, on random neighbouring datasets. Many minutes long; run with --nightly."""

import typing
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from veilset.audit.methods import AUDITS
from veilset.audit.neighbour_methods import NAMES, configured_neighbours
from veilset.audit.neighbours import Neighbours, neighbour_run
from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.methods import METHODS

CHOICES = st.data()


def worlds(draw: Any) -> Neighbours:
    """From two to sixty records, by groups or not, and a unit of any number of images at any place."""
    count, in_unit = draw(st.integers(8, 60)), draw(st.integers(1, 40))
    grouped = draw(st.booleans())
    coins = np.random.default_rng(draw(st.integers(0, 2**32)))
    total = count + (in_unit if grouped else 1)
    images = coins.integers(0, 256, (total, 16, 16, 1), dtype=np.uint8)
    images[coins.random(total) < 0.1] = coins.choice([0, 255])
    owners = np.append(coins.integers(0, count, count), np.full(total - count, count + 1)) if grouped else None
    labels = np.append(np.arange(count) % 2, coins.integers(0, 2, total - count))
    whole = ImageSet(images, labels, NAMES, owners, may_lack_classes=True)
    place = draw(st.sampled_from(["first", "middle", "last"]))
    records, unit = whole.subset(np.arange(count)), whole.subset(np.arange(count, total))
    return Neighbours(records=records, unit=unit, places=(place,))


def varied(draw: Any, name: str) -> dict[str, str]:
    """The settings of an audited form, with some choices and switches set at random."""
    kind = METHODS.get(name).config_type
    types = typing.get_type_hints(kind)
    chosen = dict(draw(st.sampled_from(AUDITS[name])).settings)
    for field in draw(st.lists(st.sampled_from(fields(kind)), max_size=3, unique_by=lambda field: field.name)):
        options = typing.get_args(types[field.name])
        if typing.get_origin(types[field.name]) is typing.Literal:
            chosen[field.name] = str(draw(st.sampled_from(options)))
        elif types[field.name] is bool:
            chosen[field.name] = draw(st.sampled_from(["true", "false"]))
    return chosen


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(AUDITS))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=CHOICES)
def test_random_settings(name: str, data: Any) -> None:
    pair, chosen = worlds(data.draw), varied(data.draw, name)
    entry = replace(AUDITS[name][0], form=str(chosen), settings=chosen)
    try:
        subject = configured_neighbours(name, entry, pair)
    except (InputError, BudgetError):
        assume(False)
        return
    assert neighbour_run(subject.play, subject.worlds) == [], chosen
