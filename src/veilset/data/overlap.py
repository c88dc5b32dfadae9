"""Refuse public data that holds private images: copies to the bit, and recompressed, resized or brightened ones.

A method that learns from "public" images without noise would leak every private image among them. Each image is
reduced to a grey thumbnail. Its low frequencies (a DCT, as in perceptual hashing, but kept as numbers: bits near
zero flip under JPEG) find the nearest private images; the correlation of whole thumbnails then decides.

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
from veilset.core.records import Images, Records
from veilset.data import pixels

Floats = NDArray[np.float32]

LARGEST_THUMBNAIL = 32
FREQUENCIES = 8
NEIGHBOURS = 4
# Residual = 1 - correlation. Measured between halves of MNIST's training set, where nothing is a copy: no residual
# below 0.008, none below 0.2 of the next one. JPEG copies (quality 75) of MNIST stay below 0.005; those of textured
# photographs reach 0.1 and more, but then the next nearest image is many times as far.
SURE_RESIDUAL = 0.006
LIKELY_RESIDUAL = 0.1
LIKELY_RATIO = 0.15
_LOW_RESIDUAL = 0.03  # of the low frequencies, which no recompression changes more
_LEAST_CONTRAST = 2.0  # grey levels; below it an image is blank and resembles every other blank one
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
    side = min(LARGEST_THUMBNAIL, *private.shape[:2], *public.shape[:2])
    with progress.task("compare public with private images", len(private.labels) + 2 * len(public.labels)) as task:
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
        step = max(1, _BLOCK_VALUES // len(known_low))
        for start in range(0, len(asked_low), step):
            block = slice(start, start + step)
            similar = asked_low[block] @ known_low.T
            rows = np.flatnonzero(asked_clear[block] & (similar.max(axis=1) > 1 - _LOW_RESIDUAL))
            if len(rows):
                nearest = _nearest(similar[rows])
                coincides[start + rows] |= _are_copies(asked.thumbnails[start + rows], known.thumbnails[nearest])
            task.advance(len(similar))
    return int(coincides.sum())


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
        basis = _cosines(side, min(FREQUENCIES, side))  # (k, side)
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


def _cosines(side: int, count: int) -> Floats:
    """The first `count` rows of the orthonormal DCT-II matrix."""
    angles = np.pi / side * np.outer(np.arange(count), np.arange(side) + 0.5)
    rows: Floats = (np.cos(angles) * np.sqrt(2 / side)).astype(np.float32)
    rows[0] /= np.sqrt(2)
    return rows


def _nearest(similar: Floats) -> NDArray[np.int64]:
    """(R, k) columns of the k largest values of each row. `similar` is overwritten."""
    rows = np.arange(len(similar))
    nearest = np.empty((len(similar), min(NEIGHBOURS, similar.shape[1])), np.int64)
    for rank in range(nearest.shape[1]):
        nearest[:, rank] = similar.argmax(axis=1)
        similar[rows, nearest[:, rank]] = -2
    return nearest


def _are_copies(asked: NDArray[np.uint8], known: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """For each of R thumbnails (R, s, s), whether one of its k nearest (R, k, s, s) is the same picture."""
    left = _standardised(asked.reshape(len(asked), 1, -1))
    right = _standardised(known.reshape(*known.shape[:2], -1))
    residuals = np.sort(1 - (left * right).sum(axis=2), axis=1)  # (R, k)
    first = residuals[:, 0]
    second = residuals[:, 1] if residuals.shape[1] > 1 else np.full_like(first, np.inf)
    alone = (first < LIKELY_RESIDUAL) & (first < LIKELY_RATIO * second)
    copies: NDArray[np.bool_] = (first < SURE_RESIDUAL) | alone
    return copies


def _standardised(thumbnails: NDArray[np.uint8]) -> Floats:
    values = thumbnails.astype(np.float32)
    values -= values.mean(axis=-1, keepdims=True)
    unit: Floats = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-6)
    return unit
