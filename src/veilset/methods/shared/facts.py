"""What dfd, dpaf, dpgan, pate and sanitized_gan ask of public facts before they plan. Torch-free."""

from veilset.core.errors import InputError
from veilset.privacy.vault import PublicFacts


def require_square(facts: PublicFacts) -> None:
    """Refuse images that the embedding and the generators cannot take."""
    height, width, _ = facts.shape
    if height != width or not 16 <= height <= 64:
        raise InputError(f"Expected square images of 16 to 64 pixels, got {height}x{width}. Pass --size 32.")
