"""Image folders: one sub-folder for each class, or a table with path,label and perhaps group. Streamed."""

import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from veilset.core.errors import InputError
from veilset.data.archives.listing import Listing, Request, open_listing
from veilset.data.archives.survey import (
    Survey,
    is_system_folder,
    refuse_links,
    resolved,
)
from veilset.data.archives.table import CSV_NAME, find_table, first_of, read_table
from veilset.data.decoding import EXTENSIONS
from veilset.data.streaming import Picture, StreamedImages, picture_of
from veilset.data.tally import Tally


@dataclass(frozen=True)
class _Files:
    folder: Path
    paths: list[str]

    def name(self, row: int) -> str:
        return self.paths[row]

    def fetch(self, row: int) -> bytes:
        return (self.folder / self.paths[row]).read_bytes()

    def picture(self, row: int) -> Picture:
        return picture_of(self.fetch(row))


def open_folder(found: Survey, request: Request) -> StreamedImages:
    """Check every image of the folder once and keep it open for reading by row."""
    folder = found.folder
    tally = Tally(found.found, found.ignored("images"))
    table = find_table(folder, request.reading.table)
    if table is not None:
        listing = _from_table(found, table, request, tally)
    elif request.labels or request.groups:
        option = "--labels" if request.labels else "--groups"
        raise InputError(f"{option} names a column, but {folder} has no {CSV_NAME}. Add one with path,label,group.")
    else:
        listing = _from_subfolders(found, tally)
    return open_listing(listing, lambda paths, _: _Files(folder, paths), tally, request)


def _from_subfolders(found: Survey, tally: Tally) -> Listing:
    refuse_links(found, found.files["images"])
    paths = [path for path in found.files["images"] if os.sep in path]
    tally.ignore("outside of the class folders", len(found.files["images"]) - len(paths))
    labels = [path.split(os.sep, 1)[0] for path in paths]
    with_images = set(labels)
    for class_folder in sorted(_folders(found.folder)):
        if class_folder.name not in with_images:
            _refuse_empty_folder(found.folder, class_folder)
    if not paths:
        seen = "; ".join(f"{count} files {why}" for why, count in tally.ignored.items())
        raise InputError(
            f"{found.folder} holds no images: expected one sub-folder for each class, or {CSV_NAME} with "
            f"path,label[,group]. Accepted files: {', '.join(EXTENSIONS)}.{f' There are {seen}.' if seen else ''}"
        )
    return Listing(paths, labels, None, classes=_in_order(with_images))


def _in_order(names: set[str]) -> tuple[str, ...]:
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))  # 10 after 9
    return tuple(sorted(names))


def _refuse_empty_folder(folder: Path, class_folder: Path) -> None:
    ignored = sum(len(names) for _, _, names in os.walk(class_folder))
    seen = f" ({ignored} files of other kinds were ignored)" if ignored else ""
    raise InputError(
        f"Class {class_folder.name!r} of {folder} has no record{seen}. Accepted files: {', '.join(EXTENSIONS)}. "
        "Add images or remove the sub-folder."
    )


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not is_system_folder(path.name)]


def _from_table(found: Survey, path: Path, request: Request, tally: Tally) -> Listing:
    table = read_table(path, ("path",), request.labels, request.groups)
    rows = table.rows
    missing = check_listed(found.folder, [row.key for row in rows], path.name, skip=request.reading.skip_bad)
    if missing:
        rows = [row for row in rows if row.key not in missing]
        tally.said.append(f"{len(missing)} files of {path.name} are not there and are left out.")
    unknown = [row.key for row in rows if Path(row.key).suffix.lower() not in EXTENSIONS]
    if unknown:
        accepted = ", ".join(EXTENSIONS)
        raise InputError(
            f"{len(unknown)} files of {path.name} are not images: {first_of(unknown)}. Accepted: {accepted}."
        )
    named = {os.path.normpath(row.key) for row in rows}
    tally.ignore(f"that {path.name} does not name", sum(name not in named for name in found.files["images"]))
    return Listing([row.key for row in rows], [row.label for row in rows], table.groups_of(rows))


def check_listed(folder: Path, paths: list[str], table: str, *, skip: bool) -> set[str]:
    """Refuse paths that leave the folder or stand there twice, and files that are missing unless they are skipped."""
    root = folder.resolve()
    leaving, missing = [], []

    @cache  # one folder for many files
    def is_inside(parent: str) -> bool:
        return resolved(Path(parent)).is_relative_to(root)

    for path in paths:
        place = f"{root}{os.sep}{path}" if not os.path.isabs(path) else path  # noqa: PTH117  # texts: there may be many
        parent, name = os.path.split(place)
        is_link = os.path.islink(place)  # noqa: PTH114
        if name == ".." or not (resolved(Path(place)).is_relative_to(root) if is_link else is_inside(parent)):
            leaving.append(path)
        elif not os.path.isfile(place):  # noqa: PTH113
            missing.append(path)
    if leaving:
        raise InputError(f"{len(leaving)} paths of {table} leave {folder}: {first_of(leaving)}. Keep them inside.")
    if missing and not skip:
        raise InputError(f"{len(missing)} files of {table} are not in {folder}: {first_of(missing)}.")
    times = Counter(os.path.normpath(path) for path in paths)
    repeated = [path for path, count in times.items() if count > 1]
    if repeated:
        raise InputError(f"{len(repeated)} paths of {table} stand there twice: {first_of(repeated)}.")
    return set(missing)
