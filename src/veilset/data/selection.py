"""Which rows: row numbers that are checked, `--limit`, and parts of private data, each chosen by a unit's own hash.

A unit stays, or belongs to a part, by a keyed hash of its own name alone: that of its group where groups are known,
else that of the record. So a unit that is added or removed moves no other, as it would if rows were shuffled, sliced
or counted. The key comes from a public seed. Everything that splits private records uses this module:

    key = key_of(seed, "federation parts")  # one purpose, one key: two choices with one key are not independent
    mine = records.subset(np.flatnonzero(part_of_each(records, sites, key) == number))  # number 0..sites-1
    validation = records.subset(kept(records, 1 / 6, key_of(seed, "validation")))

Privacy: a unit's place depends on that unit, on the key and on the share, which must be public. How many units a part
holds is left to chance: about its share of all.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.core.records import Groups, Labels, Records, Rows, digests_by_row, one_by_one
from veilset.data.classes import refuse_empty_classes


def as_rows(rows: Any, count: int) -> Rows:
    """Row numbers of a set with `count` records. A mask or a row outside is a mistake in the calling code."""
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"Expected row numbers in one dimension, got {array.dtype} of shape {array.shape}.")
    if int(array.min()) < 0 or int(array.max()) >= count:
        raise IndexError(f"Expected rows 0..{count - 1}, got {int(array.min())}..{int(array.max())}.")
    return array.astype(np.int64, copy=False)


def key_of(seed: int, purpose: str) -> bytes:
    """The public key of one choice; choices for different purposes are independent."""
    return derive_seed(seed, f"selection/{purpose}").to_bytes(8, "big")


def part_of_each(records: Records, parts: int, key: bytes) -> NDArray[np.int64]:
    """(N,) the part 0..parts-1 of each record; a group stays whole. Parts are about equal in units, not exactly."""
    if parts < 1:
        raise InputError(f"Expected at least 1 part, got {parts}.")
    hashes = _hashes(_names_of(records), key)
    return (hashes % np.uint64(parts)).astype(np.int64)


def kept(records: Records, share: float, key: bytes) -> Rows:
    """The rows of about `share` of all units, in the order of the records; a group stays whole.

    The rest, for training beside a validation part, is `np.setdiff1d(np.arange(len(records)), kept(...))`.
    """
    return _below(_names_of(records), share, key)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """About `count` units (groups where they are known, else records), all where it is None."""

    count: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(
                f"Expected a limit of at least 1 record, got {self.count}. Pass --limit 1000, for example."
            )

    def rows(
        self,
        labels: Labels,
        class_names: tuple[str, ...],
        groups: Groups | None,
        own_names: Callable[[], Iterable[bytes]],
    ) -> Rows:
        """The rows that stay, in the order of the source. Refuses a limit that leaves a class empty.

        Args:
            labels: of all records.
            class_names: of all classes.
            groups: of all records, where they are known: whole groups stay or go.
            own_names: a name for each record that no other record has a part in; asked only where it is needed.

        Privacy: a unit's chance is count / n, and n, the number of units of the source, is declared public.
        """
        units = len(labels) if groups is None else len(np.unique(groups))
        if self.count is None or self.count >= units:
            return np.arange(len(labels))
        rows = _below(_names(groups, own_names), self.count / units, key_of(self.seed, "limit"))
        refuse_empty_classes(labels[rows], class_names)
        return rows


def _names_of(records: Records) -> Iterable[bytes]:
    return _names(records.groups, lambda: one_by_one(digests_by_row(records), len(records.labels)))


def _names(groups: Groups | None, own_names: Callable[[], Iterable[bytes]]) -> Iterable[bytes]:
    return own_names() if groups is None else (str(group).encode() for group in groups)


def _hashes(names: Iterable[bytes], key: bytes) -> NDArray[np.uint64]:
    hashes = (hashlib.blake2b(name, key=key, digest_size=8).digest() for name in names)
    return np.fromiter((int.from_bytes(own, "big") for own in hashes), np.uint64)


def _below(names: Iterable[bytes], share: float, key: bytes) -> Rows:
    if not 0 <= share <= 1:
        raise InputError(f"Expected a share from 0 to 1, got {share}.")
    places = (_hashes(names, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # uniform in [0, 1)
    return np.flatnonzero(places < share)
