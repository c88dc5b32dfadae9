"""The table that says what files show: a CSV with a key, a label and perhaps a group.

Commas, semicolons and tabs are told apart by the first line. Errors name lines and files, never a patient or an id.
"""

import csv
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilset.core.errors import InputError
from veilset.core.records import Groups
from veilset.data.findings import value_of

CSV_NAME = "labels.csv"
Label = str | tuple[int, ...]
"""The name of a class, or 0, 1 and -1 (uncertain) for each finding."""

OWNER_KEYS = ("path", "file", "filename", "file_name", "image")
"""What a table of owners may call its column of files."""

NAMED = 5  # how many files or lines an error names


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    line: int
    key: str
    label: Label
    group: str | None


@dataclass(frozen=True)
class Table:
    """The lines of a table that were asked for."""

    path: Path
    key: str  # the column that says which file a line is about
    rows: list[Row]
    has_groups: bool

    def groups_of(self, rows: list[Row]) -> list[str] | None:
        """The groups of these lines, where the table has any."""
        return [row.group or "" for row in rows] if self.has_groups else None

    def by_key(self) -> dict[str, Row]:
        """One line for each key. Two lines with one key must agree."""
        found: dict[str, Row] = {}
        for row in self.rows:
            other = found.setdefault(row.key, row)
            if (other.label, other.group) != (row.label, row.group):
                what = "labels" if other.label != row.label else "groups"
                raise InputError(
                    f"Lines {other.line} and {row.line} of {self.path} give one {self.key} two {what}. "
                    "Keep the right one."
                )
        return found


def find_table(folder: Path, named: Path | None) -> Path | None:
    """The CSV that was named, or labels.csv of the folder, if there is one."""
    if named is not None:
        if not named.is_file():
            raise InputError(f"{named} is not there or not a file. Pass the CSV with labels as --table.")
        return named
    own = folder / CSV_NAME
    return own if own.is_file() else None


def read_table(
    path: Path, keys: tuple[str, ...], label: str | None, group: str | None, findings: tuple[str, ...] | None = None
) -> Table:
    """Read the first of the columns `keys` that is there, the labels and, where there are any, the groups.

    The labels are one column of classes, or the columns of `findings`.
    """
    if findings is not None and label is not None:
        raise InputError(
            f"--labels {label} names a column of classes and --findings several of 0 and 1. Leave one out."
        )
    label_columns, group_column = list(findings or (label or "label",)), group

    def wanted(columns: list[str]) -> list[str]:
        nonlocal group_column
        key = _first_column(path, keys, columns)
        if group_column is None and "group" in columns:
            group_column = "group"
        return [key, *label_columns] + ([group_column] if group_column else [])

    needed, lines = read_columns(path, wanted, keys, may_be_empty=findings or ())
    rows = []
    for line, texts in lines:
        label_of: Label = texts[1]
        if findings is not None:
            label_of = _findings_of(path, line, findings, texts[1 : 1 + len(findings)])
        rows.append(Row(line, texts[0], label_of, texts[-1] if group_column else None))
    return Table(path, needed[0], rows, group_column is not None)


def read_owners(path: Path, group: str | None) -> dict[str, tuple[int, str]]:
    """Who owns each file, by a CSV with a path and a group: path -> line and group. One line for each file.

    Without `group`, the column is called group, or is the only one beside the path.
    """

    def wanted(columns: list[str]) -> list[str]:
        key = _first_column(path, OWNER_KEYS, columns)
        others = [name for name in columns if name != key]
        named = group or ("group" if "group" in others or len(others) != 1 else others[0])
        return [key, named]

    _, lines = read_columns(path, wanted, OWNER_KEYS, of="and a group")
    found: dict[str, tuple[int, str]] = {}
    for line, (key, owner) in lines:
        name = os.path.normpath(key)
        other = found.setdefault(name, (line, owner))
        if other[1] != owner:
            raise InputError(f"Lines {other[0]} and {line} of {path} give one file two groups. Keep the right one.")
    return found


def read_columns(
    path: Path,
    wanted: Callable[[list[str]], list[str]],
    keys: tuple[str, ...],
    *,
    may_be_empty: tuple[str, ...] = (),
    of: str = "a label and, if known, a group",
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The columns that `wanted` chooses out of those there are, and for each line its number and their texts."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, strict=True, delimiter=_delimiter(first))
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            _refuse_repeated(path, columns)
            needed = wanted(columns)
            for name in needed:
                if name not in columns:
                    raise _unknown_column(path, name, columns, keys, of)
            lines = [(reader.line_num, [(row[name] or "").strip() for name in needed]) for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a CSV file in UTF-8 ({_reason(error)}). Save it as CSV with the encoding UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    for line, texts in lines:
        lacking = [name for name, text in zip(needed, texts, strict=True) if not text and name not in may_be_empty]
        if lacking:
            raise InputError(f"Line {line} of {path} lacks a {lacking[0]}.")
    return needed, lines


def _first_column(path: Path, keys: tuple[str, ...], columns: list[str]) -> str:
    """The first of the names `keys` that a column has, in capitals or not."""
    by_name = {name.casefold(): name for name in columns}
    key = next((by_name[name.casefold()] for name in keys if name.casefold() in by_name), None)
    if key is None:
        raise _unknown_column(path, keys[0], columns, keys)
    return key


def _findings_of(path: Path, line: int, names: tuple[str, ...], texts: list[str]) -> tuple[int, ...]:
    values = [value_of(text) for text in texts]
    found = tuple(value for value in values if value is not None)
    if len(found) < len(names):
        name = names[values.index(None)]
        raise InputError(
            f"Line {line} of {path} has {texts[values.index(None)][:20]!r} for the finding {name}. Expected 0, 1, or "
            "-1 or nothing where it is uncertain."
        )
    return found


def values_of(texts: list[str]) -> Groups:
    """Integers where every text is one as written (007 is a name, and not the same as 7), else the texts."""
    try:
        numbers = np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        return np.array(texts, np.str_)
    return numbers if list(map(str, numbers.tolist())) == texts else np.array(texts, np.str_)


def first_of(names: list[str]) -> str:
    """A few names, for an error."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def lines_of(rows: Mapping[str, Row]) -> str:
    """The numbers of a few lines, for an error that must not show their keys."""
    numbers = [str(row.line) for row in rows.values()]
    return f"line{'s' * (len(numbers) > 1)} {first_of(numbers)}"


def _unknown_column(
    path: Path, name: str, columns: list[str], keys: tuple[str, ...], of: str = "a label and, if known, a group"
) -> InputError:
    """Names a near column alone: without a line of names, the first line is a record's."""
    close = difflib.get_close_matches(name, columns, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return InputError(
        f"Unknown column of {path} {name!r}.{hint} Its first line must name the columns: {' or '.join(keys)}, {of}."
    )


def _delimiter(first: str) -> str:
    return max((",", ";", "\t"), key=first.count)


def _refuse_repeated(path: Path, columns: list[str]) -> None:
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise InputError(f"{path} has the column {repeated[0]!r} twice. Keep one.")


def _reason(error: Exception) -> str:
    """What is wrong, without the bytes that are."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is something else"
    return str(error)
