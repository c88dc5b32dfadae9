"""Several findings per image: from columns of 0, 1 and -1 to a 0/1 matrix with a name for each column.

What is uncertain (-1, or nothing) needs a rule: `zeros` and `ones` fill it in, `drop` leaves the record out. Findings
may also be read as one class per image: each combination that was declared is a class then.

Privacy: what becomes of a record depends on its own line and on public rules. Names are declared public.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Labels, Rows
from veilset.core.registry import unknown_name
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.classes import index_labels, refuse_empty_classes

UNCERTAIN = -1
NONE, OTHER = "none", "other"
_JOIN = "+"
_MOST = 256  # findings
_MOST_COMBINED = 6  # findings whose combinations are all declared where nobody names any
_FILLED = {"zeros": 0, "ones": 1}


@dataclass(frozen=True)
class Labelled:
    """Labels of the records that stay: classes (n,), or findings (n, F); and which rows of the source they are."""

    labels: Labels
    names: tuple[str, ...]
    rows: Rows


def labelled(
    values: NDArray[Any],
    classes: tuple[str, ...] | None,
    names: Sequence[str] | None = None,
    reading: Reading = PLAIN,
) -> Labelled:
    """Labels as a source gives them, (N,) or (N, columns), as classes or findings.

    Args:
        values: one class for each record, or a column of 0, 1 and -1 for each finding.
        classes: the user's `--classes`: of classes as in `index_labels`; of findings the names of all columns or, where
            they are read as classes, the combinations to declare.
        names: what the source calls its classes or its columns.
        reading: which findings, and the rules for them.
    """
    if values.ndim != 2:
        _refuse_rules(reading)
        indices, class_names = index_labels(values, classes, names)
        return Labelled(indices, class_names, np.arange(len(indices)))
    combined = reading.findings_as == "classes"
    matrix, found = _chosen(values, _column_names(values, None if combined else classes, names), reading)
    matrix, rows = _decided(_checked(matrix, found), found, reading)
    if combined:
        labels, found = _combinations(matrix, found, classes)
        refuse_empty_classes(labels, found)
        return Labelled(labels, found, rows)
    refuse_empty_classes(matrix, found)
    return Labelled(matrix, found, rows)


def value_of(text: str) -> int | None:
    """What a cell of a table says: 0, 1, or -1 where it is uncertain or empty; None where it says something else."""
    try:
        number = float(text or UNCERTAIN)
    except ValueError:
        return None
    return int(number) if number in (0.0, 1.0, UNCERTAIN) else None


def _column_names(
    values: NDArray[Any], classes: tuple[str, ...] | None, names: Sequence[str] | None
) -> tuple[str, ...]:
    count = values.shape[1]
    given = classes if classes is not None else names
    if given is None:
        return tuple(str(number) for number in range(count))
    if len(given) != count or len(set(given)) < count:
        raise InputError(f"Expected {count} different names, one for each column of findings, got {len(given)}.")
    return tuple(given)


def _chosen(values: NDArray[Any], names: tuple[str, ...], reading: Reading) -> tuple[NDArray[Any], tuple[str, ...]]:
    wanted = names if reading.findings is None else reading.findings
    for name in wanted:
        if name not in names:
            raise unknown_name("finding", name, list(names))
    if len(wanted) > _MOST:
        raise InputError(f"Expected at most {_MOST} findings, got {len(wanted)}. Choose some with --findings A,B,C.")
    return values[:, [names.index(name) for name in wanted]], wanted


def _checked(matrix: NDArray[Any], names: tuple[str, ...]) -> Labels:
    if len(matrix) == 0:
        raise InputError("The source holds no records. Pass one with at least one image for each finding.")
    if matrix.dtype.kind not in "iubf":
        raise InputError(f"Expected findings as 0 and 1 (-1 where uncertain), got dtype {matrix.dtype}.")
    allowed = np.isin(matrix, (0, 1, UNCERTAIN))
    if not allowed.all():
        row, column = (int(place) for place in np.argwhere(~allowed)[0])
        raise InputError(
            f"Expected 0 or 1 (-1 where uncertain) for the finding {names[column]!r}, got {matrix[row, column]} in "
            f"record {row}. Correct it, or choose other columns with --findings A,B,C."
        )
    return matrix.astype(np.int64)


def _decided(matrix: Labels, names: tuple[str, ...], reading: Reading) -> tuple[Labels, Rows]:
    """The matrix without uncertain entries, and the rows that stay."""
    doubtful = matrix == UNCERTAIN
    rows = np.arange(len(matrix))
    if not doubtful.any():
        return matrix, rows
    if reading.uncertain is None:
        name = names[int(doubtful.any(axis=0).argmax())]
        raise InputError(
            f"{int(doubtful.any(axis=1).sum())} records are uncertain (-1 or empty), for example in {name!r}. Decide "
            "with --uncertain zeros, ones or drop."
        )
    if reading.uncertain == "drop":
        rows = np.flatnonzero(~doubtful.any(axis=1))
        if len(rows) == 0:
            raise InputError("Every record has an uncertain finding, so --uncertain drop leaves none. Use zeros.")
        return matrix[rows], rows
    return np.where(doubtful, _FILLED[reading.uncertain], matrix), rows


def _combinations(
    matrix: Labels, names: tuple[str, ...], classes: tuple[str, ...] | None
) -> tuple[Labels, tuple[str, ...]]:
    """One class for each declared combination, called A+B, or none; what is not declared is `other`, if that is."""
    if classes is None:
        if len(names) > _MOST_COMBINED:
            raise InputError(
                f"{len(names)} findings have {2 ** len(names)} combinations. Declare the ones to tell apart, for "
                f"example --classes {NONE},{names[0]},{names[0]}{_JOIN}{names[1]},{OTHER}."
            )
        sets = [_places(bits) for bits in product((0, 1), repeat=len(names))]
        classes = tuple(_called(found, names) for found in sets)
    else:
        sets = [_set_of(text, names) for text in classes if text != OTHER]
    number = {found: place for place, found in zip([k for k, t in enumerate(classes) if t != OTHER], sets, strict=True)}
    if len(number) < len(sets) or len(set(classes)) < len(classes):
        raise InputError(f"Expected different combinations in --classes, got {','.join(classes)}.")
    other = classes.index(OTHER) if OTHER in classes else None
    labels = np.empty(len(matrix), np.int64)
    for row, bits in enumerate(matrix):
        place = number.get(_places(bits), other)
        if place is None:
            raise InputError(
                f"Records have combinations of findings that --classes does not name. Add {OTHER} to it, which takes "
                "all the rest."
            )
        labels[row] = place
    return labels, classes


def _places(bits: Sequence[int] | NDArray[np.int64]) -> frozenset[int]:
    return frozenset(place for place, bit in enumerate(bits) if bit)


def _called(found: frozenset[int], names: tuple[str, ...]) -> str:
    return _JOIN.join(names[place] for place in sorted(found)) or NONE


def _set_of(text: str, names: tuple[str, ...]) -> frozenset[int]:
    parts = [] if text == NONE else text.split(_JOIN)
    for part in parts:
        if part not in names:
            raise unknown_name("finding", part, [*names, NONE, OTHER])
    return frozenset(names.index(part) for part in parts)


def _refuse_rules(reading: Reading) -> None:
    """Rules for findings where the source has one class for each image."""
    for option, value in {
        "--findings": None if reading.findings is None else ",".join(reading.findings),
        "--uncertain": reading.uncertain,
        "--findings-as": None if reading.findings_as == "findings" else reading.findings_as,
    }.items():
        if value is not None:
            raise InputError(
                f"{option} {value} is for several findings per image, and this source has one class for each. Name an "
                "array or list of findings with --labels, or columns of 0 and 1 with --findings."
            )
