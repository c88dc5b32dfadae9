"""data.npz: images and labels in a zip of plain arrays, without pickle and without compression.

Storing instead of deflating makes the bytes a function of the content alone (deflate differs between zlib builds), so
that equal content has an equal hash. It also makes a zip bomb impossible: no array is larger than the file.
"""

import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import VerificationError
from veilset.core.records import Images, Labels

SoftLabels = NDArray[np.float32]  # (N, K)

_EPOCH = (1980, 1, 1, 0, 0, 0)
_TYPES = {"images": "|u1", "labels": "<i8", "soft_labels": "<f4"}
_FINDINGS = np.dtype("|u1")  # of labels that are findings
# Zip and array headers, with room to spare.
_OVERHEAD = 1 << 16
_ROW_SUM_TOLERANCE = 1e-3
_AT_ONCE = 1 << 24
# The record at the end of a zip, and before it the place of the one that larger zips need.
_END_RECORD = struct.Struct("<4sHHHHIIH")
_ENDING = _END_RECORD.size + 20


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The arrays of a release, read only."""

    images: Images  # (N, H, W, C)
    labels: Labels  # (N,), or findings (N, K) of zeros and ones
    soft_labels: SoftLabels | None  # (N, K)

    def part(self, start: int, stop: int) -> "Pack":
        """The rows from `start` to `stop`."""
        soft = None if self.soft_labels is None else self.soft_labels[start:stop]
        return Pack(images=self.images[start:stop], labels=self.labels[start:stop], soft_labels=soft)


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
                kind = _FINDINGS if name == "labels" and array.ndim == 2 else _TYPES[name]
                plain = np.ascontiguousarray(array, dtype=kind)
                np.lib.format.write_array(file, plain, version=(1, 0), allow_pickle=False)


def read_pack(path: Path) -> Pack:
    """Read the arrays back; what is not exactly of this form raises `VerificationError`."""
    with _opened(path) as archive:
        arrays = {entry.filename: _read_entry(archive, entry) for entry in _entries(archive)}
    images = arrays["images.npy"]
    if images.ndim == 3:
        images = images[..., np.newaxis]
    labels = arrays["labels.npy"]
    labels = labels.astype(np.int64) if labels.ndim == 2 else labels
    return Pack(images=images, labels=labels, soft_labels=arrays.get("soft_labels.npy"))


def stored_pack_problems(
    path: Path, shape: Sequence[int], classes: int, samples: int, *, findings: bool = False
) -> list[str]:
    """As `pack_problems`, in little memory however large the file is."""
    height, width, channels = shape
    forms: dict[str, list[tuple[int, ...]]] = {
        # Grey images may do without their channel.
        "images.npy": [(samples, *shape), (samples, height, width)][: 2 if channels == 1 else 1],
        "labels.npy": [(samples, classes) if findings else (samples,)],
        "soft_labels.npy": [(samples, classes)],
    }
    problems = []
    with _opened(path) as archive:
        for entry in _entries(archive):
            with archive.open(entry) as file:
                found, dtype = _read_header(entry, file)
                if found not in forms[entry.filename]:
                    problems.append(
                        f"Expected {samples} images of {height} x {width} x {channels} in {classes} classes as in the "
                        f"certificate, but {entry.filename} has the shape {found}."
                    )
                    continue
                row = math.prod(found[1:]) * dtype.itemsize
                fits, rows = (_OF_FINDINGS if findings else _CHECKS)[entry.filename], max(1, _AT_ONCE // row)
                for start in range(0, samples, rows):
                    values = np.frombuffer(file.read(min(rows, samples - start) * row), dtype=dtype)
                    if len(values) * dtype.itemsize != min(rows, samples - start) * row or not fits(values, classes):
                        problems.append(
                            f"{entry.filename} holds what no release does: cut short, or not {classes} classes."
                        )
                        break
    return problems


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        _require_small_directory(path)
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise VerificationError(f"{path.name} cannot be read: {error}. It was cut short or altered.") from error


def _require_small_directory(path: Path) -> None:
    """Refuse a zip whose list of entries is long: opening it would read all of that list."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _ENDING))
        ending = file.read()
    last = ending[-_END_RECORD.size :]
    if len(last) < _END_RECORD.size or ending[:4] == b"PK\x06\x07":
        raise ValueError("its end is not that of a small zip")
    magic, _, _, _, entries, size, _, comment = _END_RECORD.unpack(last)
    if magic != b"PK\x05\x06" or entries > len(_TYPES) or size > _OVERHEAD or comment:
        raise ValueError("its end is not that of a small zip")


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    names = sorted(entry.filename for entry in entries)
    if names not in (["images.npy", "labels.npy"], ["images.npy", "labels.npy", "soft_labels.npy"]):
        raise ValueError(f"expected images, labels and at most soft_labels, found {names[:5]}")
    return entries


def _read_header(entry: zipfile.ZipInfo, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array; the rest of the entry is exactly its content, so no header can ask for more."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size or entry.flag_bits & 1:
        raise ValueError(f"{entry.filename} is compressed or encrypted, which a release never is")
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{entry.filename} has an unknown version")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    expected = np.dtype(_TYPES[entry.filename.removesuffix(".npy")])
    if entry.filename == "labels.npy" and len(shape) == 2:
        expected = _FINDINGS
    if dtype != expected or fortran_order:
        raise ValueError(f"{entry.filename} is of type {dtype}, expected {expected}")
    if any(size < 0 for size in shape) or math.prod(shape) * expected.itemsize != entry.file_size - file.tell():
        raise ValueError(f"{entry.filename} is not of the size that its header says")
    return shape, expected


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        shape, dtype = _read_header(entry, file)
        content = file.read()
    # The file may still be shorter than the zip says.
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry.filename} is not of the size that its header says")
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def size_limit(samples: int, shape: Sequence[int], classes: int) -> int:
    """The most bytes that a pack of `samples` images can have; a finding takes a byte."""
    return samples * (math.prod(shape) + max(8, classes) + 4 * classes) + _OVERHEAD


def pack_problems(pack: Pack, shape: Sequence[int], classes: int, *, findings: bool = False) -> list[str]:
    """What is wrong with the arrays of a release whose images have `shape` (H, W, C) and `classes` classes.

    With `findings`, labels are zeros and ones (N, classes), and soft labels a probability for each finding.
    """
    images, labels, soft_labels = pack.images, pack.labels, pack.soft_labels
    problems = []
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != tuple(shape) or len(images) == 0:
        expected = " x ".join(map(str, shape))
        problems.append(f"Expected images uint8 (N x {expected}) with N > 0, got {images.dtype} {images.shape}.")
    expected_shape = (*images.shape[:1], classes) if findings else images.shape[:1]
    if labels.dtype != np.int64 or labels.shape != expected_shape:
        what = f"{classes} findings" if findings else "one int64 label"
        problems.append(f"Expected {what} for each image, got {labels.dtype} {labels.shape}.")
    elif not _are_labels(labels, 2 if findings else classes):
        problems.append(f"Expected labels 0..{1 if findings else classes - 1}, got {labels.min()}..{labels.max()}.")
    if soft_labels is not None:
        if soft_labels.dtype != np.float32 or soft_labels.shape != (*images.shape[:1], classes):
            got = f"{soft_labels.dtype} {soft_labels.shape}"
            problems.append(f"Expected soft labels float32 (N x {classes}), got {got}.")
        elif findings and not _are_shares(soft_labels, classes):
            problems.append("Expected every soft label of a finding to be from 0 to 1.")
        elif not findings and not _are_probabilities(soft_labels, classes):
            problems.append("Expected every row of soft labels to be at least 0 and to sum to 1.")
    return problems


def _are_pixels(values: NDArray[Any], classes: int) -> bool:  # noqa: ARG001 (any byte is one)
    return True


def _are_labels(values: NDArray[Any], classes: int) -> bool:
    return len(values) == 0 or bool(0 <= values.min() <= values.max() < classes)


def _are_probabilities(values: NDArray[Any], classes: int) -> bool:
    rows = values.reshape(-1, classes)
    sums = rows.sum(axis=1, dtype=np.float64)
    # NaN fails both comparisons.
    return bool((rows >= 0).all() and (np.abs(sums - 1) <= _ROW_SUM_TOLERANCE).all())


def _are_zeros_and_ones(values: NDArray[Any], classes: int) -> bool:  # noqa: ARG001
    return _are_labels(values, 2)


def _are_shares(values: NDArray[Any], classes: int) -> bool:  # noqa: ARG001
    return bool(((values >= 0) & (values <= 1)).all())  # NaN fails both


_EXPECTED = {
    "images.npy": "whole images",
    "labels.npy": "a class of the certificate for each image",
    "soft_labels.npy": "rows that are at least 0 and sum to 1",
}
_CHECKS: dict[str, Callable[[NDArray[Any], int], bool]] = {
    "images.npy": _are_pixels,
    "labels.npy": _are_labels,
    "soft_labels.npy": _are_probabilities,
}
_OF_FINDINGS = _CHECKS | {"labels.npy": _are_zeros_and_ones, "soft_labels.npy": _are_shares}
