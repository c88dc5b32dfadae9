"""The layout of DPAF's critic in plain numbers, so that a plan needs no network. Torch-free.

DPAF (its appendix, A.2, A.5 and A.10) writes a layout as Cx-Cy-Cz: x layers conv1, y layers conv2*, z layers conv3*,
and two linear layers FC*. Each layer halves the side.
"""

import math
import re
from dataclasses import dataclass

from veilset.core.errors import InputError

_SMALLEST_SIDE = 2
_COARSE_SIDE = 8
_LARGEST_PLAIN_SIDE = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many layers each part has."""

    conv1: int
    conv2: int
    conv3: int

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read "C2-C1-C0"; an x in the place of a C and its number is none, as in the paper."""
        found = re.fullmatch(r"C(\d)-C(\d)-(?:C(\d)|x)", text)
        if found is None or found[1] == "0" or found[2] == "0":
            raise InputError(
                f"Expected a layout such as C2-C1-x or C2-C2-C1, with layers in conv1 and in conv2*, got {text!r}."
            )
        return cls(conv1=int(found[1]), conv2=int(found[2]), conv3=int(found[3] or 0))

    def sides(self, size: int) -> tuple[int, int, int]:
        """The side of the maps after conv1, conv2* and conv3*; a layout that does not fit the image raises."""
        after, sides = size, []
        for layers in (self.conv1, self.conv2, self.conv3):
            after = after // 2**layers
            sides.append(after)
        if after < _SMALLEST_SIDE:
            layers = self.conv1 + self.conv2 + self.conv3
            raise InputError(
                f"A layout of {layers} layers leaves maps of {after} pixels of a {size}-pixel image; expected at least "
                f"{_SMALLEST_SIDE}. Each layer halves the side: take at most "
                f"{(size // _SMALLEST_SIDE).bit_length() - 1} layers together."
            )
        return sides[0], sides[1], sides[2]

    def feature_width(self, size: int, maps: int) -> int:
        """How many numbers conv2* of so many maps makes of an image with this side: m p^2 in the paper."""
        return maps * self.sides(size)[1] ** 2


def feature_bound(width: int, brightness: float = 0.0) -> float:
    """R, the largest length of `width` features: SIN leaves every map a mean square below 1.

    A coarse picture beside them adds at most `brightness` times that length.
    """
    return math.sqrt(width) * math.hypot(1, brightness)


def shrinking(size: int) -> int:
    """How many pixels of a side become one of the coarse picture."""
    return max(1, size // _COARSE_SIDE)


def coarse_count(size: int, channels: int) -> int:
    """The numbers of a coarse picture."""
    return channels * (size // shrinking(size)) ** 2


def layout_for(size: int) -> str:
    """The layout for images of this side: an aggregate of larger ones is no longer than that of 64 pixels."""
    return f"C{1 + max(0, math.ceil(math.log2(size / _LARGEST_PLAIN_SIDE)))}-C1-x"
