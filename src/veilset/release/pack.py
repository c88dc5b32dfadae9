"""data.npz: images and labels in a zip of plain arrays, without pickle and without compression.

Storing instead of deflating makes the bytes a function of the content alone (deflate differs between zlib builds), so
that equal content has an equal hash. It also makes a zip bomb impossible: no array is larger than the file.
"""

import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import VerificationError
from veilset.core.records import Images, Labels

SoftLabels = NDArray[np.float32]  # (N, K)

_EPOCH = (1980, 1, 1, 0, 0, 0)
_TYPES = {"images": "|u1", "labels": "<i8", "soft_labels": "<f4"}
# Zip and array headers, with room to spare.
_OVERHEAD = 1 << 16
_ROW_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The arrays of a release, read only."""

    images: Images  # (N, H, W, C)
    labels: Labels  # (N,)
    soft_labels: SoftLabels | None  # (N, K)


def write_pack(path: Path, pack: Pack) -> None:
    """Write the arrays; grey images lose their channel axis."""
    images = pack.images[..., 0] if pack.images.shape[-1] == 1 else pack.images
    arrays: dict[str, NDArray[Any]] = {"images": images, "labels": pack.labels}
    if pack.soft_labels is not None:
        arrays["soft_labels"] = pack.soft_labels
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as file:
                plain = np.ascontiguousarray(array, dtype=_TYPES[name])
                np.lib.format.write_array(file, plain, version=(1, 0), allow_pickle=False)


def read_pack(path: Path) -> Pack:
    """Read the arrays back; what is not exactly of this form raises `VerificationError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {entry.filename: _read_entry(archive, entry) for entry in _entries(archive)}
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise VerificationError(f"{path.name} cannot be read: {error}. It was cut short or altered.") from error
    images = arrays["images.npy"]
    if images.ndim == 3:
        images = images[..., np.newaxis]
    return Pack(images=images, labels=arrays["labels.npy"], soft_labels=arrays.get("soft_labels.npy"))


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    names = sorted(entry.filename for entry in entries)
    if names not in (["images.npy", "labels.npy"], ["images.npy", "labels.npy", "soft_labels.npy"]):
        raise ValueError(f"expected images, labels and at most soft_labels, found {names[:5]}")
    return entries


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
        raise ValueError(f"{entry.filename} is compressed or encrypted, which a release never is")
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{entry.filename} has an unknown version")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        expected = np.dtype(_TYPES[entry.filename.removesuffix(".npy")])
        if dtype != expected or fortran_order:
            raise ValueError(f"{entry.filename} is of type {dtype}, expected {expected}")
        content = file.read()
    # Checked before any array is made, so that a header cannot ask for more memory than the file has bytes.
    if any(size < 0 for size in shape) or math.prod(shape) * expected.itemsize != len(content):
        raise ValueError(f"{entry.filename} is not of the size that its header says")
    return np.frombuffer(content, dtype=expected).reshape(shape)


def size_limit(samples: int, shape: Sequence[int], classes: int) -> int:
    """The most bytes that a pack of `samples` images can have."""
    return samples * (math.prod(shape) + 8 + 4 * classes) + _OVERHEAD


def pack_problems(pack: Pack, shape: Sequence[int], classes: int) -> list[str]:
    """What is wrong with the arrays of a release whose images have `shape` (H, W, C) and `classes` classes."""
    images, labels, soft_labels = pack.images, pack.labels, pack.soft_labels
    problems = []
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != tuple(shape) or len(images) == 0:
        expected = " x ".join(map(str, shape))
        problems.append(f"Expected images uint8 (N x {expected}) with N > 0, got {images.dtype} {images.shape}.")
    if labels.dtype != np.int64 or labels.shape != images.shape[:1]:
        problems.append(f"Expected one int64 label for each image, got {labels.dtype} {labels.shape}.")
    elif len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        problems.append(f"Expected labels 0..{classes - 1}, got {labels.min()}..{labels.max()}.")
    if soft_labels is not None:
        if soft_labels.dtype != np.float32 or soft_labels.shape != (*images.shape[:1], classes):
            got = f"{soft_labels.dtype} {soft_labels.shape}"
            problems.append(f"Expected soft labels float32 (N x {classes}), got {got}.")
        elif not _are_probabilities(soft_labels):
            problems.append("Expected every row of soft labels to be at least 0 and to sum to 1.")
    return problems


def _are_probabilities(rows: SoftLabels) -> bool:
    sums = rows.sum(axis=1, dtype=np.float64)
    # NaN fails both comparisons.
    return bool((rows >= 0).all() and (np.abs(sums - 1) <= _ROW_SUM_TOLERANCE).all())
