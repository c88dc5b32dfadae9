"""Is a picture a small crop of a known one, brought back to its old size? Found in two steps.

1. Low frequencies of the middle of each known picture, which every small crop still shows, are compared with those
   of the place where that middle would lie in the picture, had it been cropped in each of 132 ways (data/cells.py).
2. The few nearest pairs are aligned: the cuts that make the known picture most like the other are found by
   Gauss-Newton steps, as in image registration (Lucas and Kanade 1981). What is left of the difference decides.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from veilset.data.cells import Cells, Floats, Numbers

Thumbnails = NDArray[np.uint8]  # (N, side, side)

CANDIDATES = 4
FAR = np.float32(2.0)  # the residual where there is nothing to compare with: more than any
_CUTS = (0.0, 0.04, 0.08, 0.12)  # shares of a side; alignment reaches a little further
_MOST_STRETCHED = 0.05  # by how much the two axes may differ in what was cut, unless one side alone was
_MIDDLE = 0.15  # what lies this far from the border is in every crop
_POINTS = 24  # across the middle
_FREQUENCIES = 5
_LEAST_SIMILAR = 0.9
_CELLS = 3  # looked into
_STAGES = ((0, 0.4), (1, 0.2), (3, 0.0))  # steps of Gauss-Newton, and below which residual a pair gets more
_BATCH = 256


def cropped_residuals(asked: Thumbnails, known: Thumbnails) -> Iterator[tuple[int, Floats]]:
    """For batches of asked pictures: their number, and residuals (b, k) to the k nearest known ones, smallest first.

    A residual is 1 - correlation with the known picture, cut as fits best.
    """
    cells = Cells(_unit(_frequencies(_line(known.shape[1], 0.0, 0.0), known)), _CELLS)
    ways = _ways()
    for start in range(0, len(asked), _BATCH):
        part = asked[start : start + _BATCH]
        who, way = _candidates(cells, part, ways)
        rows, ranks = np.nonzero(who >= 0)
        residuals = np.full(who.shape, FAR, np.float32)
        cuts = np.array(ways, np.float32)[way[rows, ranks]]
        residuals[rows, ranks] = _aligned(part[rows], known[who[rows, ranks]], cuts)
        yield len(part), np.sort(residuals, axis=1)


def _ways() -> list[tuple[float, float, float, float]]:
    """Top, bottom, left and right cut of each crop that is tried."""
    ways = itertools.product(_CUTS, repeat=4)
    return [
        (top, bottom, left, right)
        for top, bottom, left, right in ways
        if abs(top + bottom - left - right) < _MOST_STRETCHED or sum(map(bool, (top, bottom, left, right))) == 1
    ]


def _candidates(
    cells: Cells, part: Thumbnails, ways: list[tuple[float, float, float, float]]
) -> tuple[Numbers, Numbers]:
    """(b, CANDIDATES) different known pictures, nearest first, -1 for none, and the way in which each came near."""
    pairs = list(itertools.product(_CUTS, repeat=2))
    places = {pair: place for place, pair in enumerate(pairs)}
    lines = np.concatenate([_line(part.shape[1], *pair) for pair in pairs])
    found = _frequencies(lines, part).reshape(len(part), len(pairs), _FREQUENCIES, len(pairs), _FREQUENCIES)
    rows = [places[way[:2]] for way in ways]
    columns = [places[way[2:]] for way in ways]
    questions = _unit(found.transpose(0, 1, 3, 2, 4)[:, rows, columns].reshape(len(part) * len(ways), -1))
    known, similar = cells.nearest(questions)
    known, similar = known.reshape(len(part), -1), similar.reshape(len(part), -1)
    who = np.full((len(part), CANDIDATES), -1, np.int64)
    way = np.zeros_like(who)
    every = np.arange(len(part))
    for rank in range(CANDIDATES):
        best = similar.argmax(axis=1)
        near = similar[every, best] > _LEAST_SIMILAR
        who[near, rank] = known[every, best][near]
        way[:, rank] = best * len(ways) // known.shape[1]
        similar[known == known[every, best][:, None]] = -1
    return who, way


def _aligned(asked: Thumbnails, known: Thumbnails, cuts: Floats) -> Floats:
    """(P,) residuals of pairs (P, side, side) after alignment that starts at `cuts` (P, 4)."""
    residuals = np.empty(len(asked), np.float32)
    for start in range(0, len(asked), _BATCH):
        batch = slice(start, start + _BATCH)
        left, right, at = asked[batch].astype(np.float32), known[batch].astype(np.float32), cuts[batch]
        near = np.arange(start, start + len(left))
        for steps, largest in _STAGES:
            residuals[near], at = _steps(left, right, at, steps)
            more = residuals[near] < largest
            if not more.any():
                break
            near, left, right, at = near[more], left[more], right[more], at[more]
    return residuals


def _steps(asked: Floats, known: Floats, cuts: Floats, count: int) -> tuple[Floats, Floats]:
    """The smallest residuals (P,) on the way, and the cuts (P, 4) at its end."""
    best = np.full(len(asked), FAR, np.float32)
    place = ((np.arange(asked.shape[1]) + 0.5) / asked.shape[1]).astype(np.float32)
    target = standardised(asked)
    for step in range(count + 1):
        vertical, down = _sampling(cuts[:, 0], cuts[:, 1], place)
        horizontal, across = _sampling(cuts[:, 2], cuts[:, 3], place)
        rows: Floats = vertical @ known
        seen: Floats = rows @ horizontal.transpose(0, 2, 1)
        best = np.minimum(best, 1 - np.multiply(target, standardised(seen)).sum(axis=(1, 2)))
        if step == count:
            break
        by_row = (down @ known) @ horizontal.transpose(0, 2, 1)  # how pixels change when the window moves down
        by_column = rows @ across.transpose(0, 2, 1)
        changes = [by_row * (1 - place)[:, None], -by_row * place[:, None], by_column * (1 - place), -by_column * place]
        slopes = np.stack([*changes, seen, np.ones_like(seen)], axis=1).reshape(len(seen), 6, -1)
        normal = (slopes @ slopes.transpose(0, 2, 1)).astype(np.float64)
        damping = 1e-3 * np.trace(normal[:, :4, :4], axis1=1, axis2=2) / 4 + 1e-3
        normal[:, range(6), range(6)] += damping[:, None] * [1, 1, 1, 1, 0, 0] + [0, 0, 0, 0, 1e-3, 1e-3]
        right = slopes @ (asked - seen).reshape(len(seen), -1, 1)
        moves = np.linalg.solve(normal, right.astype(np.float64))[:, :4, 0].clip(-0.04, 0.04)
        cuts = (cuts + moves).clip(-0.02, 0.2).astype(np.float32)
    return best, cuts


def _sampling(first: Floats, last: Floats, place: Floats) -> tuple[Floats, Floats]:
    """(P, side, side) rows that read a line between its cuts, linearly, and their change with the place."""
    side = len(place)
    at = (first[:, None] + place * (1 - first - last)[:, None]) * side - 0.5
    at = at.clip(0, side - 1.001)
    low = at.astype(np.int64)[..., None]
    share = (at - low[..., 0])[..., None]
    reading = np.zeros((len(first), side, side), np.float32)
    change = np.zeros_like(reading)
    for offset, weight, slope in ((0, 1 - share, -side), (1, share, side)):
        np.put_along_axis(reading, low + offset, weight, axis=2)
        np.put_along_axis(change, low + offset, np.float32(slope), axis=2)
    return reading, change


def _line(side: int, first: float, last: float) -> Floats:
    """(FREQUENCIES, side): the low frequencies of the middle of a line that shows what was left between the cuts."""
    middle = _MIDDLE + (1 - 2 * _MIDDLE) * (np.arange(_POINTS) + 0.5) / _POINTS
    place = (middle - first) / (1 - first - last)
    at = (place * side - 0.5).clip(0, side - 1.001)
    low = at.astype(np.int64)
    reading = np.zeros((_POINTS, side), np.float32)
    reading[np.arange(_POINTS), low] = 1 - (at - low)
    reading[np.arange(_POINTS), low + 1] = at - low
    return cosines(_POINTS, _FREQUENCIES) @ reading


def _frequencies(lines: Floats, thumbnails: Thumbnails) -> Floats:
    """(N, R, R) for R lines."""
    found = np.empty((len(thumbnails), len(lines), len(lines)), np.float32)
    for start in range(0, len(thumbnails), _BATCH):
        found[start : start + _BATCH] = lines @ thumbnails[start : start + _BATCH].astype(np.float32) @ lines.T
    return found


def _unit(frequencies: Floats) -> Floats:
    """Unit vectors of all frequencies but the mean; a blank picture becomes zero, which is near to nothing."""
    flat = frequencies.reshape(len(frequencies), -1)[:, 1:]
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    return np.where(lengths > _POINTS, flat / np.maximum(lengths, 1e-6), np.float32(0))


def cosines(side: int, count: int) -> Floats:
    """The first `count` rows of the orthonormal DCT-II matrix."""
    angles = np.pi / side * np.outer(np.arange(count), np.arange(side) + 0.5)
    rows: Floats = (np.cos(angles) * np.sqrt(2 / side)).astype(np.float32)
    rows[0] /= np.sqrt(2)
    return rows


def standardised(pictures: Floats) -> Floats:
    """Pictures (..., side, side) of mean 0 and length 1."""
    centred = pictures - pictures.mean(axis=(-2, -1), keepdims=True)
    unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=(-2, -1), keepdims=True), 1e-6)
    return unit
