"""Text in the pixels: names and numbers that a scanner or a person burned into an image.

A network can learn them like anything else, and a viewer of a contact sheet can read them. Images that say so of
themselves are refused unless the custodian decides otherwise; an optional check reads every image (rapidocr, whose
models come inside its package, so nothing is sent or fetched).
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from veilset.core.errors import InputError
from veilset.core.progress import Progress, track
from veilset.core.records import Images
from veilset.data.archives.reading import Reading
from veilset.data.archives.table import first_of
from veilset.data.decoding import UndecodableError
from veilset.data.optional import require
from veilset.data.streaming import Picture, Pictures
from veilset.data.tally import Tally

BAND = 0.12  # of each side, blanked where no check says where the text is
_LEAST_LETTERS = 3  # L, R, PA and AP are marks of a view and name nobody
_MARGIN = 2  # pixels around what was found

Box = tuple[int, int, int, int]  # top, bottom, left, right


class Finder(Protocol):
    """Finds text in one image."""

    def __call__(self, image: Images) -> list[Box]:
        """Where there is text."""


def without_text(
    files: Pictures, count: int, burned_in: set[int], reading: Reading, tally: Tally, progress: Progress
) -> Pictures:
    """The same images, refused, blanked in places or kept, as the custodian says.

    Args:
        files: the images.
        count: how many there are.
        burned_in: rows whose files say that text is burned in.
        reading: `burned_in` and `check_text`.
        tally: where it is said what was done.
        progress: of the check.
    """
    found: dict[int, list[Box]] = {}
    if reading.check_text:
        found = _look(files, count, finder(), progress)
    rows = sorted(burned_in | set(found))
    if not rows:
        return files
    names = list(dict.fromkeys(files.name(row) for row in rows))
    how = "say or show" if burned_in and found else "show" if found else "say"
    if reading.burned_in == "refuse":
        raise InputError(
            f"{len(names)} files {how} that text is burned into the image, perhaps a name: {first_of(names)}. "
            "Pass --burned-in mask to blank it, --burned-in keep if you have looked, or remove the files."
        )
    if reading.burned_in == "keep":
        tally.said.append(f"{len(names)} files {how} that text is burned into the image, and it is KEPT.")
        return files
    band = [row for row in rows if row not in found]
    tally.said.append(
        f"Text in {len(names)} files is blanked: {len(found)} images where it was found"
        + (f", {len(band)} images by a band of {BAND:.0%} at each side." if band else ".")
    )
    return _Masked(files, {row: found.get(row) for row in rows})


def finder() -> Finder:
    """A reader of text, from the optional package."""
    return _Ocr(require("rapidocr", "medical").RapidOCR(params={"Global.log_level": "critical"}))


@dataclass(frozen=True)
class _Ocr:
    engine: Any

    def __call__(self, image: Images) -> list[Box]:
        colours = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        result = self.engine(np.ascontiguousarray(colours[..., ::-1]))
        if result.boxes is None:
            return []
        # The text itself is looked at for its length and goes nowhere.
        return [
            _box(corners)
            for corners, text in zip(result.boxes, result.txts, strict=True)
            if sum(map(str.isalnum, text)) >= _LEAST_LETTERS
        ]


def _box(corners: Any) -> Box:
    points = np.asarray(corners)
    left, top = np.floor(points.min(axis=0)).astype(int) - _MARGIN
    right, bottom = np.ceil(points.max(axis=0)).astype(int) + _MARGIN
    return max(0, int(top)), int(bottom), max(0, int(left)), int(right)


def _look(files: Pictures, count: int, find: Finder, progress: Progress) -> dict[int, list[Box]]:
    found = {}
    for row in track(range(count), progress, "look for text", count):
        try:
            boxes = find(files.picture(row).pixels)
        except (OSError, UndecodableError):
            continue  # the checking pass names it
        if boxes:
            found[row] = boxes
    return found


@dataclass(frozen=True)
class _Masked:
    """Images with text blanked: in boxes, or None for a band at every side."""

    files: Pictures
    boxes: dict[int, list[Box] | None] = field(repr=False)

    def name(self, row: int) -> str:
        return self.files.name(row)

    def picture(self, row: int) -> Picture:
        picture = self.files.picture(row)
        if row not in self.boxes:
            return picture
        pixels = picture.pixels.copy()
        for top, bottom, left, right in self.boxes[row] or _bands(*pixels.shape[:2]):
            pixels[top:bottom, left:right] = 0
        raw = picture.pixels if picture.raw is None else picture.raw
        return Picture(pixels, raw, picture.rule)


def _bands(height: int, width: int) -> list[Box]:
    rows, columns = max(1, round(BAND * height)), max(1, round(BAND * width))
    return [
        (0, rows, 0, width),
        (height - rows, height, 0, width),
        (0, height, 0, columns),
        (0, height, width - columns, width),
    ]
