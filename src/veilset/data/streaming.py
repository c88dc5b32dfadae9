"""`StreamedImages`: records whose pixels stay on disk. Only labels, groups and digests are held in memory.

Opening decodes every image once, in a few threads and with constant memory, so that a damaged file is found before
a budget is spent and not in the middle of a run. Each later read is checked against the digest of that first pass.
What a huge image was made small to is kept from then on: decoding it again and again would show in a run's time.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Groups, Images, Labels, Rows
from veilset.data.decoding import Form, UndecodableError, decode, decode_plain, in_form
from veilset.data.pixels import digest, source_digest
from veilset.data.selection import as_rows

_NAMED = 5  # how many bad files an error names
_CHUNK = 1024  # rows handed to the threads at once
_HUGE_PIXELS = 4 * 10**6  # decoded once, at opening
_KEPT_BYTES = 2**30  # of what they were made small to; beyond it they are decoded again


class EncodedFiles(Protocol):
    """Encoded images by row number; `fetch` may be called from several threads."""

    def name(self, row: int) -> str:
        """What to call this row in an error."""

    def fetch(self, row: int) -> bytes:
        """The encoded image. Raises OSError, or UndecodableError where there is none."""


class StreamedImages:
    """Labelled images that are decoded when read."""

    def __init__(
        self,
        files: EncodedFiles,
        labels: Labels,
        class_names: tuple[str, ...],
        groups: Groups | None,
        form: Form,
        progress: Progress = SILENT,
    ) -> None:
        self.origin: str | None = None
        self._files = files
        self._form = form
        self._labels = labels
        self._groups = groups
        self._class_names = class_names
        self._kept: dict[int, Images] = {}
        self._shape, self._digests, self._sources = _open(files, labels, form, progress, self._kept)
        for array in (self._labels, self._groups, self._digests, self._sources):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        height, width, channels = self._shape
        grouped = "" if self._groups is None else f", {len(np.unique(self._groups))} groups"
        classes = len(self._class_names)
        return f"StreamedImages({len(self)} images {height}x{width}x{channels}, {classes} classes{grouped})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self._shape

    @property
    def labels(self) -> Labels:
        """The class of each image, 0..K-1."""
        return self._labels

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""
        return self._groups

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self._class_names

    def digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each record's shape, pixels (as `read` gives them) and label."""
        return self._digests

    def source_digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each image as its file holds it: before any change of size or colours."""
        return self._sources

    def read(self, rows: Rows) -> Images:
        """Decode the images of these rows. A file that changed since opening is refused."""
        rows = as_rows(rows, len(self))
        images = np.empty((len(rows), *self._shape), np.uint8)
        for place in np.argsort(rows, kind="stable"):  # in file order, so that a parquet row group is read once
            row = int(rows[place])
            if row in self._kept:
                images[place] = self._kept[row]
                continue
            try:
                image = decode(self._files.fetch(row), self._form)
            except (OSError, UndecodableError) as error:
                raise InputError(f"{self._files.name(row)} could be read at opening but not now: {error}.") from error
            if digest(image, int(self._labels[row])) != self._digests[row].tobytes():
                raise InputError(f"{self._files.name(row)} changed since it was opened. Open the source again.")
            images[place] = image
        return images


@dataclass(frozen=True)
class _Finding:
    shape: tuple[int, int, int] | None
    digest: bytes
    source: bytes
    problem: str = ""
    kept: Images | None = None


def _open(
    files: EncodedFiles, labels: Labels, form: Form, progress: Progress, kept: dict[int, Images]
) -> tuple[tuple[int, int, int], NDArray[np.uint8], NDArray[np.uint8]]:
    """The shape and the digests of all images; what huge ones were made small to goes into `kept`."""
    digests, sources = np.empty((len(labels), 32), np.uint8), np.empty((len(labels), 32), np.uint8)
    shapes: dict[tuple[int, int, int], int] = {}  # shape -> first row that has it
    problems: list[str] = []
    count = 0
    for row, finding in enumerate(_findings(files, labels, form, progress)):
        if finding.shape is None:
            count += 1
            if len(problems) < _NAMED:
                problems.append(f"{files.name(row)} ({finding.problem})")
            continue
        digests[row] = np.frombuffer(finding.digest, np.uint8)
        sources[row] = np.frombuffer(finding.source, np.uint8)
        shapes.setdefault(finding.shape, row)
        if finding.kept is not None and len(kept) * finding.kept.nbytes < _KEPT_BYTES:
            kept[row] = finding.kept
    if count:
        more = ", ..." if count > len(problems) else ""
        raise InputError(
            f"{count} of {len(labels)} images cannot be read: {', '.join(problems)}{more}. Repair or remove them."
        )
    _refuse_mixed(files, shapes)
    return next(iter(shapes)), digests, sources


def _findings(files: EncodedFiles, labels: Labels, form: Form, progress: Progress) -> Iterator[_Finding]:
    def examine(row: int) -> _Finding:
        try:
            plain = decode_plain(files.fetch(row))
        except OSError as error:
            return _Finding(None, b"", b"", f"unreadable: {error.strerror or error}")
        except UndecodableError as error:
            return _Finding(None, b"", b"", str(error))
        image = in_form(plain, form)
        height, width, channels = image.shape
        is_huge = plain.shape[0] * plain.shape[1] > _HUGE_PIXELS and image.size < plain.size
        return _Finding(
            (height, width, channels),
            digest(image, int(labels[row])),
            source_digest(plain),
            kept=image if is_huge else None,
        )

    with progress.task("check images", len(labels)) as task, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(labels), _CHUNK):
            for finding in pool.map(examine, range(start, min(start + _CHUNK, len(labels)))):
                yield finding
                task.advance()


def _refuse_mixed(files: EncodedFiles, shapes: dict[tuple[int, int, int], int]) -> None:
    examples = ", ".join(f"{h}x{w}x{c} ({files.name(row)})" for (h, w, c), row in list(shapes.items())[:3])
    if len({shape[:2] for shape in shapes}) > 1:
        raise InputError(f"The images have {len(shapes)} different shapes: {examples}. Pass --size 32, for example.")
    if len(shapes) > 1:
        raise InputError(f"Some images are grey and some in colour: {examples}. Pass --channels 1 or 3.")
