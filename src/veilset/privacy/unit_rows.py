"""The rows of a vault by unit, and which of them a mechanism reads: all, a Poisson sample, one shard of a partition.

The sampler that runs here is the one that the event claims: every unit has its own coin (privacy/noise.py), and a
unit's shard is a keyed hash of its own id, so that adding or removing one unit moves no other.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Images, Labels, Records, Rows, digests_by_row, labels_at, one_by_one

if TYPE_CHECKING:
    from veilset.privacy.noise import NoiseSource, Owners

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

    def in_batches(self, units: Units, batch: int) -> Iterator[tuple[NDArray[np.int64], Images, Labels]]:
        """Whole units, as many as `batch` images hold: the place of each image's unit among them, images, labels."""
        start = 0
        while start < len(units):
            near = units[start : start + batch]  # no more can fit: a unit has an image at least
            sizes = self._sizes(near)
            count = max(1, int(np.searchsorted(np.cumsum(sizes), batch, side="right")))
            yield np.repeat(np.arange(count), sizes[:count]), *self.read(self.of_all(near[:count]))
            start += count

    def owners_of(self, units: Units) -> "Owners":
        """The own ids of these units, for a source that ties its draws to them."""
        return lambda: [self.own_id(unit) for unit in units]

    def poisson_sample(self, units: Units, sampling_rate: float, noise: "NoiseSource") -> Units:
        """Each of `units` independently with probability `sampling_rate`."""
        if sampling_rate >= 1.0:
            return units
        return units[noise.coins(len(units), sampling_rate, self.owners_of(units))]

    def poisson_rows(self, units: Units, sampling_rate: float, noise: "NoiseSource") -> tuple[Units, Rows]:
        """A Poisson sample of `units`, and one uniformly drawn row of each sampled unit."""
        sampled = self.poisson_sample(units, sampling_rate, noise)
        places = noise.choices(self._sizes(sampled), self.owners_of(sampled))  # of a record always 0
        if self._grouped is None:
            return sampled, sampled.astype(np.int64)
        return sampled, self._grouped.members[self._grouped.starts[sampled] + places]

    def shard_of_each(self, shards: int, key: bytes) -> NDArray[np.int64]:
        """The shard of every unit, from a keyed hash of its own id.

        Privacy: depends on that unit alone, so disjoint shards compose in parallel under add/remove-one. The key is
        public randomness, drawn before any data is read.
        """
        shard = np.empty(self.count, np.int64)
        for unit, own_id in enumerate(self.own_ids()):  # one after the other: there may be millions
            shard[unit] = int.from_bytes(hashlib.blake2b(own_id, key=key, digest_size=8).digest(), "big") % shards
        return shard

    def of_shards(self, shards: int, key: bytes) -> list[Rows]:
        """The rows of every shard, in the order of their units' own ids.

        Privacy: as `shard_of_each`; the order within a shard depends on what that shard holds and on nothing else.
        """
        owner = self.shard_of_each(shards, key)
        parts = (np.flatnonzero(owner == shard) for shard in range(shards))
        return [self.of_all(part) for part in self._in_own_order(parts)]

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

    def contents(self) -> Iterator[bytes]:
        """Of each unit all that it is: its id and the digests of its images."""
        if self._grouped is None:
            yield from (digest + digest for digest in self.own_ids())
            return
        digests = digests_by_row(self.records)
        for unit in range(self.count):
            yield self.own_id(unit) + b"".join(sorted(map(bytes, digests(self.of(unit)))))

    def _sizes(self, units: Units) -> NDArray[np.int64]:
        """How many images each of these units has."""
        if self._grouped is None:
            return np.ones(len(units), np.int64)
        return self._grouped.starts[units + 1] - self._grouped.starts[units]

    def _in_own_order(self, parts: Iterable[Units]) -> Iterator[Units]:
        """The units of each part in the order of their own ids."""
        if self._grouped is None:
            digests = digests_by_row(self.records)
            yield from (part[np.argsort(digests(part).view("S32")[:, 0], kind="stable")] for part in parts)
            return
        names = self._grouped.names
        for part in parts:
            yield part[sorted(range(len(part)), key=[str(name).encode() for name in names[part]].__getitem__)]


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
