import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilset.core.errors import InputError
from veilset.data.classes import index_labels


@pytest.mark.parametrize(
    ("values", "classes", "names", "labels", "class_names"),
    [
        ([1, 0, 1], None, None, [1, 0, 1], ("0", "1")),
        (["dog", "cat", "dog"], None, None, [1, 0, 1], ("cat", "dog")),
        (["dog", "cat"], ("dog", "cat"), None, [0, 1], ("dog", "cat")),
        ([7, 3, 7], ("3", "7"), None, [1, 0, 1], ("3", "7")),
        ([-1, 1], ("1", "-1"), None, [1, 0], ("1", "-1")),
        ([1, 0], ("normal", "ill"), None, [1, 0], ("normal", "ill")),
        ([1, 0], ("1", "0"), None, [0, 1], ("1", "0")),
        ([1, 0], None, ["a", "b"], [1, 0], ("a", "b")),
        ([1, 0], ("x", "y"), ["a", "b"], [1, 0], ("x", "y")),
    ],
)
def test_labels_become_indices(values, classes, names, labels, class_names):
    indices, found = index_labels(np.array(values), classes, names)
    assert (indices.tolist(), found) == (labels, class_names)
    assert indices.dtype == np.int64


@pytest.mark.parametrize(
    ("values", "classes", "names", "message"),
    [
        ([1, 2, 3], None, None, r"0..2, got 1, 2, 3. Pass the values in order: --classes 1,2,3"),
        ([0, 2], None, None, "--classes 0,2"),
        ([5, 9], ("a", "b"), None, "Labels 5, 9 are not among --classes a,b"),
        (["x", "y"], ("x", "z"), None, "Labels y are not among"),
        (["x"], ("x", "z"), None, "1 of 2 classes have no record: z"),
        ([0, 1], ("a", "b", "c"), None, "have no record: c"),
        ([0, 1], ("a", "a"), None, "distinct class names"),
        ([0, 1], (), None, "distinct class names, got none"),
        ([-1, 0], None, ["a", "b"], "Remove the records without a class"),
        ([0, 0], None, ["a", "b"], "have no record: b"),
        ([0.5, 1.5], None, None, "integer or text labels"),
        ([[0, 1]], None, None, "one label for each image"),
        ([], None, None, "no records"),
    ],
)
def test_other_labels_are_refused(values, classes, names, message):
    with pytest.raises(InputError, match=message):
        index_labels(np.array(values), classes, names)


@given(st.lists(st.text("abcXYZ", min_size=1), min_size=1))
def test_names_come_back(values):
    labels, names = index_labels(np.array(values), None)
    assert [names[label] for label in labels] == values
    assert sorted(set(values)) == list(names)
