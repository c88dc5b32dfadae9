"""Methods at random settings, on random neighbouring datasets. Many minutes long; run with --nightly."""

import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

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


def varied(draw: Any, name: str) -> dict[str, Any]:
    """The settings of an audited form, with some choices and switches set at random."""
    fields = METHODS.get(name).settings_type.model_fields
    chosen = dict(draw(st.sampled_from(METHODS.get(name).forms)).settings)
    for field in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)):
        kind = fields[field].annotation
        if typing.get_origin(kind) is typing.Literal:
            chosen[field] = draw(st.sampled_from(typing.get_args(kind)))
        elif kind is bool:
            chosen[field] = draw(st.booleans())
    return chosen


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(METHODS))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=CHOICES)
def test_random_settings(name: str, data: Any) -> None:
    pair, chosen = worlds(data.draw), varied(data.draw, name)
    try:
        subject = configured_neighbours(METHODS.get(name), "fast", str(chosen), chosen, pair)
    except (InputError, BudgetError):
        assume(False)
        return
    assert neighbour_run(subject.play, subject.worlds) == [], chosen
