"""Which rows: row numbers that are checked, and `--limit`, the first N records after a seeded shuffle.

A limit is applied before any pixel is read. The records that stay are the private dataset from then on: what is
left out is not counted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Labels, Rows
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


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At most `count` records, all where it is None."""

    count: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(
                f"Expected a limit of at least 1 record, got {self.count}. Pass --limit 1000, for example."
            )

    def rows(self, labels: Labels, class_names: tuple[str, ...]) -> Rows:
        """The rows that stay, in the order of the source. Refuses a limit that leaves a class empty."""
        if self.count is None or self.count >= len(labels):
            return np.arange(len(labels))
        chosen = numpy_generator(self.seed, "limit").permutation(len(labels))[: self.count]
        refuse_empty_classes(labels[chosen], class_names)
        return np.sort(chosen)
