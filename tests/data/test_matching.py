"""Classes are matched by their names, in whatever order a source has them."""

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.matching import in_class_order

LABELS = np.array([0, 1, 2, 2])


def records(*names: str) -> ImageSet:
    return ImageSet(np.zeros((4, 2, 2, 1), np.uint8), LABELS, names)


def test_another_order_gets_the_wanted_numbers() -> None:
    given = records("bright", "dark", "grey")
    found = in_class_order(given, ("dark", "grey", "bright"), "the test images")
    assert found.class_names == ("dark", "grey", "bright")
    assert [found.class_names[label] for label in found.labels] == ["bright", "dark", "grey", "grey"]
    np.testing.assert_array_equal(found.digests(), given.digests())
    assert found.read(np.array([0])).shape == (1, 2, 2, 1)


@pytest.mark.parametrize("names", [("dark", "grey", "bright"), ("0", "1", "2"), ("a", "b")])
def test_the_same_order_and_bare_numbers_stay(names: tuple[str, ...]) -> None:
    given = records("dark", "grey", "bright")
    assert in_class_order(given, names, "the test images") is given
    numbered = records("0", "1", "2")
    assert in_class_order(numbered, names, "the test images") is numbered


@pytest.mark.parametrize("names", [("dark", "grey", "black"), ("1", "2", "3")])
def test_other_names_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="Pass --classes"):
        in_class_order(records("dark", "grey", "bright"), names, "the test images")
