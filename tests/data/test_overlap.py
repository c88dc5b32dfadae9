import io

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data import ImageSet, open_images, refuse_overlap
from veilset.data.overlap import count_overlap
from veilset.data.selection import key_of, part_of_each


def unlabelled(images: np.ndarray) -> ImageSet:
    return ImageSet(images, np.zeros(len(images), np.int64))


def jpeg(image: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=75)
    return np.asarray(Image.open(buffer))


def resized(image: np.ndarray, size: int, how: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((size, size), how))


CHANGES = {
    "none": lambda image: image,
    "jpeg": jpeg,
    "brighter": lambda image: np.clip(image.astype(int) + 20, 0, 255).astype(np.uint8),
    "more contrast": lambda image: np.clip(image * 1.1, 0, 255).astype(np.uint8),
    "28 pixels": lambda image: resized(image, 28, Image.Resampling.BICUBIC),
    "24 pixels": lambda image: resized(image, 24, Image.Resampling.BILINEAR),
    "40 pixels": lambda image: resized(image, 40, Image.Resampling.BICUBIC),
    "grey": lambda image: np.asarray(Image.fromarray(image).convert("L")),
    "colour": lambda image: np.asarray(Image.fromarray(image).convert("RGB")),
}


TURNS = {
    "left-right": lambda image: image[:, ::-1],
    "up-down": lambda image: image[::-1],
    "quarter": lambda image: np.rot90(image),
    "half": lambda image: np.rot90(image, 2),
    "three quarters": lambda image: np.rot90(image, 3),
    "swapped": lambda image: image.swapaxes(0, 1),
}


def cropped(image: np.ndarray, top: float, bottom: float, left: float, right: float) -> np.ndarray:
    height, width = image.shape[:2]
    box = (round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height))
    return np.asarray(Image.fromarray(image).crop(box).resize((width, height), Image.Resampling.BICUBIC))


CROPS = {
    "all sides": (0.05, 0.05, 0.05, 0.05),
    "all sides, much": (0.12, 0.12, 0.12, 0.12),
    "top": (0.12, 0.0, 0.0, 0.0),
    "right": (0.0, 0.0, 0.0, 0.1),
    "corner": (0.1, 0.0, 0.1, 0.0),
    "off the middle": (0.08, 0.04, 0.0, 0.12),
}


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return open_images("builtin:mnist5k").images[..., 0]


@pytest.fixture(scope="module")
def photos() -> np.ndarray:
    return open_images("builtin:photos").images


@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_digits_are_caught(digits, change):
    copies = np.stack([CHANGES[change](image) for image in digits[::50]])
    assert count_overlap(unlabelled(digits), unlabelled(copies)) >= 0.97 * len(copies)


@pytest.mark.parametrize("change", CHANGES)
def test_copies_of_photos_are_caught(photos, change):
    copies = np.stack([CHANGES[change](image) for image in photos[::6]])
    assert count_overlap(unlabelled(photos), unlabelled(copies)) >= 0.8 * len(copies)  # a third is grass, gravel, sky


@pytest.mark.parametrize("turn", TURNS)
def test_turned_copies_are_caught(digits, photos, turn):
    copies = np.stack([jpeg(np.ascontiguousarray(TURNS[turn](image))) for image in digits[::50]])
    assert count_overlap(unlabelled(digits), unlabelled(copies)) >= 0.95 * len(copies)
    coloured = np.stack([TURNS[turn](image) for image in photos[::6]])
    assert count_overlap(unlabelled(photos), unlabelled(coloured)) >= 0.95 * len(coloured)


@pytest.mark.parametrize("crop", CROPS)
def test_small_crops_are_caught(digits, photos, crop):
    copies = np.stack([cropped(image, *CROPS[crop]) for image in digits[::50]])
    assert count_overlap(unlabelled(digits), unlabelled(copies)) >= 0.9 * len(copies)
    coloured = np.stack([cropped(image, *CROPS[crop]) for image in photos[::6]])
    assert count_overlap(unlabelled(photos), unlabelled(coloured)) >= 0.7 * len(coloured)


@pytest.mark.parametrize("kind", ["turned", "cropped"])
def test_one_changed_copy_among_others_is_enough(digits, photos, kind):
    grey = unlabelled(photos).with_channels(1).resize(28).images
    changed = np.rot90(digits[7]) if kind == "turned" else cropped(digits[7], 0.1, 0.0, 0.0, 0.1)
    public = np.concatenate([grey[:100], changed[None, ..., None], grey[100:]])
    assert count_overlap(unlabelled(digits), unlabelled(public)) == 1


def test_one_copy_among_others_stops_the_run_without_saying_which(digits, photos):
    grey = unlabelled(photos).with_channels(1).resize(28).images
    public = np.concatenate([grey[:100], jpeg(digits[7])[None, ..., None], grey[100:]])
    with pytest.raises(InputError, match=r"^1 of 601 public images coincide with private ones") as caught:
        refuse_overlap(unlabelled(digits), unlabelled(public))
    assert "100" not in str(caught.value)


def test_other_images_pass(digits, photos):
    refuse_overlap(unlabelled(digits[::2]), unlabelled(digits[1::2]))
    refuse_overlap(unlabelled(digits), unlabelled(photos))
    refuse_overlap(unlabelled(photos), unlabelled(digits))


def test_blank_images_are_nobodys(digits):
    blank = np.repeat(np.arange(0, 250, 50, dtype=np.uint8), 28 * 28).reshape(5, 28, 28)
    refuse_overlap(unlabelled(np.concatenate([digits[:5], blank])), unlabelled(blank))


def test_faint_images_count_only_to_the_bit():
    faint = np.full((2, 16, 16), 10, np.uint8)
    faint[:, 0, 0] = 11
    faint[1, 5, 5] = 11
    refuse_overlap(unlabelled(faint[:1]), unlabelled(faint[1:]))
    assert count_overlap(unlabelled(faint[:1]), unlabelled(faint)) == 1


def test_streamed_sources_are_compared(tmp_path, digits):
    for row, image in enumerate(digits[:6]):
        (tmp_path / str(row % 2)).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / str(row % 2) / f"{row}.png")
    assert count_overlap(unlabelled(digits), open_images(tmp_path, size=32)) == 6


@pytest.mark.data
@pytest.mark.parametrize(
    ("private", "public"),
    [
        ("mnist.npz:train", "mnist.npz:test"),
        ("mnist.npz:test", "fashion_mnist.npz:test"),
        ("celeba_32.npz:train", "celeba_32.npz:test"),
        ("chest_xray_64.npz:train", "chest_xray_64.npz:test"),
        ("chest_xray_64.npz:test", "tinyimagenet_32.npz:test"),
    ],
)
def test_real_sets_without_common_images_pass(data_dir, private, public):
    refuse_overlap(open_images(data_dir / private), open_images(data_dir / public))


@pytest.mark.data
@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar_and_tiny_imagenet_share_a_photograph_that_was_cropped(data_dir, split):
    """A cat in one, a frog in the other: the same photographs, as one sees on looking at them."""
    public = open_images(data_dir / "tinyimagenet_32.npz:train")
    assert count_overlap(open_images(data_dir / f"cifar10_15k.npz:{split}"), public) == 1


@pytest.mark.data
def test_halves_by_patient_pass(data_dir):
    records = open_images(data_dir / "chest_xray_64.npz:train", groups="patients")
    parts = part_of_each(records, 2, key_of(0, "halves"))
    refuse_overlap(*(records.subset(np.flatnonzero(parts == part)) for part in range(2)))


@pytest.mark.data
def test_every_built_in_digit_is_found_in_mnist(data_dir):
    assert count_overlap(open_images(data_dir / "mnist.npz:train"), open_images("builtin:mnist5k")) == 5000


@pytest.mark.data
def test_fashion_mnist_is_reported_to_hold_a_few_near_copies(data_dir):
    train, test = (open_images(data_dir / f"fashion_mnist.npz:{split}") for split in ("train", "test"))
    assert 5 <= count_overlap(train, test) <= 50
