import io

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data import decoding
from veilset.data.decoding import Form, UndecodableError, decode_plain, in_form

AS_IS = Form()
GREY = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
COLOUR = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)


def encode(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def decode(encoded: bytes, form: Form) -> np.ndarray:
    return in_form(decode_plain(encoded), form)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
@pytest.mark.parametrize("array", [GREY, COLOUR])
def test_lossless_formats_come_back(kind, array):
    np.testing.assert_array_equal(decode(encode(Image.fromarray(array), kind), AS_IS), array.reshape(3, 4, -1))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_come_near(kind):
    flat = np.full((16, 16, 3), 90, np.uint8)
    assert np.abs(decode(encode(Image.fromarray(flat), kind), AS_IS).astype(int) - 90).max() < 6


def test_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    decoded = decode(encode(Image.fromarray(GREY), "PNG", exif=exif), AS_IS)
    np.testing.assert_array_equal(decoded[..., 0], np.rot90(GREY, -1))


def test_palette_one_bit_and_cmyk_become_plain():
    assert decode(encode(Image.fromarray(COLOUR).convert("P")), AS_IS).shape == (3, 4, 3)
    assert set(np.unique(decode(encode(Image.fromarray(GREY).convert("1")), AS_IS))) <= {0, 255}
    assert decode(encode(Image.fromarray(COLOUR).convert("CMYK"), "TIFF"), AS_IS).shape == (3, 4, 3)


def test_transparency_is_laid_over_white():
    alpha = np.zeros((3, 4), np.uint8)
    alpha[0] = 255
    colour = decode(encode(Image.fromarray(np.dstack([COLOUR, alpha]))), AS_IS)
    np.testing.assert_array_equal(colour[0], COLOUR[0])
    assert (colour[1:] == 255).all()
    grey = decode(encode(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])), AS_IS)
    assert grey.shape == (3, 4, 1)
    np.testing.assert_array_equal(grey[0, :, 0], GREY[0])
    assert (grey[1:] == 255).all()


def test_a_transparent_palette_is_laid_over_white():
    picture = Image.fromarray(COLOUR).quantize(8)
    decoded = decode(encode(picture, transparency=bytes([0] * 8)), AS_IS)
    assert (decoded == 255).all()


def test_16_bits_keep_their_high_byte():
    values = np.array([[0, 255, 256, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert decode(encode(Image.fromarray(values), kind), AS_IS).ravel().tolist() == [0, 0, 1, 255]


def test_form_is_channels_first_then_size():
    assert decode(encode(Image.fromarray(COLOUR)), Form(size=8, channels=1)).shape == (8, 8, 1)
    assert decode(encode(Image.fromarray(GREY)), Form(channels=3)).shape == (3, 4, 3)
    with pytest.raises(InputError, match="Expected a size"):
        Form(size=0)
    with pytest.raises(InputError, match="Pass --channels 1 or 3"):
        Form(channels=4)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (encode(Image.fromarray(COLOUR))[:-40], "damaged"),
        (
            encode(Image.fromarray(np.random.default_rng(0).integers(0, 9, (64, 64, 3), np.uint8)), "JPEG")[:400],
            "damaged",
        ),
        (encode(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "floating-point"),
        (encode(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"), "32-bit"),
        (encode(Image.fromarray(GREY), "TIFF", save_all=True, append_images=[Image.fromarray(GREY)]), "2 frames"),
    ],
)
def test_what_cannot_be_used_is_refused(encoded, reason):
    with pytest.raises(UndecodableError, match=reason):
        decode(encoded, AS_IS)


def test_bombs_are_refused(monkeypatch):
    encoded = encode(Image.fromarray(np.zeros((100, 100), np.uint8)))
    monkeypatch.setattr(decoding, "LARGEST_PIXELS", 9999)
    with pytest.raises(UndecodableError, match="bomb"):
        decode(encoded, AS_IS)
    for pixels in (9000, 4000):  # Pillow itself warns above its limit and fails above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
        with pytest.raises(UndecodableError, match="bomb"):
            decode(encoded, AS_IS)
