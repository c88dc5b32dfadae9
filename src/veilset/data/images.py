"""`ImageSet`: labelled images held in memory, checked once at construction and unchangeable after."""

from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Groups, Images, Labels, Rows
from veilset.data import pixels
from veilset.data.classes import refuse_empty_classes
from veilset.data.groups import checked_groups
from veilset.data.selection import as_rows


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images (N, H, W, C) uint8 with labels 0..K-1, K class names and, where known, the group of each image.

    Labels may be a matrix (N, K) of zeros and ones instead: findings, of which an image may have several or none.

    (N, H, W) becomes one channel and floats in 0..1 become 0..255. The arrays are read-only views: `read` and
    `subset` give copies to work on. `may_lack_classes` allows classes without records, as in a part of a set. `origin`
    says where the images were read from, where they were read.

    >>> import numpy as np
    >>> import veilset as vs
    >>> vs.ImageSet(np.zeros((40, 16, 16), np.uint8), np.arange(40) % 2, ("healthy", "ill"))
    ImageSet(40 images 16x16x1, 2 classes)
    """

    images: Images
    labels: Labels
    class_names: tuple[str, ...] = ()
    groups: Groups | None = None
    may_lack_classes: InitVar[bool] = False
    origin: str | None = field(default=None, kw_only=True)
    _digests: list[NDArray[np.uint8]] = field(default_factory=list, init=False)
    _sources: list[NDArray[np.uint8]] = field(default_factory=list, init=False)

    def __post_init__(self, may_lack_classes: bool) -> None:
        images = _checked_images(self.images)
        labels = _checked_labels(self.labels, len(images))
        names = tuple(str(name) for name in self.class_names)
        names = names or tuple(str(label) for label in range(_class_count(labels)))
        if len(set(names)) < len(names):
            raise InputError(f"Expected distinct class names, got {', '.join(names)}.")
        if labels.ndim == 2 and labels.shape[1] != len(names):
            raise InputError(f"Expected a name for each of {labels.shape[1]} findings, got {len(names)} class names.")
        if labels.ndim == 1 and int(labels.max()) >= len(names):
            raise InputError(f"Label {int(labels.max())} has no name: {len(names)} class names were given.")
        if not may_lack_classes:
            refuse_empty_classes(labels, names)
        groups = None if self.groups is None else checked_groups(self.groups, len(images))
        object.__setattr__(self, "images", _read_only(images))
        object.__setattr__(self, "labels", _read_only(labels))
        object.__setattr__(self, "groups", None if groups is None else _read_only(groups))
        object.__setattr__(self, "class_names", names)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        height, width, channels = self.shape
        grouped = "" if self.groups is None else f", {len(np.unique(self.groups))} groups"
        what = "classes" if self.labels.ndim == 1 else "findings"
        return f"ImageSet({len(self)} images {height}x{width}x{channels}, {len(self.class_names)} {what}{grouped})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        _, height, width, channels = self.images.shape
        return height, width, channels

    def read(self, rows: Rows) -> Images:
        """A copy of the images of these rows."""
        return self.images[as_rows(rows, len(self))]

    def digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each record's own shape, pixels and label; computed at the first call."""
        if not self._digests:
            self._digests.append(_read_only(pixels.digests(self.images, self.labels)))
        return self._digests[0]

    def source_digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each image as its source holds it: before any change of size or colours."""
        if not self._sources:
            joined = b"".join(map(pixels.source_digest, self.images))
            self._sources.append(_read_only(np.frombuffer(joined, np.uint8).reshape(len(self), 32)))
        return self._sources[0]

    def subset(self, rows: Rows) -> "ImageSet":
        """These rows in this order. The class names stay, also those that no longer have a record."""
        rows = as_rows(rows, len(self))
        if len(rows) == 0:
            raise InputError("A part of a set needs at least one record.")
        groups = None if self.groups is None else self.groups[rows]
        part = ImageSet(
            self.images[rows], self.labels[rows], self.class_names, groups, may_lack_classes=True, origin=self.origin
        )
        part._sources.extend(sources[rows] for sources in self._sources)
        return part

    def resize(self, size: int) -> "ImageSet":
        """The same records at `size` x `size` pixels."""
        pixels.check_size(size)
        return self._with_images(pixels.resize(self.images, size, size))

    def with_channels(self, channels: int) -> "ImageSet":
        """The same records in grey (1) or colour (3)."""
        return self._with_images(pixels.to_channels(self.images, channels))

    def _with_images(self, images: Images) -> "ImageSet":
        changed = ImageSet(
            images, self.labels, self.class_names, self.groups, may_lack_classes=True, origin=self.origin
        )
        changed._sources.append(self.source_digests())
        return changed


def _checked_images(images: Any) -> Images:
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise InputError("The images differ in shape. Bring them to one size before making a set.") from error
    if array.dtype != object and array.ndim == 3:
        array = array[..., None]
    if array.dtype != object and (array.ndim != 4 or array.shape[3] not in (1, 3)):
        raise InputError(f"Expected images of shape (N, H, W) or (N, H, W, C) with C = 1 or 3, got {np.shape(images)}.")
    if array.dtype != object and array.size == 0:
        raise InputError(f"The set holds no pixels: its images have shape {np.shape(images)}.")
    return pixels.as_uint8(array)


def _checked_labels(labels: Any, count: int) -> Labels:
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise InputError(f"Expected integer labels 0..K-1, got dtype {array.dtype}.")
    if array.ndim not in (1, 2) or len(array) != count or array.size == 0:
        raise InputError(f"Expected one label for each of {count} images, got labels of shape {array.shape}.")
    if array.ndim == 2 and not np.isin(array, (0, 1)).all():
        raise InputError("Expected findings (N, F) of zeros and ones, got other numbers. Decide what -1 means first.")
    if int(array.min()) < 0 or int(array.max()) > np.iinfo(np.int64).max:
        raise InputError("Expected integer labels 0..K-1, got one that is negative or above 2^63.")
    return array.astype(np.int64, copy=False)


def _class_count(labels: Labels) -> int:
    if labels.ndim == 2:
        return int(labels.shape[1])
    distinct = np.unique(labels)
    largest = int(distinct[-1])
    if largest >= 2 * len(distinct) + 1000:  # a stray id, not a class: do not list a million empty classes
        raise InputError(f"Expected labels 0..{len(distinct) - 1} for {len(distinct)} classes, got {largest}.")
    return largest + 1


def _read_only(array: NDArray[Any]) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view
