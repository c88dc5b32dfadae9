"""From files with labels to records: classes, groups, `--limit`, text in the pixels, and the checking pass."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veilset.core.progress import SILENT, Progress
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.archives.table import values_of
from veilset.data.archives.text import without_text
from veilset.data.classes import index_labels
from veilset.data.decoding import Form
from veilset.data.groups import checked_groups
from veilset.data.selection import Limit
from veilset.data.streaming import Pictures, StreamedImages
from veilset.data.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a folder was asked for; the words are those of `open_images`."""

    form: Form
    limit: Limit
    labels: str | None = None
    groups: str | None = None
    classes: tuple[str, ...] | None = None
    reading: Reading = PLAIN
    progress: Progress = SILENT


@dataclass(frozen=True)
class Listing:
    """What a folder says of its records, before any pixel is read. One entry for each record."""

    paths: list[str]  # relative to the folder; of several frames one file has several records
    labels: list[str]
    groups: list[str] | None
    frames: list[int] | None = None
    classes: tuple[str, ...] | None = None  # in order, where the listing itself defines them
    burned_in: frozenset[str] = frozenset()  # files that say of themselves that text is in their pixels


def open_listing(
    listing: Listing, pictures: Callable[[list[str], list[int]], Pictures], tally: Tally, request: Request
) -> StreamedImages:
    """Check every image once and keep them open for reading by row.

    Privacy: which records there are depends on each unit's own files and lines, on public rules, and on the number of
    units, which is declared public.
    """
    if listing.classes is None:
        indices, class_names = index_labels(values_of(listing.labels), request.classes)
    else:
        indices, class_names = index_labels(np.array(listing.labels, np.str_), request.classes or listing.classes)
    who = None if listing.groups is None else checked_groups(values_of(listing.groups), len(indices))
    frames = listing.frames or [0] * len(listing.paths)

    def own_names() -> list[bytes]:
        # A file's own path names it before it is opened.
        if listing.frames is None:
            return [Path(path).as_posix().encode() for path in listing.paths]
        return [f"{Path(path).as_posix()}:{at}".encode() for path, at in zip(listing.paths, frames, strict=True)]

    rows = request.limit.rows(indices, class_names, who, own_names)
    paths = [listing.paths[row] for row in rows]
    if len(rows) < len(listing.paths):
        tally.ignore("left out by --limit", len(set(listing.paths)) - len(set(paths)))
    files = pictures(paths, [frames[row] for row in rows])
    burned = {row for row, path in enumerate(paths) if path in listing.burned_in}
    files = without_text(files, len(rows), burned, request.reading, tally, request.progress)
    return StreamedImages(
        files,
        indices[rows],
        class_names,
        None if who is None else who[rows],
        request.form,
        request.progress,
        tally=tally,
        skip_bad=request.reading.skip_bad,
    )
