import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from veilset.core.errors import InputError
from veilset.data import guards, open_images
from veilset.data.npz import read_npz

IMAGES = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
LABELS = np.array([0, 1, 1, 0], np.uint8)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "set.npz"
    arrays = {"train_images": IMAGES, "train_labels": LABELS, "train_labels3": np.array([0, 1, 2, 0])}
    np.savez(path, **arrays, train_patients=np.array([5, 5, 6, 7], np.int32), test_images=IMAGES, test_labels=LABELS)
    return path


def write_member(path: Path, name: str, content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "a", compression) as pack:
        pack.writestr(name, content)


def test_a_split_with_other_labels_and_groups(pack):
    records = open_images(f"{pack}:train", labels="labels3", groups="patients")
    np.testing.assert_array_equal(records.read(np.arange(4))[..., 0], IMAGES)
    assert records.labels.tolist() == [0, 1, 2, 0]
    assert records.groups.tolist() == [5, 5, 6, 7]


def test_a_pack_without_splits_and_with_lzma_members(tmp_path):
    path = tmp_path / "plain.npz"
    for name, array in {"images": IMAGES, "labels": LABELS[:, None]}.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_member(path, f"{name}.npy", buffer.getvalue(), zipfile.ZIP_LZMA)
    records = read_npz(path, None)
    assert records.labels.tolist() == LABELS.tolist()


def test_an_unknown_split_lists_those_there_are(pack):
    with pytest.raises(InputError, match=r"Expected a split 'valid' of set.npz among train, test"):
        open_images(f"{pack}:valid")
    with pytest.raises(InputError, match=r"Expected a split of set.npz among train, test. Pass .*set.npz:train"):
        open_images(pack)


def test_unknown_arrays_are_named(pack, tmp_path):
    with pytest.raises(InputError, match=r"'train_label3'. Did you mean train_labels3\?"):
        open_images(f"{pack}:train", labels="label3")
    np.savez(tmp_path / "other.npz", x=IMAGES)
    with pytest.raises(InputError, match="It holds: x"):
        open_images(tmp_path / "other.npz")


def test_objects_are_never_unpickled(tmp_path):
    class Explosive:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    np.savez(tmp_path / "a.npz", images=np.array([Explosive(), None], object), labels=np.array([0, 1]))
    with pytest.raises(InputError, match="holds Python objects"):
        open_images(tmp_path / "a.npz")


def test_bombs_are_refused_before_unpacking(tmp_path, monkeypatch):
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, images=np.zeros((40, 64, 64), np.uint8), labels=np.arange(40) % 2)
    with pytest.raises(InputError, match=r"would unpack to 16.* bytes; at most 1,000"):
        read_npz(path, None, largest_bytes=1000)
    monkeypatch.setattr(guards, "RATIO_MATTERS_FROM", 1000)
    monkeypatch.setattr(guards, "LARGEST_RATIO", 50)
    with pytest.raises(InputError, match="looks like a decompression bomb"):
        read_npz(path, None)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "a.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28), }\n"
    write_member(path, "images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"123")
    np.save(tmp_path / "labels.npy", LABELS)
    write_member(path, "labels.npy", (tmp_path / "labels.npy").read_bytes())
    with pytest.raises(InputError, match="promises 784,000,000,000,000 bytes and holds 3"):
        open_images(path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 half a zip"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"damaged or not an .npz pack"):
        open_images(tmp_path / "a.npz")


def test_damaged_members_are_refused(pack):
    content = bytearray(pack.read_bytes())
    at = content.find(IMAGES.tobytes())
    content[at] ^= 0xFF
    pack.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        open_images(f"{pack}:train")


def test_labels_and_images_must_belong_together(tmp_path):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS[:3])
    with pytest.raises(InputError, match="one label for each of 4 images"):
        open_images(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=IMAGES, labels=np.zeros((4, 7), int))
    with pytest.raises(InputError, match="7 of 7 findings are true of no record"):
        open_images(tmp_path / "b.npz")


@given(images=hnp.arrays(np.uint8, st.tuples(*[st.integers(1, 5)] * 3)))
def test_round_trip(images, tmp_path_factory):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    np.savez(path, images=images, labels=np.zeros(len(images), int))
    np.testing.assert_array_equal(read_npz(path, None).images[..., 0], images)


@pytest.mark.data
@pytest.mark.parametrize(
    ("source", "count", "shape", "classes"),
    [
        ("mnist.npz:test", 10000, (28, 28, 1), 10),
        ("cifar10_15k.npz:test", 5000, (32, 32, 3), 10),
        ("tinyimagenet_32.npz:test", 2000, (32, 32, 3), 200),
    ],
)
def test_real_packs(data_dir, source, count, shape, classes):
    records = open_images(data_dir / source)
    assert (len(records.labels), records.shape, len(records.class_names)) == (count, shape, classes)


@pytest.mark.data
def test_patients_of_the_chest_pack(data_dir):
    records = open_images(data_dir / "chest_xray_64.npz:test", labels="labels3", groups="patients")
    assert len(records.class_names) == 3
    assert records.groups.dtype == np.int64
