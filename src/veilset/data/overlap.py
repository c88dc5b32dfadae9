"""Refuse public data that holds private images: copies, also recompressed, resized, brightened, turned or cropped.

A method that learns from "public" images without noise would leak every private image among them. Each image is
reduced to a grey thumbnail. Its low frequencies (a DCT, as in perceptual hashing, but kept as numbers: bits near
zero flip under JPEG) find the nearest private images; the correlation of whole thumbnails then decides.

1. Copies to the bit, and near copies: each public image against each private one.
2. Mirror images (left-right, up-down) and quarter turns, each of the seven ways: approximate search (data/cells.py).
3. Crops that cut away up to about 13 % on a side, resized to the old size (data/crops.py).

Not found: larger crops, crops that are mirrored or turned as well, turns by other angles, shifts that leave an empty
border, strong noise or blur, inverted brightness, collages, drawings over an image, another photograph of the same
scene. Of plain pictures that resemble many others, such as a shirt, a crop may be missed.

Privacy: the outcome depends on private records without noise. It is for the custodian's screen: it stops the run,
gives one count, never says which image, and must not go into a release.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Records, Rows
from veilset.data import pixels
from veilset.data.cells import Cells, Floats, largest
from veilset.data.crops import cosines, cropped_residuals, standardised

LARGEST_THUMBNAIL = 32
FREQUENCIES = 8
NEIGHBOURS = 4
# Residual = 1 - correlation. Measured between halves of MNIST's training set, where nothing is a copy: no residual
# below 0.008, none below 0.2 of the next one. JPEG copies (quality 75) of MNIST stay below 0.005; those of textured
# photographs reach 0.1 and more, but then the next nearest image is many times as far.
SURE_RESIDUAL = 0.006
LIKELY_RESIDUAL = 0.1
LIKELY_RATIO = 0.15
# The same for turned images, of which halves of MNIST have none below 0.011, and none below 0.18 of the next one, and
# for crops after alignment: none below 0.0074, none below 0.14 of the next one. Crops of MNIST are mostly below 0.003,
# those of chest X-rays below 0.016. Halves of the X-rays by patient and of CelebA have no such pair either; CIFAR-10
# and Tiny ImageNet have two, which on looking are the same photographs.
TURNED_RATIO = 0.12
CROPPED_SURE = 0.005
CROPPED_LIKELY = 0.03
CROPPED_RATIO = 0.1
SMALLEST_CROPPED = 16  # pixels a side; a crop of less says too little
_LOW_RESIDUAL = 0.03  # of the low frequencies, which no recompression changes more
_LEAST_CONTRAST = 2.0  # grey levels; below it an image is blank and resembles every other blank one
_CELLS = 8  # looked into for turned images
_BATCH = 1024
_BLOCK_VALUES = 2**25  # similarities held at once


def refuse_overlap(private: Records, public: Records, progress: Progress = SILENT) -> None:
    """Raise InputError, with the count alone, where public images coincide with private ones."""
    count = count_overlap(private, public, progress)
    if count:
        raise InputError(
            f"{count} of {len(public.labels)} public images coincide with private ones (copies or near copies). "
            "What a method learns from public images is not protected, so they would leak. "
            "Remove the private images from the public set, or pass another --public or generator."
        )


def count_overlap(private: Records, public: Records, progress: Progress = SILENT) -> int:
    """How many public images are copies or near copies of a private one."""
    return int(find_overlap(private, public, progress).sum())


def find_overlap(private: Records, public: Records, progress: Progress = SILENT) -> NDArray[np.bool_]:
    """(N,) which public images are copies or near copies of a private one.

    Privacy: for research data alone. Leaving these out of a release's public images would tell who is private.
    """
    side = min(LARGEST_THUMBNAIL, *private.shape[:2], *public.shape[:2])
    with progress.task("compare public with private images", len(private.labels) + 4 * len(public.labels)) as task:
        known = _Fingerprints.empty(len(private.labels), side)
        for start, images in _batches(private):
            known.fill(start, images)
            task.advance(len(images))
        asked = _Fingerprints.empty(len(public.labels), side)
        for start, images in _batches(public):
            asked.fill(start, images)
            task.advance(len(images))
        copies = {digest for digest in known.exact if digest}
        coincides = np.array([digest in copies for digest in asked.exact])
        known_low, known_clear = known.low_frequencies()
        asked_low, asked_clear = asked.low_frequencies()
        known_low[~known_clear] = 0  # a zero vector is near to nothing
        for rows in _blocks(np.flatnonzero(asked_clear & ~coincides), len(known_low)):
            near, residuals = _residuals(asked.thumbnails[rows], asked_low[rows], known.thumbnails, known_low)
            coincides[rows[near]] = _are_copies(residuals, SURE_RESIDUAL, LIKELY_RESIDUAL, LIKELY_RATIO)
        task.advance(len(asked_low))
        cells = Cells(known_low, _CELLS)
        for turn in range(1, 8):
            rows = np.flatnonzero(asked_clear & ~coincides)
            turned = _turned_frequencies(asked_low[rows], turn)
            rows, turned = _promising(cells, rows, turned)
            for part in _blocks(np.arange(len(rows)), len(known_low)):
                pictures = turned_pictures(asked.thumbnails[rows[part]], turn)
                near, residuals = _residuals(pictures, turned[part], known.thumbnails, known_low)
                coincides[rows[part[near]]] |= _are_copies(residuals, SURE_RESIDUAL, LIKELY_RESIDUAL, TURNED_RATIO)
        task.advance(len(asked_low))
        if side >= SMALLEST_CROPPED:
            rows = np.flatnonzero(asked_clear & ~coincides)
            done = 0
            for count, residuals in cropped_residuals(asked.thumbnails[rows], known.thumbnails):
                cropped = _are_copies(residuals, CROPPED_SURE, CROPPED_LIKELY, CROPPED_RATIO)
                coincides[rows[done : done + count]] = cropped
                done += count
        task.advance(len(asked_low))
    return coincides


def turned_pictures(pictures: NDArray[np.uint8], turn: int) -> NDArray[np.uint8]:
    """Pictures (N, s, s) in one of 8 ways: bit 0 mirrors left-right, bit 1 up-down, bit 2 swaps rows and columns."""
    pictures = pictures.transpose(0, 2, 1) if turn & 4 else pictures
    return pictures[:, :: -1 if turn & 2 else 1, :: -1 if turn & 1 else 1]


def _turned_frequencies(low: Floats, turn: int) -> Floats:
    """The low frequencies of turned pictures: mirroring changes the sign of the odd ones."""
    side = round((low.shape[1] + 1) ** 0.5)
    square = np.concatenate([np.zeros((len(low), 1), np.float32), low], axis=1).reshape(len(low), side, side)
    square = square.transpose(0, 2, 1) if turn & 4 else square
    signs = np.where(np.arange(side) % 2, -1, 1).astype(np.float32)
    square = square * (signs[:, None] if turn & 2 else 1) * (signs if turn & 1 else 1)
    flat: Floats = np.ascontiguousarray(square.reshape(len(low), side * side)[:, 1:], np.float32)
    return flat


def _promising(cells: Cells, rows: Rows, low: Floats) -> tuple[Rows, Floats]:
    """Those that are near to a known one in their low frequencies."""
    if len(rows) == 0:
        return rows, low
    near = cells.nearest(low)[1].max(axis=1) > 1 - _LOW_RESIDUAL
    return rows[near], low[near]


def _blocks(rows: Rows, known: int) -> Iterator[Rows]:
    step = max(1, _BLOCK_VALUES // known)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _residuals(
    pictures: NDArray[np.uint8], low: Floats, known: NDArray[np.uint8], known_low: Floats
) -> tuple[Rows, Floats]:
    """Which pictures are near to a known one in their low frequencies, and residuals (R, k) to the k nearest."""
    similar = low @ known_low.T
    near = np.flatnonzero(similar.max(axis=1) > 1 - _LOW_RESIDUAL)
    nearest = known[largest(similar[near], NEIGHBOURS)]  # (R, k, s, s)
    left = standardised(pictures[near, None].astype(np.float32))
    return near, np.sort(1 - (left * standardised(nearest.astype(np.float32))).sum(axis=(2, 3)), axis=1)


def _are_copies(residuals: Floats, sure: float, likely: float, ratio: float) -> NDArray[np.bool_]:
    """For residuals (R, k) in rising order: whether the first is so small, or so much smaller than the next."""
    first = residuals[:, 0]
    second = residuals[:, 1] if residuals.shape[1] > 1 else np.full_like(first, np.inf)
    copies: NDArray[np.bool_] = (first < sure) | ((first < likely) & (first < ratio * second))
    return copies


@dataclass(frozen=True)
class _Fingerprints:
    thumbnails: NDArray[np.uint8]  # (N, side, side), grey
    exact: list[bytes]  # of all pixels; empty for an image of one colour, which says nothing about anybody

    @staticmethod
    def empty(count: int, side: int) -> "_Fingerprints":
        return _Fingerprints(np.empty((count, side, side), np.uint8), [b""] * count)

    def fill(self, start: int, images: Images) -> None:
        side = self.thumbnails.shape[1]
        plain = (images == images[:, :1, :1]).all(axis=(1, 2, 3))
        grey = pixels.to_channels(images, 1)[..., 0]
        for row, (image, picture) in enumerate(zip(images, grey, strict=True), start):
            if not plain[row - start]:
                header = repr(image.shape).encode()
                self.exact[row] = hashlib.blake2b(header + image.tobytes(), digest_size=16).digest()
            self.thumbnails[row] = picture if picture.shape == (side, side) else _shrink(picture, side)

    def low_frequencies(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Unit vectors (N, k*k-1) of the lowest DCT coefficients but the mean, and which images are not blank."""
        side = self.thumbnails.shape[1]
        basis = cosines(side, min(FREQUENCIES, side))  # (k, side)
        low = np.empty((len(self.thumbnails), len(basis) ** 2 - 1), np.float32)
        for start in range(0, len(low), _BATCH):
            part = self.thumbnails[start : start + _BATCH].astype(np.float32)
            low[start : start + _BATCH] = (basis @ part @ basis.T).reshape(len(part), -1)[:, 1:]
        norms = np.linalg.norm(low, axis=1, keepdims=True)
        return low / np.maximum(norms, 1e-6), norms[:, 0] > _LEAST_CONTRAST * side


def _batches(records: Records) -> Iterator[tuple[int, Images]]:
    for start in range(0, len(records.labels), _BATCH):
        yield start, records.read(np.arange(start, min(start + _BATCH, len(records.labels))))


def _shrink(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    # Lanczos keeps the high frequencies that tell one digit from the next after a small change of size.
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))
