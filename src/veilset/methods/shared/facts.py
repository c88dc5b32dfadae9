"""What dfd, dpaf, dpgan, merf, pate, pldk and sanitized_gan ask of public facts before they plan. Torch-free."""

from veilset.core.errors import InputError
from veilset.privacy.vault import PublicFacts

SMALLEST_SIDE, LARGEST_SIDE = 16, 256


def require_square(facts: PublicFacts) -> None:
    """Refuse images that the embedding and the generators cannot take."""
    height, width, _ = facts.shape
    if height != width or not SMALLEST_SIDE <= height <= LARGEST_SIDE:
        raise InputError(
            f"Expected square images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, got {height}x{width}. Pass --size "
            f"{min(64, max(32, min(height, width)))}."
        )
