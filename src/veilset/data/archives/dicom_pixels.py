"""Pixels of one DICOM frame as 8-bit images, by rules that look at this one file alone.

The steps are those of the standard (PS3.3 C.11): rescale slope and intercept or a modality LUT; then the window that
the custodian names for all, else the file's VOI LUT, else its first window, else the range of the bits stored;
MONOCHROME1 is turned over at the end. Colours become RGB. Overlays and presentation states are not drawn.

Errors give reasons in our own words: pydicom's texts and warnings quote values of tags.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.records import Images
from veilset.data.decoding import LARGEST_PIXELS, UndecodableError
from veilset.data.optional import require
from veilset.data.streaming import Picture

_GREY = ("MONOCHROME1", "MONOCHROME2")
_SHARED, _PER_FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_META_BYTES = 2048  # in which a file says how it is stored
_QUIET = ("pydicom", "veilset.data.archives")
BY_WINDOW, BY_LUT, BY_FILE, BY_BITS = (
    "by --window",
    "by the file's VOI LUT",
    "by the file's window",
    "by the bits stored",
)

Window = tuple[float, float]


def quietly() -> None:
    """Silence pydicom, whose warnings quote values of tags. Called before each use: tests and users reset filters."""
    logging.getLogger("pydicom").setLevel(logging.CRITICAL + 1)
    there = {getattr(where, "pattern", None) for action, _, _, where, _ in warnings.filters if action == "ignore"}
    for module in _QUIET:
        if module not in there:
            warnings.filterwarnings("ignore", module=module)


def undecodable(dataset: Any) -> str:
    """Why the pixels behind a header cannot be read, as far as the header tells; empty where they may be."""
    rows, columns = int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0)
    if rows < 1 or columns < 1:
        return f"an image of {rows}x{columns} pixels"
    if rows * columns > LARGEST_PIXELS:
        return f"more than {LARGEST_PIXELS:,} pixels"
    allocated, stored = int(dataset.get("BitsAllocated") or 0), int(dataset.get("BitsStored") or 0)
    if allocated not in (1, 8, 16, 32) or not 1 <= stored <= allocated:
        return f"{stored} bits stored in {allocated} allocated"
    if int(dataset.get("NumberOfFrames") or 1) < 1:
        return "no frames"
    return _missing_codec(dataset.file_meta.get("TransferSyntaxUID"))


def is_deflated(path: Path) -> bool:
    """True where all of the file is compressed by zip's method: it may unpack to anything, so it is not read."""
    with path.open("rb") as file:
        return _DEFLATED in file.read(_META_BYTES)


def _missing_codec(syntax: Any) -> str:
    if syntax is None:
        return "it does not say how its pixels are stored (no transfer syntax)"
    try:
        decoder = require("pydicom.pixels", "medical").get_decoder(syntax)
    except NotImplementedError:
        return f"stored as {syntax.name if syntax.name != syntax else 'something unknown'}, which cannot be read"
    if decoder.is_available:
        return ""
    # "gdcm - requires gdcm>=3.0.10" and the like: each line is one way.
    ways = [way.partition(" requires ")[2] for way in decoder.missing_dependencies]
    return f"stored as {syntax.name}, which needs {' or '.join(ways)}: pip install veilset[medical]"


def dicom_picture(path: Path, frame: int, window: Window | None) -> Picture:
    """One frame. Raises OSError, or UndecodableError with the reason."""
    pydicom = require("pydicom", "medical")
    quietly()
    dataset = pydicom.Dataset()
    tags = [pydicom.datadict.tag_for_keyword(name) for name in (_SHARED, _PER_FRAME)]
    try:
        values = require("pydicom.pixels", "medical").pixel_array(path, ds_out=dataset, index=frame, specific_tags=tags)
    except OSError:
        raise
    except Exception as error:  # decoders raise nearly every type on damaged files, with values of tags in the text
        raise UndecodableError(_why(error)) from None
    try:
        pixels, rule = _eight_bits(values, dataset, frame, window)
    except UndecodableError:
        raise
    except Exception as error:
        raise UndecodableError(f"its window or lookup table cannot be read ({type(error).__name__})") from None
    return Picture(pixels, None if values.dtype == np.uint8 and values.ndim == 3 else _raw(values), rule)


def _raw(values: NDArray[Any]) -> NDArray[Any]:
    """What the file holds, in the shape that an image file with the same pixels has, whatever the order of bytes."""
    ordered = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return ordered if ordered.ndim == 3 else ordered[..., None]


def _why(error: Exception) -> str:
    text = str(error)
    if "less than expected" in text or "cannot reshape" in text or isinstance(error, EOFError):
        return "fewer pixels than it says: the file is cut off"
    if "12-bit precision" in text:
        return "12-bit JPEG, which needs: pip install pylibjpeg pylibjpeg-libjpeg"
    if isinstance(error, AttributeError):
        return "it holds no pixels, or lacks a tag that decoding needs"
    return f"damaged: its pixels cannot be decoded ({type(error).__name__})"


def _eight_bits(values: NDArray[Any], dataset: Any, frame: int, window: Window | None) -> tuple[Images, str]:
    """(H, W, 1 or 3) uint8, and the rule that made it so."""
    photometric = str(dataset.PhotometricInterpretation)
    stored = int(dataset.BitsStored)
    if values.dtype.kind not in "iu":
        raise UndecodableError("floating-point values; whole numbers are read")
    if photometric == "PALETTE COLOR":
        colours = require("pydicom.pixels", "medical").apply_color_lut(values, dataset)
        return _high_byte(colours[..., :3], 8 * colours.dtype.itemsize, is_signed=False), ""
    if values.ndim == 3:
        if values.shape[2] != 3:
            raise UndecodableError(f"{values.shape[2]} values for each pixel; 1 or 3 are read")
        return _high_byte(values, stored, is_signed=False), ""
    if photometric not in _GREY:
        raise UndecodableError("grey pixels under the name of colours")
    grey, rule = _grey(values, dataset, frame, window, stored)
    if photometric == "MONOCHROME1":
        grey = 255 - grey
    return np.ascontiguousarray(grey)[..., None], rule


def _grey(
    values: NDArray[Any], dataset: Any, frame: int, window: Window | None, stored: int
) -> tuple[NDArray[np.uint8], str]:
    scale = _functional(dataset, frame, "PixelValueTransformationSequence") or dataset
    slope, intercept = float(scale.get("RescaleSlope") or 1), float(scale.get("RescaleIntercept") or 0)
    pixels = require("pydicom.pixels", "medical")
    if dataset.get("ModalityLUTSequence"):
        measured = pixels.apply_modality_lut(values, dataset)
        stored, is_signed = int(dataset.ModalityLUTSequence[0].LUTDescriptor[2]), False
        coded = measured
    else:
        measured = values * slope + intercept if (slope, intercept) != (1, 0) else values
        coded, is_signed = values, bool(dataset.PixelRepresentation)
    if window is not None:
        return windowed(measured, *window, "LINEAR"), BY_WINDOW
    if dataset.get("VOILUTSequence"):
        looked_up = pixels.apply_voi(np.rint(measured).astype(np.int64), dataset)
        return _high_byte(looked_up, int(dataset.VOILUTSequence[0].LUTDescriptor[2]), is_signed=False), BY_LUT
    shown = _functional(dataset, frame, "FrameVOILUTSequence") or dataset
    centre, width = _first(shown.get("WindowCenter")), _first(shown.get("WindowWidth"))
    if centre is not None and width is not None and width > 0:
        return windowed(measured, centre, width, str(shown.get("VOILUTFunction") or "LINEAR")), BY_FILE
    eight = _high_byte(coded, stored, is_signed=is_signed)
    if slope < 0:
        eight = 255 - eight
    return eight, "" if stored == 8 else BY_BITS


def windowed(values: NDArray[Any], centre: float, width: float, function: str) -> NDArray[np.uint8]:
    """0..255 by the formulas of PS3.3 C.11.2.1."""
    x = values.astype(np.float64)
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(np.clip(-4 * (x - centre) / width, -500, 500)))
    elif function == "LINEAR_EXACT":
        share = (x - centre) / width + 0.5
    else:
        share = (x - (centre - 0.5)) / max(width - 1, 1e-6) + 0.5
    eight: NDArray[np.uint8] = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
    return eight


def _high_byte(values: NDArray[Any], bits: int, *, is_signed: bool) -> NDArray[np.uint8]:
    """The declared range, whatever the values are: the high byte, as 16-bit image files are read."""
    whole = values.astype(np.int64) + ((1 << (bits - 1)) if is_signed else 0)
    whole = np.clip(whole, 0, (1 << bits) - 1)
    if bits < 8:
        whole = (whole * 255 + ((1 << bits) - 1) // 2) // ((1 << bits) - 1)
    eight: NDArray[np.uint8] = (whole >> max(bits - 8, 0)).astype(np.uint8)
    return eight


def _functional(dataset: Any, frame: int, name: str) -> Any:
    """What an enhanced file says of this frame, else of all frames."""
    per_frame = dataset.get(_PER_FRAME) or []
    for item in [*per_frame[frame : frame + 1], *(dataset.get(_SHARED) or [])[:1]]:
        if item.get(name):
            return item.get(name)[0]
    return None


def _first(value: Any) -> float | None:
    """The first of one or more numbers, None where there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, str | int | float):
        return float(value)
    try:
        return float(value[0])
    except TypeError:
        return float(value)
    except IndexError:
        return None
