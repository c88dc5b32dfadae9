"""One encoded image file to pixels, by Pillow, with everything odd refused or made plain.

Grey stays grey and all else becomes RGB. EXIF orientation is applied. Transparency is laid over white, as viewers
show it. 16-bit images keep their high byte on the fixed scale 0..65535: no stretching by an image's own maximum.
"""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from veilset.core.errors import InputError
from veilset.core.records import Images
from veilset.data import pixels

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
LARGEST_PIXELS = 64 * 10**6
# Named so that a .png that is really PostScript never reaches a decoder that runs a program.
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
_GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N", "I")


class UndecodableError(InputError):
    """The bytes are not an image that can be used; the message is the reason alone."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What decoded images are brought to. None keeps what the file has."""

    size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            pixels.check_size(self.size)
        if self.channels is not None:
            pixels.check_channels(self.channels)


def in_form(image: Images, form: Form) -> Images:
    """A decoded image in the wanted colours and size."""
    if form.channels is not None:
        image = pixels.to_channels(image[None], form.channels)[0]
    if form.size is not None:
        image = pixels.resize_one(image, form.size, form.size)
    return np.ascontiguousarray(image)


def decode_plain(encoded: bytes) -> Images:
    """(H, W, C) pixels of one file's content, as it is. Raises `UndecodableError` with the reason."""
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as picture:
            _refuse_odd(picture)
            return _plain(ImageOps.exif_transpose(picture))
    except UndecodableError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UndecodableError(f"more than {LARGEST_PIXELS:,} pixels, like a decompression bomb") from error
    except UnidentifiedImageError as error:
        raise UndecodableError("not an image of a known format") from error
    except Exception as error:  # Pillow's decoders raise nearly every type on damaged files
        raise UndecodableError(f"damaged: {error}") from error


def _refuse_odd(picture: Image.Image) -> None:
    width, height = picture.size
    if width * height > LARGEST_PIXELS:
        raise UndecodableError(f"more than {LARGEST_PIXELS:,} pixels, like a decompression bomb")
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # phones put a preview behind the photo of an MPO
        raise UndecodableError(f"{frames} frames where one image is expected")


def _plain(picture: Image.Image) -> Images:
    """(H, W, 1 or 3) uint8."""
    if picture.mode in _GREY_16:
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise UndecodableError("32-bit values; 8 or 16 bits are read")
        return (values >> 8).astype(np.uint8)[..., None]
    if picture.mode == "F":
        raise UndecodableError("floating-point values; 8 or 16 bits are read")
    if picture.mode in ("1", "L") and "transparency" not in picture.info:
        return np.asarray(picture.convert("L"))[..., None]
    if picture.has_transparency_data:
        is_grey = picture.mode in ("1", "L", "LA", "La")
        over = picture.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, over).convert("L" if is_grey else "RGB")
        return np.asarray(picture).reshape(picture.height, picture.width, -1)
    return np.asarray(picture.convert("RGB"))
