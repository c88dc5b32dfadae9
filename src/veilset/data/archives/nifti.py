"""Folders of NIfTI volumes with a table of labels, read by slices. Each file is a group unless the table names one.

Slices lie across the body's long axis, as the file's own orientation says, with the front of the body at the top. They
come to 8 bits by `--window`, else by the display range of the header, else (but for 8-bit files) from the smallest to
the largest value of this one slice: a record depends on its own slice alone.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.progress import track
from veilset.data.archives.dicom_pixels import BY_WINDOW, Window
from veilset.data.archives.listing import Listing, Request, open_listing
from veilset.data.archives.reading import Reading, chosen_frames
from veilset.data.archives.survey import Survey, refuse_links
from veilset.data.archives.table import CSV_NAME, find_table, first_of, read_table
from veilset.data.decoding import LARGEST_PIXELS, UndecodableError
from veilset.data.folder import check_listed
from veilset.data.guards import refuse_bomb
from veilset.data.optional import require
from veilset.data.streaming import Picture, StreamedImages
from veilset.data.tally import Tally

BY_HEADER = "by the header's display range"
BY_SLICE = "by the smallest and the largest value of the slice itself"
_KEPT_VOLUMES = 2  # decompressed; the threads of the opening pass work at the border of two


@dataclass(frozen=True)
class _Volume:
    """What a header says."""

    path: str
    problem: str = ""
    depth: int = 0
    volumes: int = 1


@dataclass(frozen=True)
class _NiftiFiles:
    folder: Path
    paths: list[str]
    frames: list[int]  # slice + depth * volume
    window: Window | None
    kept: OrderedDict[str, Any] = field(default_factory=OrderedDict, repr=False)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def name(self, row: int) -> str:
        return self.paths[row]

    def picture(self, row: int) -> Picture:
        try:
            image = self._open(self.paths[row])
            values = _slice(image, self.frames[row])
            pixels, rule = _eight_bits(values, image.header, self.window)
        except (OSError, UndecodableError):
            raise
        except Exception as error:  # nibabel raises nearly every type on damaged files
            raise UndecodableError(f"damaged: its values cannot be read ({type(error).__name__})") from error
        return Picture(pixels, values[..., None], rule)

    def _open(self, path: str) -> Any:
        """A volume, with its values in memory where the file is compressed: else each slice would unpack it all."""
        with self.lock:
            if path not in self.kept:
                while len(self.kept) >= _KEPT_VOLUMES:
                    self.kept.popitem(last=False)
                image = require("nibabel", "medical").load(self.folder / path)
                if path.casefold().endswith(".gz"):
                    image = type(image)(np.asanyarray(image.dataobj), image.affine, image.header)
                self.kept[path] = image
            return self.kept[path]


def open_nifti(found: Survey, request: Request) -> StreamedImages:
    """Check every labelled volume of the folder once and keep it open for reading by slice."""
    require("nibabel", "medical")
    folder, reading = found.folder, request.reading
    tally = Tally(found.found, found.ignored("nifti"))
    path = find_table(folder, reading.table)
    if path is None:
        raise InputError(
            f"{folder} holds NIfTI files and no {CSV_NAME}. Add one, or pass --table FILE.csv, with the columns path "
            "and label, and a group where one person has several files."
        )
    if reading.slices is None:
        raise InputError(f"{folder} holds NIfTI volumes. Say which slices to use: --slices middle, all or a number.")
    table = read_table(path, ("path",), request.labels, request.groups, request.reading.findings)
    missing = check_listed(folder, [row.key for row in table.rows], path.name, skip=reading.skip_bad)
    if missing:
        tally.said.append(f"{len(missing)} files of {path.name} are not there and are left out.")
    known = {Path(name) for name in found.files["nifti"]}
    rows = [row for row in table.rows if row.key not in missing]
    others = [row.key for row in rows if Path(row.key) not in known]
    if others:
        raise InputError(f"{len(others)} files of {path.name} are not NIfTI files: {first_of(others)}.")
    tally.ignore(f"that {path.name} does not name", len(known - {Path(row.key) for row in rows}))
    refuse_links(found, [row.key for row in rows])
    volumes = [_volume(folder, row.key) for row in track(rows, request.progress, "read headers", len(rows))]
    _refuse_bad(volumes, tally, skip_bad=reading.skip_bad)
    if not table.has_groups:
        tally.said.append("Groups: each file. Where one person has several files, add a column group to the table.")
    paths, frames, labels, who = [], [], [], []
    for row, volume in zip(rows, volumes, strict=True):
        for frame in [] if volume.problem else _frames(volume, reading):
            paths.append(row.key)
            frames.append(frame)
            labels.append(row.label)
            who.append(row.group or Path(row.key).as_posix())
    listing = Listing(paths, labels, who, frames)
    return open_listing(listing, lambda some, which: _NiftiFiles(folder, some, which, reading.window), tally, request)


def _volume(folder: Path, path: str) -> _Volume:
    try:
        image = require("nibabel", "medical").load(folder / path)
        shape, kind = tuple(map(int, image.shape)), image.get_data_dtype()
        if len(shape) not in (3, 4):
            return _Volume(path, f"{len(shape)} dimensions; 3 are expected, or 4 with --frames")
        if min(shape) < 1:
            return _Volume(path, "no values")
        if kind.kind not in "iuf":
            return _Volume(path, "values that are not plain numbers")
        if int(np.prod(sorted(shape[:3])[1:])) > LARGEST_PIXELS:
            return _Volume(path, f"more than {LARGEST_PIXELS:,} pixels in a slice")
        refuse_bomb(path, int(np.prod(shape)) * kind.itemsize, (folder / path).stat().st_size)
    except InputError:
        raise
    except OSError as error:
        return _Volume(path, f"unreadable: {error.strerror or 'it cannot be opened'}")
    except Exception as error:
        return _Volume(path, f"not a NIfTI file, or damaged ({type(error).__name__})")
    return _Volume(path, "", _depth(image), shape[3] if len(shape) == 4 else 1)


def _refuse_bad(volumes: list[_Volume], tally: Tally, *, skip_bad: bool) -> None:
    bad = [f"{volume.path} ({volume.problem})" for volume in volumes if volume.problem]
    if bad and not skip_bad:
        raise InputError(
            f"{len(bad)} of {len(volumes)} NIfTI files cannot be read: {first_of(bad)}. Repair or remove them, or "
            "leave them out with --skip-bad."
        )
    tally.ignore("that cannot be read (--skip-bad)", len(bad))


def _frames(volume: _Volume, reading: Reading) -> list[int]:
    if volume.volumes > 1 and reading.frames is None:
        raise InputError(
            f"{volume.path} holds {volume.volumes} volumes. Say which to use: --frames first, middle or all."
        )
    slices = chosen_frames(reading.slices or "middle", volume.depth)
    times = chosen_frames(reading.frames or "first", volume.volumes)
    return [time * volume.depth + place for time in times for place in slices]


def _axes(image: Any) -> list[tuple[int, bool]]:
    """For left-right, back-front and foot-head: which axis of the file it is, and whether it runs the other way."""
    turns = require("nibabel", "medical").io_orientation(image.affine)
    if np.isnan(turns).any():
        return [(axis, False) for axis in range(3)]
    return [
        (int(np.flatnonzero(turns[:, 0] == body)[0]), bool(turns[turns[:, 0] == body][0, 1] < 0)) for body in range(3)
    ]


def _depth(image: Any) -> int:
    return int(image.shape[_axes(image)[2][0]])


def _slice(image: Any, frame: int) -> NDArray[Any]:
    """(H, W) values of one slice: front at the top, the person's left at the left."""
    axes = _axes(image)
    up, is_reversed = axes[2]
    depth = int(image.shape[up])
    time, place = divmod(frame, depth)
    at: list[Any] = [slice(None)] * 3 + [time] * (len(image.shape) - 3)
    at[up] = depth - 1 - place if is_reversed else place
    values = np.asarray(image.dataobj[tuple(at)])
    if axes[0][0] < axes[1][0]:
        values = values.T  # rows run from back to front now
    if axes[0][1]:
        values = values[:, ::-1]
    return np.ascontiguousarray(values if axes[1][1] else values[::-1])


def _eight_bits(values: NDArray[Any], header: Any, window: Window | None) -> tuple[NDArray[np.uint8], str]:
    """(H, W, 1) uint8, and the rule that made it so."""
    if not np.isfinite(values).all():
        raise UndecodableError("values that are not numbers (NaN or infinite)")
    rule, low, high = "", 0.0, 255.0
    shown = float(header.get("cal_min", 0)), float(header.get("cal_max", 0))
    if window is not None:
        rule, low, high = BY_WINDOW, window[0] - window[1] / 2, window[0] + window[1] / 2
    elif shown[1] > shown[0]:
        rule, (low, high) = BY_HEADER, shown
    elif values.dtype != np.uint8:
        rule, low, high = BY_SLICE, float(values.min()), float(values.max())
    share = (values.astype(np.float64) - low) / max(high - low, 1e-12)
    return np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)[..., None], rule
