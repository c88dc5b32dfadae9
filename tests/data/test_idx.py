import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.data import open_images
from veilset.data.idx import read_idx

IMAGES = np.arange(4 * 3 * 5, dtype=np.uint8).reshape(4, 3, 5)
LABELS = np.array([0, 1, 1, 0], np.uint8)


def encode(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(encode(IMAGES))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(encode(LABELS))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(encode(IMAGES[:2])))
    (tmp_path / "t10k-labels.idx1-ubyte.gz").write_bytes(gzip.compress(encode(LABELS[:2])))
    return tmp_path


def test_both_splits_gzipped_or_not(folder):
    np.testing.assert_array_equal(open_images(f"{folder}:train").read(np.arange(4))[..., 0], IMAGES)
    np.testing.assert_array_equal(open_images(f"{folder}:test").read(np.arange(2))[..., 0], IMAGES[:2])


@pytest.mark.parametrize("split", ["", ":validation"])
def test_a_split_is_needed(folder, split):
    with pytest.raises(InputError, match="among train, test"):
        open_images(f"{folder}{split}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"\x00\x00\x0d\x03" + bytes(12), "first bytes are 00000d03"),
        ("train-images-idx3-ubyte", b"", "first bytes are missing"),
        ("train-images-idx3-ubyte", encode(IMAGES)[:-1], "promises 60 values and holds 59"),
        ("train-images-idx3-ubyte", encode(IMAGES) + b"x", "promises 60 values and holds more"),
        ("train-labels-idx1-ubyte", encode(LABELS[:3]), "4 images and 3 labels"),
        ("train-images-idx3-ubyte", bytes([0, 0, 8, 3]) + b"\xff" * 12, "would unpack to"),
    ],
)
def test_wrong_files_are_refused(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_images(f"{folder}:train")


# Named: gzip writes the time into its bytes, and every process that shares the tests has to give them the same names.
@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(encode(IMAGES[:2]))[:-12]], ids=["none", "cut short"])
def test_damaged_gzip_is_refused(folder, content):
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        open_images(f"{folder}:test")


def test_missing_labels_and_large_files(folder):
    with pytest.raises(InputError, match="at most 50"):
        read_idx(folder, "train", largest_bytes=50)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="no train-labels-idx1-ubyte"):
        open_images(f"{folder}:train")


def test_labels_and_groups_do_not_apply(folder):
    with pytest.raises(InputError, match="--groups who does not apply"):
        open_images(f"{folder}:train", groups="who")
