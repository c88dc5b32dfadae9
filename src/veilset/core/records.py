"""What the vault and the readers agree on: labelled images that can be read by row number."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]  # (N, H, W, C)
Labels = NDArray[np.int64]  # (N,) classes, or (N, F) zeros and ones: findings, several of which may be true
Groups = NDArray[np.int64] | NDArray[np.str_]  # (N,): to whom each image belongs, e.g. a patient number
Rows = NDArray[np.int64]  # (k,): row numbers


class Records(Protocol):
    """Labelled images, in memory or on disk. `read` may be slow; the other fields are held in memory."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""

    @property
    def labels(self) -> Labels:
        """The class of each image, 0..K-1, or its findings, (N, F) of 0 and 1."""

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class or finding."""

    def read(self, rows: Rows) -> Images:
        """The images of these rows."""

    def digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each record's own pixels and label: its stable id, whatever else the set holds."""

    # A reader also has `origin`, where it read from (text or None), and `source_digests()`, (N, 32) SHA-256 of each
    # image as the source holds it, whatever its size, colours and label are here. They find the data's account.
