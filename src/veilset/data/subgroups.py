"""Parts of a test set by a column that the custodian has: sex, age band, scanner. For `veilset evaluate --by`.

A column is read as a column of labels is, through the same door, so every source has it: an array of a pack, a column
of a parquet file or of a table of labels. Rows keep their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from veilset.core.errors import InputError
from veilset.core.records import Labels, Records
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.opening import open_images

_MOST = 50


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """The values of one column and, for each record, which of them it has."""

    column: str
    names: tuple[str, ...]
    members: Labels  # (N,)


def read_subgroups(source: str, columns: Sequence[str], tested: Records, **options: Any) -> tuple[Subgroups, ...]:
    """These columns of the source that `tested` was opened from with the same `options` of `open_images`."""
    if options.get("limit") is not None:
        raise InputError("--by needs all test images: with --limit a record is chosen by its label, too. Leave it out.")
    reading: Reading = options.get("reading") or PLAIN
    plain = replace(reading, findings=None, uncertain=None, findings_as="findings")
    found = []
    for column in columns:
        records = open_images(source, **{**options, "labels": column, "classes": None, "reading": plain})
        if records.labels.ndim != 1:
            raise InputError(f"Expected one value for each image in the column {column!r} of --by, found several.")
        if len(records.labels) != len(tested.labels):
            raise InputError(
                f"Column {column!r} has {len(records.labels)} values for {len(tested.labels)} test images: some were "
                "dropped. Decide with --uncertain zeros or ones."
            )
        if len(records.class_names) > _MOST:
            raise InputError(
                f"Column {column!r} has {len(records.class_names)} values, and scores of so few images say nothing. "
                f"Make bands of it, at most {_MOST}."
            )
        found.append(Subgroups(column=column, names=tuple(records.class_names), members=records.labels))
    return tuple(found)
