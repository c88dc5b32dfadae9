"""Near neighbours among many unit vectors: they are sorted into cells, and a question looks into its nearest cells.

Approximate: a neighbour in another cell is missed. For vectors as near as those of a changed copy this is rare.
"""

import math

import numpy as np
from numpy.typing import NDArray

from veilset.core.randomness import numpy_generator

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

_BATCH = 8192
_ROUNDS = 2  # of k-means


class Cells:
    """Unit vectors (N, d) in about sqrt(looked_into * N) cells: finding a cell costs what looking into it does."""

    def __init__(self, vectors: Floats, looked_into: int) -> None:
        count = max(1, min(len(vectors), math.isqrt(looked_into * len(vectors))))
        first = numpy_generator(0, "cells").permutation(len(vectors))[:count]
        self._vectors = vectors
        self._centres = vectors[first]
        self._looked_into = min(looked_into, count)
        for _ in range(_ROUNDS):
            sums = np.zeros_like(self._centres)
            np.add.at(sums, self._nearest_cells(vectors, 1)[:, 0], vectors)
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            self._centres = np.where(lengths > 1e-6, sums / np.maximum(lengths, 1e-6), self._centres)
        self._members, self._starts = _sorted_by(self._nearest_cells(vectors, 1)[:, 0], count)

    def nearest(self, questions: Floats) -> tuple[Numbers, Floats]:
        """(Q, p) the nearest vector of each of p cells, -1 where a cell is empty, and (Q, p) its similarity."""
        cells = self._nearest_cells(questions, self._looked_into)
        who = np.full(cells.size, -1, np.int64)
        similar = np.full(cells.size, -1, np.float32)
        asked, starts = _sorted_by(cells.ravel(), len(self._centres))
        for cell in range(len(self._centres)):
            members = self._members[self._starts[cell] : self._starts[cell + 1]]
            places = asked[starts[cell] : starts[cell + 1]]
            if len(members) and len(places):
                products = questions[places // self._looked_into] @ self._vectors[members].T
                best = products.argmax(axis=1)
                who[places] = members[best]
                similar[places] = products[np.arange(len(best)), best]
        return who.reshape(cells.shape), similar.reshape(cells.shape)

    def _nearest_cells(self, vectors: Floats, count: int) -> Numbers:
        cells = np.empty((len(vectors), count), np.int64)
        for start in range(0, len(vectors), _BATCH):
            products = vectors[start : start + _BATCH] @ self._centres.T
            cells[start : start + _BATCH] = largest(products, count)
        return cells


def largest(values: Floats, count: int) -> Numbers:
    """(R, count) columns of the largest values of each row, largest first. `values` is overwritten."""
    rows = np.arange(len(values))
    columns = np.empty((len(values), min(count, values.shape[1])), np.int64)
    for rank in range(columns.shape[1]):
        columns[:, rank] = values.argmax(axis=1)
        values[rows, columns[:, rank]] = -2
    return columns


def _sorted_by(cells: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Places in the order of their cells, and where each cell starts."""
    order = np.argsort(cells, kind="stable")
    return order, np.searchsorted(cells[order], np.arange(count + 1))
