"""Whatever happens to a file's bytes, a reader gives images or an InputError, and nothing else."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from veilset.core.errors import InputError
from veilset.data import open_images

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
LABELS = np.arange(6, dtype=np.uint8) % 2


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(IMAGES[0]).save(buffer, "PNG")
    return buffer.getvalue()


def npz_pack(root: Path) -> Path:
    np.savez_compressed(root / "a.npz", images=IMAGES, labels=LABELS)
    return root / "a.npz"


def idx_labels(root: Path) -> Path:
    (root / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\3\0\0\0\6\0\0\0\x08\0\0\0\x08" + IMAGES.tobytes())
    (root / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\1\0\0\0\6" + LABELS.tobytes()))
    return root / "train-labels-idx1-ubyte.gz"


def folder_image(root: Path) -> Path:
    (root / "cat").mkdir()
    (root / "cat" / "a.png").write_bytes(png())
    return root / "cat" / "a.png"


def parquet_file(root: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"image": [{"bytes": png(), "path": None}] * 6, "label": LABELS})
    pq.write_table(table, root / "a.parquet", row_group_size=2)
    return root / "a.parquet"


SOURCES = {npz_pack: "a.npz", idx_labels: ":train", folder_image: "", parquet_file: "a.parquet"}


@pytest.mark.parametrize("make", SOURCES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes(make, data, tmp_path_factory):
    root = tmp_path_factory.mktemp("damage")
    path = make(root)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)) | st.just(len(content)))])
    source = f"{root}:train" if SOURCES[make] == ":train" else str(root / SOURCES[make])
    try:
        records = open_images(source)
    except InputError:
        return
    assert len(records.read(np.arange(len(records.labels)))) == len(records.labels)
