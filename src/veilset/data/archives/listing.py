"""From files with labels to records: classes, groups, `--limit`, text in the pixels, and the checking pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.progress import SILENT, Progress
from veilset.core.records import Rows
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.archives.table import Label, values_of
from veilset.data.archives.text import without_text
from veilset.data.decoding import Form
from veilset.data.findings import Labelled, labelled
from veilset.data.groups import checked_groups
from veilset.data.selection import Limit
from veilset.data.streaming import Pictures, StreamedImages
from veilset.data.tally import Tally

ONE_CLASS = "images"
"""What images without classes are called."""


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
    needs_classes: bool = True  # public images can do without


@dataclass(frozen=True)
class Listing:
    """What a folder says of its records, before any pixel is read. One entry for each record."""

    paths: list[str]  # relative to the folder; of several frames one file has several records
    labels: Sequence[Label]  # of the class, or of all findings
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
    found = _labelled(listing, request)
    indices, class_names = found.labels, found.names
    if len(found.rows) < len(listing.paths):
        kept = len({listing.paths[row] for row in found.rows})
        tally.ignore("with an uncertain finding (--uncertain drop)", len(set(listing.paths)) - kept)
        listing = _part(listing, found.rows)
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


def _labelled(listing: Listing, request: Request) -> Labelled:
    """Classes by their names, or findings by the names of their columns."""
    texts = [label for label in listing.labels if isinstance(label, str)]
    if listing.labels and not texts:
        return labelled(np.array(listing.labels, np.int64), request.classes, request.reading.findings, request.reading)
    if listing.classes is None:
        return labelled(values_of(texts), request.classes, reading=request.reading)
    return labelled(np.array(texts, np.str_), request.classes or listing.classes, reading=request.reading)


def _part(listing: Listing, rows: Rows) -> Listing:
    def of(values: Sequence[Any] | None) -> Any:
        return None if values is None else [values[row] for row in rows]

    return replace(
        listing,
        paths=of(listing.paths),
        labels=of(listing.labels),
        groups=of(listing.groups),
        frames=of(listing.frames),
    )
