"""`StreamedImages`: records whose pixels stay on disk. Only labels and groups are held in memory.

Opening decodes every image once, in a few threads and with constant memory, so that a damaged file is found before
a budget is spent and not in the middle of a run. Each later read is checked against the digest of that first pass.
What a huge image was made small to is kept from then on: decoding it again and again would show in a run's time.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Digests, Groups, Images, Labels, Rows
from veilset.core.sealed_rows import WIDTH, SealedRows
from veilset.data.classes import refuse_empty_classes
from veilset.data.decoding import Form, UndecodableError, decode_plain, in_form
from veilset.data.pixels import digest, source_digest
from veilset.data.selection import as_rows
from veilset.data.tally import Tally

_NAMED = 5  # how many bad files an error names
_CHUNK = 1024  # rows handed to the threads at once
_HUGE_PIXELS = 4 * 10**6  # decoded once, at opening
_NONE = bytes(WIDTH)  # in place of the digest of what cannot be read
_KEPT_BYTES = 2**30  # of what they were made small to; beyond it they are decoded again


@dataclass(frozen=True)
class Picture:
    """One image as its file holds it."""

    pixels: Images  # (H, W, C)
    raw: NDArray[Any] | None = None  # before any rule made 8 bits of it, where that is something else
    rule: str = ""  # how it came to 8 bits, where that needed a rule


class Pictures(Protocol):
    """Images by row number; `picture` may be called from several threads."""

    def name(self, row: int) -> str:
        """What to call this row's file in an error."""

    def picture(self, row: int) -> Picture:
        """The decoded image. Raises OSError, or UndecodableError with the reason."""


def picture_of(encoded: bytes) -> Picture:
    """A picture from the content of an image file."""
    return Picture(decode_plain(encoded))


class StreamedImages:
    """Labelled images that are decoded when read. `skip_bad` leaves out files that cannot be read."""

    def __init__(
        self,
        files: Pictures,
        labels: Labels,
        class_names: tuple[str, ...],
        groups: Groups | None,
        form: Form,
        progress: Progress = SILENT,
        *,
        tally: Tally | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.origin: str | None = None
        self.tally = tally or Tally(len(labels))
        self._files = files
        self._form = form
        self._class_names = class_names
        opened = _open(files, labels, form, progress, self.tally, skip_bad=skip_bad)
        self._rows = opened.rows  # of `files`, for each record; None where all can be read
        if opened.rows is not None:
            labels = labels[opened.rows]
            groups = None if groups is None else groups[opened.rows]
            refuse_empty_classes(labels, class_names)
        kinds = np.min_scalar_type(int(labels.min())), np.min_scalar_type(int(labels.max()))
        self._labels = labels.astype(np.result_type(*kinds))  # a byte each, of up to 256 classes
        self._groups = None if groups is None else groups.copy()
        self._shape, self._digests, self._sources = opened.shape, opened.digests, opened.sources
        self._kept = opened.kept
        if self._groups is not None:
            self._groups.flags.writeable = False

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
        """The class of each image, 0..K-1, or its findings, (N, F) of 0 and 1; a copy each time."""
        labels = self._labels.astype(np.int64)
        labels.flags.writeable = False
        return labels

    def labels_at(self, rows: Rows) -> Labels:
        """The labels of these rows."""
        return self._labels[rows].astype(np.int64)

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""
        return self._groups

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self._class_names

    def digests(self) -> Digests:
        """(N, 32) SHA-256 of each record's shape, pixels (as `read` gives them) and label."""
        return self.digests_at(np.arange(len(self)))

    def digests_at(self, rows: Rows) -> Digests:
        """The digests of these rows."""
        return self._digests.at(self._in_files(rows))

    def source_digests(self) -> Digests:
        """(N, 32) SHA-256 of each image as its file holds it: before any change of size or colours."""
        return self.source_digests_at(np.arange(len(self)))

    def source_digests_at(self, rows: Rows) -> Digests:
        """The source digests of these rows."""
        return self._sources.at(self._in_files(rows))

    def _in_files(self, rows: Rows) -> Rows:
        return rows if self._rows is None else self._rows[rows]

    def read(self, rows: Rows) -> Images:
        """Decode the images of these rows. A file that changed since opening is refused."""
        rows = as_rows(rows, len(self))
        images = np.empty((len(rows), *self._shape), np.uint8)
        order = np.argsort(rows, kind="stable")  # in file order, so that a parquet row group is read once
        places, digests = self._in_files(rows[order]).tolist(), self.digests_at(rows[order])
        for place, at, label, known in zip(order, places, self._labels[rows[order]], digests, strict=True):
            if at in self._kept:
                images[place] = self._kept[at]
                continue
            try:
                image = in_form(self._files.picture(at).pixels, self._form)
            except (OSError, UndecodableError) as error:
                raise InputError(f"{self._files.name(at)} could be read at opening but not now: {error}.") from error
            if digest(image, label) != known.tobytes():
                raise InputError(f"{self._files.name(at)} changed since it was opened. Open the source again.")
            images[place] = image
        return images


@dataclass(frozen=True)
class _Finding:
    shape: tuple[int, int, int] | None
    digest: bytes
    source: bytes
    problem: str = ""
    kept: Images | None = None
    found: tuple[int, int, int] = (0, 0, 0)  # the shape in the file
    rule: str = ""


@dataclass(frozen=True)
class _Opened:
    rows: Rows | None
    shape: tuple[int, int, int]
    digests: SealedRows  # of every row of the files, also of those that cannot be read
    sources: SealedRows
    kept: dict[int, Images]  # what huge images were made small to, by row of the files


def _open(files: Pictures, labels: Labels, form: Form, progress: Progress, tally: Tally, *, skip_bad: bool) -> _Opened:
    """The rows that can be read, with their shape and digests."""
    digests, sources = SealedRows(), SealedRows()
    is_good = np.zeros(len(labels), np.bool_)
    shapes: dict[tuple[int, int, int], int] = {}  # shape -> first row that has it
    kept: dict[int, Images] = {}
    problems: dict[str, str] = {}  # of each bad file
    for row, finding in enumerate(_findings(files, labels, form, progress)):
        digests.append(finding.digest)
        sources.append(finding.source)
        if finding.shape is None:
            problems.setdefault(files.name(row), finding.problem)
            continue
        is_good[row] = True
        shapes.setdefault(finding.shape, row)
        if finding.kept is not None and len(kept) * finding.kept.nbytes < _KEPT_BYTES:
            kept[row] = finding.kept
        tally.sizes[finding.found] += 1
        if finding.rule:
            tally.rules[finding.rule] += 1
    if problems:
        _refuse_bad(problems, len(labels), tally, skip_bad=skip_bad)
        for good in np.flatnonzero(is_good):  # other frames of a file with a bad one
            is_good[good] = files.name(int(good)) not in problems
    if not is_good.any():
        raise InputError(f"None of {len(labels)} images can be read.")
    _refuse_mixed(files, shapes)
    return _Opened(None if is_good.all() else np.flatnonzero(is_good), next(iter(shapes)), digests, sources, kept)


def _refuse_bad(problems: dict[str, str], images: int, tally: Tally, *, skip_bad: bool) -> None:
    named = ", ".join(f"{name} ({why})" for name, why in list(problems.items())[:_NAMED])
    more = ", ..." if len(problems) > _NAMED else ""
    if not skip_bad:
        raise InputError(
            f"{len(problems)} of {images} images cannot be read: {named}{more}. Repair or remove them, or leave them "
            "out with --skip-bad."
        )
    tally.ignore("that cannot be read (--skip-bad)", len(problems))
    tally.said.append(f"Left out as unreadable: {named}{more}.")


def _findings(files: Pictures, labels: Labels, form: Form, progress: Progress) -> Iterator[_Finding]:
    def examine(row: int) -> _Finding:
        try:
            picture = files.picture(row)
        except OSError as error:
            return _Finding(None, _NONE, _NONE, f"unreadable: {error.strerror or error}")
        except UndecodableError as error:
            return _Finding(None, _NONE, _NONE, str(error))
        plain = picture.pixels
        image = in_form(plain, form)
        height, width, channels = image.shape
        is_huge = plain.shape[0] * plain.shape[1] > _HUGE_PIXELS and image.size < plain.size
        return _Finding(
            (height, width, channels),
            digest(image, labels[row]),
            source_digest(plain if picture.raw is None else picture.raw),
            kept=image if is_huge else None,
            found=(plain.shape[0], plain.shape[1], plain.shape[2]),
            rule=picture.rule,
        )

    with progress.task("check images", len(labels)) as task, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(labels), _CHUNK):
            for finding in pool.map(examine, range(start, min(start + _CHUNK, len(labels)))):
                yield finding
                task.advance()


def _refuse_mixed(files: Pictures, shapes: dict[tuple[int, int, int], int]) -> None:
    examples = ", ".join(f"{h}x{w}x{c} ({files.name(row)})" for (h, w, c), row in list(shapes.items())[:3])
    if len({shape[:2] for shape in shapes}) > 1:
        raise InputError(f"The images have {len(shapes)} different shapes: {examples}. Pass --size 32, for example.")
    if len(shapes) > 1:
        raise InputError(f"Some images are grey and some in colour: {examples}. Pass --channels 1 or 3.")
