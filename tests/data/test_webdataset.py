"""WebDataset shards as a data argument: the same records as the images themselves, and clear lines for bad ones."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data.opening import open_images

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "PNG")
    return content.getvalue()


def shard(path: Path, *samples: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as out:
        for number, sample in enumerate(samples):
            for ending, content in sample.items():
                entry = tarfile.TarInfo(f"{number:04d}.{ending}")
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))
    return path


def sample(row: int, **about: Any) -> dict[str, bytes]:
    return {"png": png(IMAGES[row]), "json": json.dumps({"label": row % 2, **about}).encode()}


def test_shards_are_read_like_images(tmp_path: Path) -> None:
    shard(tmp_path / "in" / "a.tar", *(sample(row, patient=f"p{row // 2}", view="l") for row in range(5)))
    shard(tmp_path / "in" / "b.tar", *(sample(row, patient=f"p{row // 2}", view="r") for row in range(5, 8)))
    found = open_images(tmp_path / "in", groups="patient")
    assert found.shape == (8, 8, 1)
    assert np.array_equal(found.read(np.array([6, 0, 7])), IMAGES[[6, 0, 7]][..., None])
    assert found.labels.tolist() == [row % 2 for row in range(8)]
    assert [str(group) for group in found.groups] == [f"p{row // 2}" for row in range(8)]
    assert open_images(tmp_path / "in", labels="view").class_names == ("l", "r")
    alone = open_images(tmp_path / "in" / "a.tar", size=16)
    assert (len(alone.labels), alone.shape) == (5, (16, 16, 1))


def test_a_class_file_goes_first(tmp_path: Path) -> None:
    place = shard(tmp_path / "a.tar", *(sample(row) | {"cls": str(1 - row % 2).encode()} for row in range(4)))
    assert open_images(place).labels.tolist() == [1, 0, 1, 0]
    assert open_images(place, labels="label").labels.tolist() == [0, 1, 0, 1]


def test_an_export_can_be_read_back(tmp_path: Path) -> None:
    from veilset.release.pack import Pack
    from veilset.release.shards import write_shard

    labels = np.arange(8) % 2
    pack = Pack(images=IMAGES[..., None], labels=labels, soft_labels=None)
    write_shard(tmp_path / "0.tar", [pack], ("no", "yes"), first=0, form="webdataset")
    found = open_images(tmp_path / "0.tar", labels="class_name")
    assert found.class_names == ("no", "yes")
    assert np.array_equal(found.read(np.arange(8)), IMAGES[..., None])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"png": png(IMAGES[0])}, "has no class"),
        ({"png": png(IMAGES[0]), "json": b"{"}, "cannot be read"),
        ({"png": png(IMAGES[0]), "json": b"[1]"}, "does not hold a table"),
        ({"png": png(IMAGES[0]), "json": b'{"label": 1.5}'}, "a class number or a name"),
        ({"png": png(IMAGES[0]), "jpg": b"x", "cls": b"0"}, "2 images in one sample"),
        ({"png": b"no image", "cls": b"0"}, "cannot be read: 0000.png in a.tar"),
        ({"txt": b"x"}, "holds no images"),
    ],
)
def test_bad_samples_are_named(tmp_path: Path, content: dict[str, bytes], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_images(shard(tmp_path / "a.tar", content))


def test_what_is_no_tar_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    with pytest.raises(InputError, match="cannot be read as a tar file"):
        open_images(tmp_path / "a.tar")
    with pytest.raises(InputError, match="no 'patient' in its"):
        open_images(shard(tmp_path / "b.tar", sample(0), sample(1)), groups="patient")
