"""Records of another source in the order of classes of a release: by name, never by position."""

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Groups, Images, Labels, Records, Rows

_SHOWN = 5


def in_class_order(records: Records, class_names: tuple[str, ...], whose: str) -> Records:
    """The same records with labels in the order of `class_names`.

    Names that are only the numbers 0..K-1, on either side, say nothing and are matched by number. Other names must be
    the same ones, in any order. A wrong number of classes is left to whoever uses the records.
    """
    found, wanted = tuple(records.class_names), tuple(class_names)
    numbers = tuple(str(number) for number in range(len(wanted)))
    if found == wanted or len(found) != len(wanted) or numbers in (found, wanted):
        return records
    if set(found) != set(wanted) or len(set(found)) < len(found):
        raise InputError(
            f"The classes of {whose} are {_shown(found)}, those of the release {_shown(wanted)}. Pass --classes with "
            "the labels of the release, in its order."
        )
    return _Reordered(records, wanted)


class _Reordered:
    """Records whose classes have other numbers; everything else is theirs."""

    def __init__(self, records: Records, class_names: tuple[str, ...]) -> None:
        number = np.array([class_names.index(name) for name in records.class_names], dtype=np.int64)
        labels = records.labels[:, np.argsort(number)] if records.labels.ndim == 2 else number[records.labels]
        self._records, self._names, self._labels = records, class_names, labels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self._records.shape

    @property
    def labels(self) -> Labels:
        """The class of each image, in the new order."""
        return self._labels

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""
        return self._records.groups

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class, in the new order."""
        return self._names

    @property
    def origin(self) -> str | None:
        """Where the records were read from, where that is known."""
        return getattr(self._records, "origin", None)

    def read(self, rows: Rows) -> Images:
        """The images of these rows."""
        return self._records.read(rows)

    def digests(self) -> NDArray[np.uint8]:
        """The records' own, with the labels that the source gives them: an id does not change with an order."""
        return self._records.digests()

    def source_digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each image as its source holds it, where the source says so."""
        whole: NDArray[np.uint8] = getattr(self._records, "source_digests", self._records.digests)()
        return whole


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
