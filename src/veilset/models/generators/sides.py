"""Sides and layers of style-based generators: what is known of them before a network is built. Loads no torch."""

import math
from typing import Literal

from veilset.core.errors import InputError

LatentsName = Literal["w", "z", "w_plus"]
"""Of what a latent is made: the mapped noise, the noise itself, or a mapped noise for each layer."""

START_SIDE = 4
"""Of the learned constant, along the shorter side of the picture."""

_SMALLEST, _LARGEST = 8, 256
_LONGEST_SHAPE = 4  # the longer side in shorter ones


def level_count(height: int, breadth: int | None = None) -> int:
    """Doublings from the constant to the image, whose shorter side begins with four pixels."""
    short, long = sorted((height, breadth or height))
    if short < _SMALLEST or long > _LARGEST or long > _LONGEST_SHAPE * short:
        raise InputError(
            f"Expected images of {_SMALLEST} to {_LARGEST} pixels a side, the longer side at most {_LONGEST_SHAPE} "
            f"times the shorter, got {height}x{breadth or height}. Pass --size 32."
        )
    return math.ceil(math.log2(short / START_SIDE))


def starting_sides(height: int, breadth: int | None = None) -> tuple[int, int]:
    """Height and breadth of the constant: the smallest from which all doublings reach the image."""
    levels = level_count(height, breadth)
    first, second = (max(START_SIDE, -(-side // 2**levels)) for side in (height, breadth or height))
    return first, second


def layer_count(height: int, breadth: int | None = None) -> int:
    """How many latents W+ has: one for each convolution, and one for the last layer of colour, as in StyleGAN2."""
    return 2 * math.ceil(math.log2(min(height, breadth or height) / START_SIDE)) + 2
