"""Image folders: one sub-folder for each class, or a `labels.csv` with path,label and perhaps group. Streamed."""

import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Groups
from veilset.core.registry import unknown_name
from veilset.data.classes import index_labels
from veilset.data.decoding import EXTENSIONS, Form
from veilset.data.groups import checked_groups
from veilset.data.selection import Limit
from veilset.data.streaming import StreamedImages

CSV_NAME = "labels.csv"
_NAMED = 5


@dataclass(frozen=True)
class _Listing:
    """What a folder says of its records, before any image is opened."""

    paths: list[str]  # relative to the folder
    labels: list[str]
    groups: list[str] | None
    classes: tuple[str, ...] | None = None  # in order, where the listing itself defines them


@dataclass(frozen=True)
class _Files:
    folder: Path
    paths: list[str]

    def name(self, row: int) -> str:
        return self.paths[row]

    def fetch(self, row: int) -> bytes:
        return (self.folder / self.paths[row]).read_bytes()


def open_folder(
    folder: Path,
    *,
    form: Form,
    limit: Limit,
    labels: str | None = None,
    groups: str | None = None,
    classes: tuple[str, ...] | None = None,
    progress: Progress = SILENT,
) -> StreamedImages:
    """Check every image of the folder once and keep it open for reading by row."""
    if (folder / CSV_NAME).is_file():
        listing = _from_csv(folder, labels or "label", groups)
    elif labels or groups:
        option = "--labels" if labels else "--groups"
        raise InputError(f"{option} names a column, but {folder} has no {CSV_NAME}. Add one with path,label,group.")
    else:
        listing = _from_subfolders(folder)
    if listing.classes is None:
        indices, class_names = index_labels(_values(listing.labels), classes)
    else:
        indices, class_names = index_labels(np.array(listing.labels, np.str_), classes or listing.classes)
    who = None if listing.groups is None else checked_groups(_values(listing.groups), len(indices))
    # A file's own path names it before it is opened.
    rows = limit.rows(indices, class_names, who, lambda: (Path(path).as_posix().encode() for path in listing.paths))
    files = _Files(folder, [listing.paths[row] for row in rows])
    return StreamedImages(files, indices[rows], class_names, None if who is None else who[rows], form, progress)


def _from_subfolders(folder: Path) -> _Listing:
    paths: list[str] = []
    labels: list[str] = []
    ignored = 0
    for class_folder in sorted(_folders(folder)):
        for path in _walk(class_folder, folder):
            if path.suffix.lower() in EXTENSIONS:
                paths.append(str(path.relative_to(folder)))
                labels.append(class_folder.name)
            else:
                ignored += 1
        if not labels or labels[-1] != class_folder.name:
            _refuse_empty_folder(folder, class_folder, ignored)
    if not paths:
        raise InputError(
            f"{folder} holds no images: expected one sub-folder for each class, or {CSV_NAME} with path,label[,group]. "
            f"Accepted files: {', '.join(EXTENSIONS)}."
        )
    return _Listing(paths, labels, None, _in_order(set(labels)))


def _in_order(names: set[str]) -> tuple[str, ...]:
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))  # 10 after 9
    return tuple(sorted(names))


def _refuse_empty_folder(folder: Path, class_folder: Path, ignored: int) -> None:
    seen = f" ({ignored} files of other kinds were ignored)" if ignored else ""
    raise InputError(
        f"Class {class_folder.name!r} of {folder} has no record{seen}. Accepted files: {', '.join(EXTENSIONS)}. "
        "Add images or remove the sub-folder."
    )


def _folders(folder: Path) -> Iterator[Path]:
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                _refuse_linked_folder(path)
                yield path
    except OSError as error:
        raise InputError(f"Cannot read {folder}: {error.strerror or error}.") from error


def _walk(class_folder: Path, root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise InputError(f"Cannot read {error.filename}: {error.strerror or error}.") from error

    for parent, folders, names in os.walk(class_folder, onerror=fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            _refuse_linked_folder(Path(parent, name))
        for name in sorted(names):
            if not name.startswith("."):
                path = Path(parent, name)
                _refuse_leaving(path, root)
                yield path


def _refuse_linked_folder(path: Path) -> None:
    if path.is_symlink():
        raise InputError(f"{path} is a link to another folder. Put the folder itself there, or link its files.")


def _refuse_leaving(path: Path, root: Path) -> None:
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path} is a link that leaves {root}. Put the file itself there.")


def _from_csv(folder: Path, label_column: str, group_column: str | None) -> _Listing:
    path = folder / CSV_NAME
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            columns = list(reader.fieldnames or [])
            if group_column is None and "group" in columns:
                group_column = "group"
            needed = ["path", label_column] + ([group_column] if group_column else [])
            for name in needed:
                if name not in columns:
                    raise unknown_name(f"column of {path}", name, columns)
            table = [[row[name] for name in needed] for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8 ({error}).") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    for line, row in enumerate(table, 2):
        if not all(row):
            raise InputError(f"Line {line} of {path} lacks a {needed[[bool(v) for v in row].index(False)]}.")
    paths = [row[0] for row in table]
    _check_listed(folder, paths)
    return _Listing(paths, [row[1] for row in table], [row[2] for row in table] if group_column else None)


def _check_listed(folder: Path, paths: list[str]) -> None:
    root = folder.resolve()
    leaving = [path for path in paths if not (root / path).resolve().is_relative_to(root)]
    if leaving:
        raise InputError(f"{len(leaving)} paths of {CSV_NAME} leave {folder}: {_first(leaving)}. Keep them inside.")
    missing = [path for path in paths if not (root / path).is_file()]
    if missing:
        raise InputError(f"{len(missing)} files of {CSV_NAME} are not in {folder}: {_first(missing)}.")
    times = Counter(os.path.normpath(path) for path in paths)
    repeated = [path for path, count in times.items() if count > 1]
    if repeated:
        raise InputError(f"{len(repeated)} paths of {CSV_NAME} stand there twice: {_first(repeated)}.")
    unknown = [path for path in paths if Path(path).suffix.lower() not in EXTENSIONS]
    if unknown:
        accepted = ", ".join(EXTENSIONS)
        raise InputError(f"{len(unknown)} files of {CSV_NAME} are not images: {_first(unknown)}. Accepted: {accepted}.")


def _first(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _values(texts: list[str]) -> Groups:
    """Integers where every text is one as written (007 is a name, and not the same as 7), else the texts."""
    try:
        numbers = np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        return np.array(texts, np.str_)
    return numbers if list(map(str, numbers.tolist())) == texts else np.array(texts, np.str_)
