"""From labels as a source gives them to classes 0..K-1 with names.

Text labels are names and are sorted. Integer labels must be 0..K-1, unless the user names the values in order.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Labels

_SHOWN = 10  # how many values an error names


def index_labels(
    values: NDArray[np.generic], classes: tuple[str, ...] | None, names: Sequence[str] | None = None
) -> tuple[Labels, tuple[str, ...]]:
    """Labels 0..K-1 and K names.

    `classes` is what the user asked for: the label values in order or, for labels that are 0..K-1 already, their
    names. `names` is what the source says of integer labels; the user's word goes first.
    """
    if values.ndim != 1:
        raise InputError(f"Expected one label for each image, got an array of shape {values.shape}.")
    if len(values) == 0:
        raise InputError("The source holds no records. Pass one with at least one image for each class.")
    is_text = values.dtype.kind == "U"
    if not is_text and values.dtype.kind not in "iu":
        raise InputError(f"Expected integer or text labels, got dtype {values.dtype}.")
    found, inverse = np.unique(values, return_inverse=True)
    present = [str(value) for value in found]
    if classes is not None:
        indices, chosen = _by_user(present, _without_repeats(classes), is_text)
    elif is_text:
        indices, chosen = list(range(len(present))), tuple(present)
    else:
        indices, chosen = _by_value(found, tuple(names) if names is not None else None)
    refuse_empty_classes(np.array(indices), chosen)
    return np.array(indices, np.int64)[inverse], chosen


def refuse_empty_classes(labels: NDArray[np.integer], class_names: tuple[str, ...]) -> None:
    """Refuse a set in which a class, or a finding (of a 0/1 matrix), has no record, and name it."""
    if labels.ndim == 2:
        _refuse_constant_findings(labels, class_names)
        return
    counts = np.bincount(labels, minlength=len(class_names))
    empty = [name for name, count in zip(class_names, counts, strict=True) if count == 0]
    if empty:
        raise InputError(
            f"{len(empty)} of {len(class_names)} classes have no record: {_shown(empty)}. "
            "Remove these classes, or add records (a larger --limit)."
        )


def _refuse_constant_findings(labels: NDArray[np.integer], names: tuple[str, ...]) -> None:
    for what, sums in (("no record", labels.sum(axis=0)), ("every record", (1 - labels).sum(axis=0))):
        constant = [name for name, count in zip(names, sums, strict=True) if count == 0]
        if constant:
            raise InputError(
                f"{len(constant)} of {len(names)} findings are true of {what}: {_shown(constant)}. There is nothing "
                "to learn of them: choose others with --findings, or add records."
            )


def is_zero_to_k(values: NDArray[np.integer]) -> bool:
    """True where distinct sorted values are exactly 0..K-1."""
    return int(values[0]) == 0 and int(values[-1]) == len(values) - 1


def _by_user(present: list[str], classes: tuple[str, ...], is_text: bool) -> tuple[list[int], tuple[str, ...]]:
    unknown = [value for value in present if value not in classes]
    if not unknown:
        return [classes.index(value) for value in present], classes
    plain = not is_text and all(value.isdigit() and int(value) < len(classes) for value in present)
    if plain:  # the labels are indices already and the user gives them names
        return [int(value) for value in present], classes
    raise InputError(
        f"Labels {_shown(unknown)} are not among --classes {','.join(classes)}. Name every label value, in order."
    )


def _by_value(found: NDArray[np.generic], names: tuple[str, ...] | None) -> tuple[list[int], tuple[str, ...]]:
    values = found.astype(np.int64) if found.dtype.kind == "i" else found.astype(np.uint64)
    if names is not None:
        if int(values[0]) < 0 or int(values[-1]) >= len(names):
            raise InputError(
                f"Expected labels 0..{len(names) - 1} for the {len(names)} classes of the source, "
                f"got {_shown([str(v) for v in values])}. Remove the records without a class."
            )
        return [int(value) for value in values], names
    if not is_zero_to_k(values):
        listed = [str(value) for value in values]
        raise InputError(
            f"Expected integer labels 0..{len(values) - 1}, got {_shown(listed)}. "
            f"Pass the values in order: --classes {_shown(listed, ',')}"
        )
    return list(range(len(values))), tuple(str(value) for value in values)


def _without_repeats(classes: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({name for name in classes if classes.count(name) > 1})
    if repeated or not classes:
        raise InputError(f"Expected distinct class names, got {','.join(classes) or 'none'}.")
    return classes


def _shown(values: list[str], separator: str = ", ") -> str:
    more = f"{separator}... ({len(values)} in all)" if len(values) > _SHOWN else ""
    return separator.join(values[:_SHOWN]) + more
