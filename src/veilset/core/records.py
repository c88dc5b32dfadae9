"""What the vault and the readers agree on: labelled images that can be read by row number."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # (N, H, W, C)
Labels = NDArray[np.int64]  # (N,) classes, or (N, F) zeros and ones: findings, several of which may be true
Groups = NDArray[np.int64] | NDArray[np.str_]  # (N,): to whom each image belongs, e.g. a patient number
Rows = NDArray[np.int64]  # (k,): row numbers
Digests = NDArray[np.uint8]  # (k, 32)

_AT_ONCE = 1 << 13


class Records(Protocol):
    """Labelled images, in memory or on disk. `read` may be slow, and each use of another field may copy it."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""

    @property
    def labels(self) -> Labels:
        """The class of each image, 0..K-1, or its findings, (N, F) of 0 and 1."""

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class or finding."""

    def read(self, rows: Rows) -> Images:
        """The images of these rows."""

    def digests(self) -> Digests:
        """(N, 32) SHA-256 of each record's own pixels and label: its stable id, whatever else the set holds."""

    # A reader also has `origin`, where it read from (text or None), and `source_digests()`, (N, 32) SHA-256 of each
    # image as the source holds it, whatever its size, colours and label are here. They find the data's account.
    # One for millions of records has `labels_at(rows)`, `digests_at(rows)` and `source_digests_at(rows)`, too: the same
    # for some rows, so that the whole need never be in memory. The functions below ask for it.


def labels_at(records: Records, rows: Rows) -> Labels:
    """The labels of these rows."""
    some: Callable[[Rows], Labels] | None = getattr(records, "labels_at", None)
    return records.labels[rows] if some is None else some(rows)


def digests_by_row(records: Records) -> Callable[[Rows], Digests]:
    """What gives the digests of some rows. Ask once for many rows: some records make all digests anew."""
    some: Callable[[Rows], Digests] | None = getattr(records, "digests_at", None)
    return records.digests().__getitem__ if some is None else some


def source_digests_by_row(records: Records) -> Callable[[Rows], Digests]:
    """The same, of each image before any change of size or colours; records of one's own have one view."""
    some: Callable[[Rows], Digests] | None = getattr(records, "source_digests_at", None)
    whole: Callable[[], Digests] | None = getattr(records, "source_digests", None)
    if some is None and whole is not None:
        return whole().__getitem__
    return digests_by_row(records) if some is None else some


def one_by_one(digests: Callable[[Rows], Digests], count: int) -> Iterator[bytes]:
    """The digests of rows 0..count-1, of which few are in memory at a time."""
    for start in range(0, count, _AT_ONCE):
        yield from map(bytes, digests(np.arange(start, min(start + _AT_ONCE, count))))
