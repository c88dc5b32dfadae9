import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.data import ImageSet, pixels


def make(n: int = 6, classes: int = 3, shape: tuple[int, ...] = (4, 5, 1), **kwargs) -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)
    return ImageSet(images, np.arange(n) % classes, **kwargs)


def test_an_image_set_is_records():
    records: Records = make(groups=np.array(["a", "b", "a", "c", "c", "c"]))
    assert records.shape == (4, 5, 1)
    assert records.class_names == ("0", "1", "2")
    assert records.labels.dtype == np.int64
    assert records.read(np.array([2, 0])).shape == (2, 4, 5, 1)
    assert records.digests().shape == (6, 32)


def test_grey_images_without_a_channel_axis_get_one():
    assert ImageSet(np.zeros((2, 3, 3), np.uint8), np.array([0, 1], np.uint8)).shape == (3, 3, 1)


def test_floats_in_0_to_1_become_bytes():
    images = ImageSet(np.array([0.0, 0.5, 1.0]).reshape(1, 1, 3, 1), [0]).images
    assert images.ravel().tolist() == [0, 128, 255]


U8 = np.zeros((2, 3, 3, 1), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((0, 3, 3), np.uint8), [], "holds no pixels"),
        (np.zeros((2, 3), np.uint8), [0, 1], "Expected images of shape"),
        (np.zeros((2, 3, 3, 4), np.uint8), [0, 1], "C = 1 or 3"),
        (np.zeros((2, 3, 3), np.int32), [0, 1], "dtype uint8, or floats in 0..1, got int32"),
        (np.full((2, 3, 3), np.nan), [0, 1], "NaN or infinite"),
        (np.full((2, 3, 3), np.inf), [0, 1], "NaN or infinite"),
        (np.full((2, 3, 3), 200.0), [0, 1], "float images in 0..1"),
        (np.full((2, 3, 3), -0.1), [0, 1], "float images in 0..1"),
        (np.array([None, "x"], object), [0, 1], "Python objects"),
        (U8, [0, 1, 1], "one label for each of 2 images"),
        (U8, [0.0, 1.0], "Expected integer labels"),
        (U8, [-1, 0], "negative"),
        (U8, [0, 2], "1 of 3 classes have no record: 1"),
        (U8, [0, 10**12], "got 1000000000000"),
    ],
)
def test_bad_arrays_are_refused(images, labels, message):
    with pytest.raises(InputError, match=message):
        ImageSet(images, np.array(labels))


def test_class_names_must_fit():
    with pytest.raises(InputError, match="Label 2 has no name"):
        make(class_names=("a", "b"))
    with pytest.raises(InputError, match="4 classes have no record: d"):
        make(class_names=("a", "b", "c", "d"))
    with pytest.raises(InputError, match="distinct class names"):
        make(class_names=("a", "a", "c"))


def test_groups_must_fit():
    with pytest.raises(InputError, match="one group for each of 6"):
        make(groups=np.arange(5))
    with pytest.raises(InputError, match="groups as integers or text"):
        make(groups=np.ones(6))


def test_nothing_can_be_changed():
    images = make()
    with pytest.raises(AttributeError):
        images.labels = np.zeros(6)
    with pytest.raises(ValueError, match="read-only"):
        images.images[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        images.labels[0] = 1
    images.read(np.array([0]))[:] = 7  # a copy: fine


def test_repr_shows_no_pixels():
    assert repr(make(groups=np.arange(6))) == "ImageSet(6 images 4x5x1, 3 classes, 6 groups)"


def test_a_digest_depends_on_its_record_alone():
    whole = make()
    part = whole.subset(np.array([4, 1]))
    np.testing.assert_array_equal(part.digests(), whole.digests()[[4, 1]])
    relabelled = ImageSet(whole.images, (whole.labels + 1) % 3)
    assert not (relabelled.digests() == whole.digests()).all(axis=1).any()
    reshaped = ImageSet(whole.images.reshape(6, 5, 4, 1), whole.labels)
    assert not (reshaped.digests() == whole.digests()).all(axis=1).any()


def test_a_subset_keeps_names_and_groups():
    part = make(groups=np.arange(6)).subset(np.array([3, 0]))
    assert part.labels.tolist() == [0, 0]
    assert part.class_names == ("0", "1", "2")
    assert part.groups.tolist() == [3, 0]
    assert part.with_channels(3).resize(8).shape == (8, 8, 3)


def test_rows_are_row_numbers():
    images = make()
    for wrong, error in {(0, 6): IndexError, (-1,): IndexError, (True,) * 6: TypeError, (0.5,): TypeError}.items():
        with pytest.raises(error, match="Expected row"):
            images.read(np.array(wrong))
    assert images.read(np.array([])).shape == (0, 4, 5, 1)
    with pytest.raises(InputError, match="at least one record"):
        images.subset(np.array([]))


def test_images_of_several_shapes_are_refused():
    with pytest.raises(InputError, match="differ in shape"):
        ImageSet([np.zeros((2, 2), np.uint8), np.zeros((3, 3), np.uint8)], np.array([0, 1]))


def test_sizes_and_channels_are_checked():
    with pytest.raises(InputError, match="Expected a size from 1"):
        make().resize(0)
    with pytest.raises(InputError, match="1 channel"):
        make().with_channels(2)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.just(3))))
def test_grey_is_what_pillow_makes_of_it(images):
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in images]
    np.testing.assert_array_equal(pixels.to_channels(images, 1)[..., 0], expected)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.just(1))))
def test_grey_survives_colour_and_bytes_survive_floats(images):
    np.testing.assert_array_equal(pixels.to_channels(pixels.to_channels(images, 3), 1), images)
    np.testing.assert_array_equal(pixels.as_uint8(images / 255), images)


def test_views_keep_the_digests_of_their_source() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    source = ImageSet(images, np.arange(6) % 2)
    known = source.source_digests()
    view = ImageSet(images, np.zeros(6, int)).resize(4).subset(np.array([4, 1])).with_channels(1)
    assert np.array_equal(view.source_digests(), known[[4, 1]])
    assert not np.array_equal(view.digests(), source.digests()[[4, 1]])
