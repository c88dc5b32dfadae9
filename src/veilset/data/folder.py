"""Image folders: one sub-folder for each class, or a table with path,label and perhaps group. Streamed."""

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from veilset.core.errors import InputError
from veilset.data.archives.listing import ONE_CLASS, Listing, Request, open_listing
from veilset.data.archives.survey import (
    Survey,
    is_system_folder,
    refuse_links,
    resolved,
)
from veilset.data.archives.table import CSV_NAME, find_table, first_of, read_owners, read_table
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
    table, owners = find_table(folder, request.reading.table), request.reading.groups_file
    named = {"--labels": request.labels, "--findings": request.reading.findings}
    named |= {"--groups": request.groups} if owners is None else {}
    unused = [option for option, value in named.items() if value]
    if table is not None:
        listing = _from_table(found, table, request, tally)
    elif unused:
        advice = f"Add one with path,label{',group' if '--groups' in unused else ''}"
        advice += ", or pass --groups-file patients.csv with path,group." if unused == ["--groups"] else "."
        raise InputError(f"{unused[0]} names a column, but {folder} has no {CSV_NAME}. {advice}")
    else:
        listing = _from_subfolders(found, tally, needs_classes=request.needs_classes)
    if owners is not None:
        listing = replace(listing, groups=_owners_of(listing.paths, owners, request.groups, tally))
    return open_listing(listing, lambda paths, _: _Files(folder, paths), tally, request)


def _owners_of(paths: list[str], table: Path, group: str | None, tally: Tally) -> list[str]:
    """To whom each file belongs: by its path, or by its name alone where no other file has that name."""
    owners = read_owners(table, group)
    names = Counter(os.path.basename(path) for path in paths)  # noqa: PTH119  # texts: there may be many
    found, lacking, used = [], [], set()
    for path in paths:
        base = os.path.basename(path)  # noqa: PTH119
        key = next((key for key in (os.path.normpath(path), base) if key in owners), None)
        if key == base != path and names[base] > 1:
            raise InputError(
                f"{names[base]} files are called {base}, so the name alone does not tell to whom they belong. Write "
                f"their paths into {table}, as in {path}."
            )
        if key is None:
            lacking.append(path)
        else:
            used.add(key)
            found.append(owners[key][1])
    if lacking:
        raise InputError(
            f"{table} has no line for {len(lacking)} of {len(paths)} images: {first_of(lacking)}. Say to whom each "
            "belongs: its path inside the folder, and a group."
        )
    if len(used) < len(owners):
        tally.said.append(f"{len(owners) - len(used)} lines of {table.name} name no image that was read.")
    return found


def _from_subfolders(found: Survey, tally: Tally, *, needs_classes: bool) -> Listing:
    refuse_links(found, found.files["images"])
    if not needs_classes and any(os.sep not in path for path in found.files["images"]):
        paths = list(found.files["images"])
        return Listing(paths, [ONE_CLASS] * len(paths), None, classes=(ONE_CLASS,))
    paths = [path for path in found.files["images"] if os.sep in path]
    tally.ignore("outside of the class folders", len(found.files["images"]) - len(paths))
    labels = [path.split(os.sep, 1)[0] for path in paths]
    with_images = set(labels)
    for class_folder in sorted(_folders(found.folder)):
        if class_folder.name not in with_images and needs_classes:
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
    table = read_table(path, ("path",), request.labels, request.groups, request.reading.findings)
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
