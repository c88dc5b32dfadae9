"""Records out of Python: arrays, torch datasets of (image, label), and Hugging Face datasets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.data.classes import index_labels
from veilset.data.images import ImageSet


def from_arrays(images: Any, labels: Any, *, class_names: Sequence[str] = (), groups: Any = None) -> ImageSet:
    """Images (N, H, W) or (N, H, W, C), bytes or floats in 0..1, with labels 0..K-1; lists and tensors, too."""
    given = None if groups is None else np.asarray(groups)
    return ImageSet(np.asarray(images), np.asarray(labels), tuple(class_names), groups=given)


def from_dataset(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    groups: Any = None,
    class_names: Sequence[str] = (),
) -> ImageSet:
    """A torch dataset of (image, label), or a Hugging Face dataset with the columns `image`, `label` and `groups`.

    Images are PIL images, arrays (H, W[, C]) or torch tensors (C, H, W), all of one size. Labels are numbers 0..K-1,
    names, or lists of zeros and ones (findings). `groups` is the name of a column, or one owner for each image. It is
    read into memory.
    """
    features = _features(dataset, groups)
    named = groups if isinstance(groups, str) else None
    for column in (image, label, named) if features is not None else ():
        if column is not None and column not in features:
            raise InputError(f"The dataset has no column {column!r}. Its columns: {', '.join(features)}.")
    pixels, classes, owners = [], [], []
    for index in range(len(dataset)):
        item = dataset[index]
        if features is None and not (isinstance(item, tuple | list) and len(item) >= 2):
            raise InputError(f"Expected items (image, label), item {index} is a {type(item).__name__}.")
        found, value = (item[0], item[1]) if features is None else (item[image], item[label])
        pixels.append(_pixels(found))
        classes.append(value)
        if named is not None:
            owners.append(str(item[named]))
    if len({each.shape for each in pixels}) > 1:
        raise InputError("Expected images of one size and one number of channels. Resize them in the dataset first.")
    if not pixels:
        raise InputError("Expected at least one record, found none.")
    names = class_names or getattr(features[label] if features is not None else dataset, "names", None)
    names = tuple(map(str, names or getattr(dataset, "classes", None) or ()))
    labels = _labels(classes)
    if labels.dtype.kind == "U":
        labels, names = index_labels(labels, tuple(class_names) or None)
    given = owners if named is not None else groups
    return ImageSet(np.stack(pixels), labels, names, groups=None if given is None else np.asarray(given))


def _features(dataset: Any, groups: Any) -> Any:
    """The columns of a Hugging Face dataset; None for a torch dataset."""
    if isinstance(dataset, str) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError(
            f"Expected a dataset with a length and items, got {type(dataset).__name__}. Use Vault.open for paths."
        )
    if isinstance(dataset, dict):
        splits = ", ".join(map(str, dataset))
        raise InputError(f"Expected one dataset, got a {type(dataset).__name__} of {splits}. Pass one of them.")
    features = getattr(dataset, "features", None)
    if features is None and isinstance(groups, str):
        raise InputError("A torch dataset has no columns. Pass groups as a list, one owner for each image.")
    return features


def _labels(values: list[Any]) -> NDArray[Any]:
    """Class numbers, names, or rows of zeros and ones."""
    try:
        array: NDArray[Any] = np.asarray([np.asarray(value) for value in values])
    except ValueError as error:
        raise InputError("The labels differ in length. Give each image one class, or all its findings.") from error
    if array.dtype.kind not in "iuU":
        raise InputError(f"Expected labels as class numbers 0..K-1 or as names, got {array.dtype}.")
    return array


def _pixels(image: Any) -> NDArray[Any]:
    """One image as (H, W) or (H, W, C); torch has channels first."""
    array: NDArray[Any] = np.asarray(image)
    is_tensor = type(image).__module__.partition(".")[0] == "torch"
    return np.moveaxis(array, 0, -1) if is_tensor and array.ndim == 3 else array
