"""Folders of IDX files as MNIST and its relatives are published, gzipped or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.data.classes import index_labels
from veilset.data.guards import LARGEST_BYTES, refuse_bomb
from veilset.data.images import ImageSet

_STEMS = {"train": "train", "test": "t10k"}
_KINDS = {"images": 3, "labels": 1}  # number of dimensions
_UNSIGNED_BYTE = 0x08


def idx_splits(folder: Path) -> list[str]:
    """The splits whose image file is in this folder."""
    return [split for split in _STEMS if _find(folder, split, "images") is not None]


def read_idx(
    folder: Path, split: str | None, *, classes: tuple[str, ...] | None = None, largest_bytes: int = LARGEST_BYTES
) -> ImageSet:
    """The images and labels of one split."""
    splits = idx_splits(folder)
    if split not in splits:
        wanted = "" if split is None else f" {split!r}"
        raise InputError(
            f"Expected a split{wanted} of {folder} among {', '.join(splits)}. Pass {folder}:{splits[0]}, for example."
        )
    arrays = {}
    for kind, dimensions in _KINDS.items():
        path = _find(folder, split, kind)
        if path is None:
            raise InputError(f"{folder} has images of {split} but no {_names(split, kind)[0]}. Put it beside them.")
        arrays[kind] = _read(path, dimensions, largest_bytes)
    if len(arrays["images"]) != len(arrays["labels"]):
        raise InputError(
            f"{folder} has {len(arrays['images'])} images and {len(arrays['labels'])} labels of {split}. "
            "They belong to different sets; download both again."
        )
    labels, class_names = index_labels(arrays["labels"], classes)
    return ImageSet(arrays["images"], labels, class_names)


def _names(split: str, kind: str) -> list[str]:
    stem, dimensions = f"{_STEMS[split]}-{kind}", _KINDS[kind]
    plain = [f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte"]
    return [name + ending for name in plain for ending in ("", ".gz")]


def _find(folder: Path, split: str, kind: str) -> Path | None:
    return next((folder / name for name in _names(split, kind) if (folder / name).is_file()), None)


def _read(path: Path, dimensions: int, largest_bytes: int) -> NDArray[np.uint8]:
    opened = gzip.open if path.suffix == ".gz" else open
    header_size = 4 + 4 * dimensions
    try:
        with opened(path, "rb") as file:
            header = file.read(header_size)
            if len(header) < header_size or header[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
                raise InputError(
                    f"{path} is not an IDX file of unsigned bytes in {dimensions} dimensions "
                    f"(its first bytes are {header[:4].hex() or 'missing'}). Download it again."
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            promised = int(np.prod(shape, dtype=object))
            refuse_bomb(str(path), promised, path.stat().st_size, largest_bytes)
            content = file.read(promised + 1)  # one more byte shows a file that is longer than it says
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is damaged ({error}). Download it again.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    if len(content) != promised:
        held = "more" if len(content) > promised else f"{len(content):,}"
        raise InputError(f"{path} promises {promised:,} values and holds {held}. Download it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)
