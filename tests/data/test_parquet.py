import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data import ImageSet, StreamedImages, open_images
from veilset.data import parquet as reader

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 6), dtype=np.uint8)
LABELS = np.arange(20) % 2


def encode(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, rows: slice = slice(None), names: list[str] | None = None, **columns) -> Path:
    encoded = [encode(image) for image in IMAGES[rows]]
    table = {"image": [{"bytes": data, "path": None} for data in encoded], "label": LABELS[rows]} | columns
    made = pa.table({name: values for name, values in table.items() if values is not None})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(made, path, row_group_size=4)
    return path


def test_a_file_in_the_hugging_face_layout(tmp_path):
    records = open_images(write(tmp_path / "a.parquet", names=["cat", "dog"], who=[f"p{i // 2}" for i in range(20)]))
    assert isinstance(records, StreamedImages)
    assert records.class_names == ("cat", "dog")
    rows = np.array([19, 0, 7, 7])
    np.testing.assert_array_equal(records.read(rows)[..., 0], IMAGES[rows])
    np.testing.assert_array_equal(records.digests(), ImageSet(IMAGES, LABELS).digests())
    assert records.groups is None
    assert open_images(tmp_path / "a.parquet", groups="who").groups[3] == "p1"


def test_binary_and_text_columns(tmp_path):
    data = [encode(image) for image in IMAGES]
    path = write(tmp_path / "a.parquet", image=None, picture=data, kind=["x", "y"] * 10)
    records = open_images(path, labels="kind")
    assert records.class_names == ("x", "y")
    np.testing.assert_array_equal(records.read(np.arange(20))[..., 0], IMAGES)


def test_shards_and_splits_of_a_folder(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", slice(0, 9))
    write(tmp_path / "data" / "train-00001-of-00002.parquet", slice(9, 15))
    assert len(open_images(tmp_path).labels) == 15
    write(tmp_path / "data" / "test-00000-of-00001.parquet", slice(15, 20))
    np.testing.assert_array_equal(open_images(f"{tmp_path}:train").read(np.array([12]))[0, ..., 0], IMAGES[12])
    np.testing.assert_array_equal(open_images(f"{tmp_path}:test").read(np.array([0]))[0, ..., 0], IMAGES[15])
    with pytest.raises(InputError, match=r"Expected a split of .* among test, train"):
        open_images(tmp_path)
    with pytest.raises(InputError, match="Expected a split 'valid'"):
        open_images(f"{tmp_path}:valid")


def test_limit_and_size_stay_streamed(tmp_path):
    records = open_images(write(tmp_path / "a.parquet"), limit=6, size=3, channels=3)
    assert isinstance(records, StreamedImages)
    count = len(records.labels)
    assert 2 <= count <= 11
    assert records.read(np.arange(count)).shape == (count, 3, 3, 3)


def test_each_row_group_is_read_once_and_few_are_kept(tmp_path, monkeypatch):
    read: list[int] = []
    leaf = reader._leaf
    monkeypatch.setattr(reader, "_leaf", lambda table: read.append(len(table)) or leaf(table))
    records = open_images(write(tmp_path / "a.parquet"))
    assert len(read) <= 8  # 5 groups; threads at a border may ask for one again
    read.clear()
    records.read(np.array([0, 16, 1, 17, 2]))
    assert len(read) <= 2
    assert len(records._files._kept) <= 2


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"label": None}, {}, "Unknown column of a.parquet 'label'"),
        ({}, {"groups": "patient"}, "Unknown column of a.parquet 'patient'"),
        ({"image": None}, {}, "Expected an image column"),
        ({"label": [None] + [0] * 19}, {}, "1 records of .* have no label"),
        ({"label": [0.5] * 20}, {}, "integers or text"),
        ({"label": [3, 4] * 10}, {}, "--classes 3,4"),
        ({"image": [{"bytes": None, "path": "a.png"}] * 20}, {}, "20 of 20 images cannot be read.*only a path"),
        ({"image": [{"bytes": b"x", "path": "a.png"}] * 20}, {}, "row 0 of row group 0 in a.parquet"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, columns, options, message):
    path = write(tmp_path / "a.parquet", **columns)
    with pytest.raises(InputError, match=message):
        open_images(path, **options)


def test_unlabelled_records_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet", names=["cat", "dog"], label=[-1, 0] * 10)
    with pytest.raises(InputError, match="Remove the records without a class"):
        open_images(path)


def test_other_files_and_large_groups_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no splits"):
        open_images(f"{path}:train")
    monkeypatch.setattr(reader, "LARGEST_ROW_GROUP", 10)
    with pytest.raises(InputError, match="Row group 0 of"):
        open_images(path)
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match="damaged or not a parquet file"):
        open_images(path)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow, .*pip install veilset\[data\]"):
        open_images(path)
