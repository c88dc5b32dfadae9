"""The K-th of N parts of a dataset, for a simulated site: each unit goes where its own hash says.

A unit that is added or removed changes the part that it is in, and no other. How many units a part holds is left to
chance, so a simulated site declares its share of the whole, which is public.
"""

import numpy as np

from veilset.core.errors import InputError
from veilset.core.records import (
    Digests,
    Groups,
    Images,
    Labels,
    Records,
    Rows,
    digests_by_row,
    labels_at,
    source_digests_by_row,
)
from veilset.data.selection import as_rows, key_of, part_of_each


class Part:
    """Some rows of records that may stay on disk. The class names stay, also those without a record."""

    def __init__(self, records: Records, rows: Rows) -> None:
        if len(rows) == 0:
            raise InputError("A part of the records is empty. Take fewer sites.")
        self._records, self._chosen = records, rows

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self._records.shape

    @property
    def labels(self) -> Labels:
        """The class of each image, 0..K-1."""
        return self._records.labels[self._chosen]

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""
        return None if self._records.groups is None else self._records.groups[self._chosen]

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self._records.class_names

    @property
    def origin(self) -> str | None:
        """Where the whole was read from, where that is known."""
        return getattr(self._records, "origin", None)

    def read(self, rows: Rows) -> Images:
        """The images of these rows."""
        return self._records.read(self._chosen[as_rows(rows, len(self._chosen))])

    def labels_at(self, rows: Rows) -> Labels:
        """The labels of these rows."""
        return labels_at(self._records, self._chosen[rows])

    def digests(self) -> Digests:
        """(N, 32) SHA-256 of each record's own pixels and label."""
        return digests_by_row(self._records)(self._chosen)

    def source_digests(self) -> Digests:
        """(N, 32) SHA-256 of each image as its source holds it, where the source says so."""
        return source_digests_by_row(self._records)(self._chosen)


def part_of(records: Records, number: int, count: int) -> Part:
    """The records whose unit (its group, where groups are known) hashes to part `number` of 1..`count`.

    Privacy: the key is public and fixed, and a unit's part depends on that unit alone, so parts compose in parallel.
    """
    own = part_of_each(records, count, key_of(0, "federation parts"))
    return Part(records, np.flatnonzero(own == number - 1))


def declared_units(units: int, number: int, count: int) -> int:
    """What part `number` of 1..`count` declares of a dataset that declares `units`: an even share."""
    return units // count + (number <= units % count)
