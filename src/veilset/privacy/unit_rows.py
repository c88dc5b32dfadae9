"""The rows of a vault by unit: what a session's mechanisms read, and the ids that decide where a unit belongs."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Images, Labels, Records, Rows, digests_by_row, labels_at, one_by_one

Units = NDArray[np.signedinteger[Any]]
"""(k,): numbers of units."""

# More images of one group are never read. An average hardly changes beyond them, and the time to read all would show.
MOST_IMAGES_PER_GROUP = 256


class UnitRows:
    """The rows of each unit: a record is its own unit; a group holds all images of one patient."""

    def __init__(self, records: Records, unit: str) -> None:
        self.records = records
        self.images = len(records.labels)
        self._grouped: _Grouped | None = None  # of records there may be millions: nothing is held for each
        if unit == "group":
            if records.groups is None:
                raise InputError(
                    "Expected groups for unit=group, found none. Pass --groups NAME, e.g. --groups patients."
                )
            names, inverse = np.unique(records.groups, return_inverse=True)
            self._grouped = _Grouped(names, *_own_order(records.digests(), inverse))

    @property
    def count(self) -> int:
        """The number of units."""
        return self.images if self._grouped is None else len(self._grouped.names)

    @property
    def units(self) -> Units:
        """The numbers of all units, in four bytes each where these hold them."""
        return np.arange(self.count, dtype=np.int32 if self.count < 2**31 else np.int64)

    def sizes(self, units: Units) -> NDArray[np.int64]:
        """How many images each of these units has."""
        if self._grouped is None:
            return np.ones(len(units), np.int64)
        return self._grouped.starts[units + 1] - self._grouped.starts[units]

    def row_of_each(self, units: Units, places: NDArray[np.int64]) -> Rows:
        """One row of each of these units: that in so many places after its first."""
        if self._grouped is None:
            return units.astype(np.int64)
        rows: Rows = self._grouped.members[self._grouped.starts[units] + places]
        return rows

    def of(self, unit: int) -> Rows:
        """The row numbers of one unit."""
        if self._grouped is None:
            return np.array([unit], np.int64)
        return self._grouped.members[self._grouped.starts[unit] : self._grouped.starts[unit + 1]]

    def of_all(self, units: Units) -> Rows:
        """The row numbers of these units, one unit after the other."""
        if self._grouped is None:
            return units.astype(np.int64)
        return np.concatenate([np.zeros(0, dtype=np.int64), *(self.of(unit) for unit in units)])

    def labels(self, rows: Rows) -> Labels:
        """The labels of these rows."""
        return labels_at(self.records, rows)

    def read(self, rows: Rows) -> tuple[Images, Labels]:
        """Images and labels of these rows."""
        return self.records.read(rows), self.labels(rows)

    def read_units(self, units: Units) -> tuple[Images, Labels]:
        """Images and labels of these units, one unit after the other."""
        return self.read(self.of_all(units))

    def order(self) -> bytes:
        """A hash of all rows and units in their order: who shares units out by position must agree on it."""
        hashed = hashlib.sha256()
        for digest in one_by_one(digests_by_row(self.records), self.images):
            hashed.update(digest)
        for numbers in () if self._grouped is None else (self._grouped.members, self._grouped.starts):
            hashed.update(np.ascontiguousarray(numbers, "<i8").data)
        return hashed.digest()

    def own_id(self, unit: int) -> bytes:
        """The stable id of one unit, as in `own_ids`."""
        if self._grouped is None:
            return digests_by_row(self.records)(np.array([unit])).tobytes()
        return str(self._grouped.names[unit]).encode()

    def own_ids(self) -> Iterator[bytes]:
        """A stable id for each unit that depends on nothing but that unit.

        As long as the digests, so that only equal records have equal ids, even where somebody chose the images.
        """
        if self._grouped is None:
            return one_by_one(digests_by_row(self.records), self.images)
        return (str(name).encode() for name in self._grouped.names)

    def in_own_order(self, parts: Iterable[Units]) -> Iterator[Units]:
        """The units of each part in the order of their own ids."""
        if self._grouped is None:
            digests = digests_by_row(self.records)
            yield from (part[np.argsort(digests(part).view("S32")[:, 0], kind="stable")] for part in parts)
            return
        names = self._grouped.names
        for part in parts:
            yield part[sorted(range(len(part)), key=[str(name).encode() for name in names[part]].__getitem__)]

    def contents(self) -> Iterator[bytes]:
        """Of each unit all that it is: its id and the digests of its images."""
        if self._grouped is None:
            yield from (digest + digest for digest in self.own_ids())
            return
        digests = digests_by_row(self.records)
        for unit in range(self.count):
            yield self.own_id(unit) + b"".join(sorted(map(bytes, digests(self.of(unit)))))


@dataclass(frozen=True)
class _Grouped:
    names: NDArray[Any]
    members: NDArray[np.int64]
    starts: NDArray[np.int64]


def _own_order(digests: NDArray[np.uint8], owners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows by group, and where each group starts; within it in the order of their own digests, the first so many."""
    words = np.ascontiguousarray(digests).view(">u8")
    order = np.lexsort((*words.T[::-1], owners))
    sizes = np.bincount(owners)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    starts = np.concatenate([[0], np.cumsum(np.minimum(sizes, MOST_IMAGES_PER_GROUP))])
    return order[place < MOST_IMAGES_PER_GROUP], starts
