import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.data import ImageSet, StreamedImages, open_images, streaming
from veilset.data import folder as folder_reader
from veilset.data.folder import _Files


def save(path: Path, array: np.ndarray) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return array


def picture(seed: int, shape: tuple[int, ...] = (6, 5)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    for seed, name in enumerate(["cat/a.png", "cat/deep/b.PNG", "dog/c.bmp", "dog/d.tif"]):
        save(root / name, picture(seed))
    (root / "cat" / "notes.txt").write_text("ignored")
    return root


def with_csv(root: Path, text: str) -> Path:
    (root / "labels.csv").write_text(text)
    return root


def test_subfolders_are_classes(folder):
    records: Records = open_images(folder)
    assert isinstance(records, StreamedImages)
    assert records.class_names == ("cat", "dog")
    assert records.labels.tolist() == [0, 0, 1, 1]
    expected = np.stack([picture(seed) for seed in range(4)])[..., None]
    np.testing.assert_array_equal(records.read(np.arange(4)), expected)
    np.testing.assert_array_equal(records.read(np.array([3, 0, 3])), expected[[3, 0, 3]])
    np.testing.assert_array_equal(records.digests(), ImageSet(expected, records.labels).digests())
    assert repr(records) == "StreamedImages(4 images 6x5x1, 2 classes)"


def test_size_and_channels_are_those_of_an_image_set(folder):
    records = open_images(folder, size=9, channels=3)
    plain = open_images(folder)
    held = ImageSet(plain.read(np.arange(4)), plain.labels).with_channels(3).resize(9)
    np.testing.assert_array_equal(records.read(np.arange(4)), held.images)
    np.testing.assert_array_equal(records.digests(), held.digests())


def test_folders_with_numbers_are_in_the_order_of_numbers(tmp_path):
    for number in (10, 9, 1):
        save(tmp_path / str(number) / "a.png", picture(number))
    assert open_images(tmp_path).class_names == ("1", "9", "10")


def test_classes_give_the_order(folder):
    assert open_images(folder, classes=("dog", "cat")).labels.tolist() == [1, 1, 0, 0]
    with pytest.raises(InputError, match="have no record: cow"):
        open_images(folder, classes=("dog", "cat", "cow"))


def test_a_csv_gives_labels_and_groups(folder):
    with_csv(folder, "path,label,group,other\ncat/a.png,ill,p1,1\ndog/c.bmp,well,p2,0\ndog/d.tif,ill,p1,0\n")
    records = open_images(folder)
    assert records.class_names == ("ill", "well")
    assert records.labels.tolist() == [0, 1, 0]
    assert records.groups.tolist() == ["p1", "p2", "p1"]
    assert open_images(folder, labels="other", groups="label").groups.tolist() == ["ill", "well", "ill"]


def test_integer_labels_of_a_csv_must_be_0_to_k(folder):
    with_csv(folder, "path,label\ncat/a.png,3\ndog/c.bmp,7\n")
    with pytest.raises(InputError, match="--classes 3,7"):
        open_images(folder)
    assert open_images(folder, classes=("7", "3")).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,klass\ncat/a.png,0\n", "Unknown column of .* 'label'"),
        ("path,label\ncat/a.png,\n", "Line 2 of .* lacks a label"),
        ("path,label\ncat/a.png\n", "Line 2 of .* lacks a label"),
        ("path,label\ncat/no.png,0\n", "1 files of labels.csv are not in .*: cat/no.png"),
        ("path,label\n../secret.png,0\n", "1 paths of labels.csv leave"),
        ("path,label\n/etc/passwd,0\n", "1 paths of labels.csv leave"),
        ("path,label\ncat/a.png,0\ncat/./a.png,1\n", "stand there twice: cat/a.png"),
        ("path,label\ncat/notes.txt,0\n", "are not images: cat/notes.txt. Accepted: .png"),
        ("path,label\n", "no records"),
        ("", "Unknown column"),
    ],
)
def test_a_bad_csv_is_refused(folder, text, message):
    with pytest.raises(InputError, match=message):
        open_images(with_csv(folder, text))


def test_a_binary_csv_is_refused(folder):
    (folder / "labels.csv").write_bytes(b"path,label\n\xff\xfe,0\n")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        open_images(folder)


def test_numbers_with_leading_zeros_are_names(folder):
    with_csv(folder, "path,label,group\ncat/a.png,0,007\ndog/c.bmp,1,7\n")
    assert open_images(folder).groups.tolist() == ["007", "7"]


def test_columns_need_a_csv(folder):
    with pytest.raises(InputError, match="--groups names a column"):
        open_images(folder, groups="patients")
    with pytest.raises(InputError, match="--labels names a column"):
        open_images(folder, labels="other")


def test_damaged_files_are_named_and_counted(folder):
    for number in range(7):
        (folder / "dog" / f"bad{number}.png").write_bytes(b"not a png")
    (folder / "cat" / "gone.png").symlink_to(folder / "cat" / "nowhere.png")
    message = r"8 of 12 images cannot be read: cat/gone.png \(unreadable: No such file.*dog/bad0.png \(not an image"
    with pytest.raises(InputError, match=message) as caught:
        open_images(folder)
    assert "bad3" in str(caught.value)
    assert "bad4" not in str(caught.value)


def test_links_that_leave_are_refused(folder, tmp_path):
    save(tmp_path / "outside.png", picture(9))
    link = folder / "cat" / "link.png"
    link.symlink_to(folder / "cat" / "a.png")
    assert len(open_images(folder).labels) == 5
    link.unlink()
    link.symlink_to(tmp_path / "outside.png")
    with pytest.raises(InputError, match=r"link.png is a link that leaves"):
        open_images(folder)
    link.unlink()
    (folder / "cow").symlink_to(tmp_path)
    with pytest.raises(InputError, match="cow is a link to another folder"):
        open_images(folder)


def test_mixed_shapes_need_a_size(folder):
    save(folder / "cat" / "z.png", picture(8, (7, 7)))
    with pytest.raises(InputError, match=r"2 different shapes: 6x5x1 \(cat/a.png\), 7x7x1 \(cat/z.png\). Pass --size"):
        open_images(folder)
    assert open_images(folder, size=16).shape == (16, 16, 1)


def test_mixed_channels_need_a_choice(folder):
    save(folder / "cat" / "z.png", picture(8, (6, 5, 3)))
    with pytest.raises(InputError, match=r"some in colour.*--channels 1 or 3"):
        open_images(folder)
    assert open_images(folder, channels=1).shape == (6, 5, 1)


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no images.*Accepted files: .png, .jpg"):
        open_images(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(InputError, match=r"'cat' .* has no record \(1 files of other kinds were ignored\). Accepted"):
        open_images(tmp_path)


def test_a_file_that_changes_is_refused(folder):
    records = open_images(folder)
    save(folder / "cat" / "a.png", picture(99))
    with pytest.raises(InputError, match=r"cat/a.png changed since it was opened"):
        records.read(np.array([0]))
    (folder / "cat" / "a.png").unlink()
    with pytest.raises(InputError, match="could be read at opening but not now"):
        records.read(np.array([0]))


def test_rows_outside_are_refused(folder):
    records = open_images(folder)
    with pytest.raises(IndexError, match=r"Expected rows 0..3"):
        records.read(np.array([4]))
    assert records.read(np.array([], np.int64)).shape == (0, 6, 5, 1)


def test_a_large_folder_is_not_held_in_memory(tmp_path, monkeypatch):
    count, side = 2000, 64
    for row in range(count):
        save(tmp_path / str(row % 2) / f"{row}.png", np.full((side, side), row % 251, np.uint8))
    fetched: list[int] = []
    lock, fetch = threading.Lock(), _Files.fetch

    def counting(self: _Files, row: int) -> bytes:
        with lock:
            fetched.append(row)
        return fetch(self, row)

    monkeypatch.setattr(_Files, "fetch", counting)
    tracemalloc.start()
    try:
        records = open_images(tmp_path)
        assert len(fetched) == count
        records.read(np.arange(32))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(fetched) == count + 32
    assert peak < count * side * side / 2  # half of all pixels, with paths, futures and Pillow's plugins


def test_a_huge_image_is_decoded_once_when_the_folder_is_opened(folder, monkeypatch):
    monkeypatch.setattr(streaming, "_HUGE_PIXELS", 2_000)
    huge = np.random.default_rng(0).integers(0, 256, (60, 60), np.uint8)
    save(folder / "cat" / "huge.png", huge)
    records = open_images(folder, size=8, channels=1)
    whole = records.read(np.arange(len(records.labels)))
    decoded: list[int] = []
    decode = folder_reader.picture_of
    monkeypatch.setattr(folder_reader, "picture_of", lambda content: decoded.append(len(content)) or decode(content))
    np.testing.assert_array_equal(records.read(np.arange(len(records.labels))), whole)
    assert len(decoded) == len(records.labels) - 1
    assert (folder / "cat" / "huge.png").stat().st_size not in decoded
