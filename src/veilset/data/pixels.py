"""Pixels of one image or a batch: from floats, between grey and colour, to another size, and their digest."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veilset.core.errors import InputError
from veilset.core.records import Images, Labels

LARGEST_SIZE = 4096
# ITU-R 601 luma in 16-bit fixed point: what Pillow's convert("L") computes, so memory and disk agree to the bit.
_LUMA = np.array([19595, 38470, 7471], np.uint32)


def as_uint8(images: NDArray[np.generic]) -> Images:
    """Take uint8 as it is and floats in 0..1 as fractions of 255; refuse everything else."""
    if images.dtype == np.uint8:
        return images.view(np.uint8)
    if images.dtype == object:
        raise InputError("The images are Python objects, not numbers. Save them as one uint8 array (N, H, W, C).")
    if not np.issubdtype(images.dtype, np.floating):
        raise InputError(
            f"Expected images of dtype uint8, or floats in 0..1, got {images.dtype}. "
            "Convert them with images.astype('uint8') if they hold 0..255."
        )
    low, high = float(np.min(images)), float(np.max(images))  # NaN passes through min and max
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError("The images hold NaN or infinite values. Remove or repair those records.")
    if low < 0 or high > 1:
        raise InputError(
            "Expected float images in 0..1, got values outside. Rescale them, or pass uint8 images of 0..255."
        )
    converted: Images = np.rint(images.astype(np.float32, copy=False) * np.float32(255)).astype(np.uint8)
    return converted


def to_channels(images: Images, channels: int) -> Images:
    """(N, H, W, C) with C = `channels`: grey by luma, colour by repetition."""
    check_channels(channels)
    if images.shape[-1] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=-1)
    grey: Images = ((images @ _LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]
    return grey


def resize(images: Images, height: int, width: int) -> Images:
    """Resample each image by Pillow's antialiased bicubic filter; the aspect ratio is not kept."""
    if images.shape[1:3] == (height, width):
        return images
    resized = np.empty((len(images), height, width, images.shape[3]), np.uint8)
    for row, image in enumerate(images):
        resized[row] = resize_one(image, height, width)
    return resized


def resize_one(image: Images, height: int, width: int) -> Images:
    """The same for one (H, W, C) image."""
    if image.shape[:2] == (height, width):
        return image
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    resampled = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
    return resampled.reshape(height, width, image.shape[2])


def check_size(size: int) -> None:
    """Refuse a size that no image can have."""
    if not 1 <= size <= LARGEST_SIZE:
        raise InputError(f"Expected a size from 1 to {LARGEST_SIZE}, got {size}. Pass --size 32, for example.")


def check_channels(channels: int) -> None:
    """Refuse anything but grey and colour."""
    if channels not in (1, 3):
        raise InputError(f"Expected 1 channel (grey) or 3 (colour), got {channels}. Pass --channels 1 or 3.")


def digest(image: Images, label: Any) -> bytes:
    """SHA-256 of one record's shape, label (its class, or all its findings) and pixels: its id in any set."""
    header = np.array([*image.shape, *np.atleast_1d(label)], "<i8").tobytes()
    return hashlib.sha256(header + image.tobytes()).digest()


def source_digest(image: NDArray[Any]) -> bytes:
    """SHA-256 of one image's shape and pixels: what the source holds, whatever label it is given."""
    return hashlib.sha256(np.array(image.shape, "<i8").tobytes() + image.tobytes()).digest()


def digests(images: Images, labels: Labels) -> NDArray[np.uint8]:
    """(N, 32) `digest` of each record."""
    joined = b"".join(digest(image, label) for image, label in zip(images, labels, strict=True))
    return np.frombuffer(joined, np.uint8).reshape(len(images), 32)
