"""Records that stay what they were when somebody looked at them.

A check of public images is worth something only if what it saw is what a method reads later. Arrays can be written to
after the check, files can be exchanged, and a source of one's own may give other images each time.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Images, Labels, Records, Rows


class Compared:
    """Records that remember what a comparison read of them: a row that reads otherwise later is refused."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.shape, self.class_names, self.groups = records.shape, records.class_names, records.groups
        self.labels: Labels = records.labels.copy()
        self._seen: list[bytes | None] = [None] * len(self.labels)
        self.is_done = False

    def read(self, rows: Rows) -> Images:
        """The images of these rows, as they were when they were compared."""
        images = np.asarray(self.records.read(rows))
        for row, image in zip(rows, images, strict=True):
            own = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
            if self._seen[row] is None and not self.is_done:
                self._seen[row] = own
            elif self._seen[row] != own:
                raise InputError(
                    "A public image is not the one that was compared with the private ones: it changed since, or its "
                    "source gives another one each time. Read the public images again."
                )
        return images

    def digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each record's own pixels and label."""
        return self.records.digests()
