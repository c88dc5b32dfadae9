"""Limits on what a small file may unpack to. They are public constants, the same for everybody's data."""

from veilset.core.errors import InputError

LARGEST_BYTES = 8 * 2**30
LARGEST_RATIO = 1000
RATIO_MATTERS_FROM = 64 * 2**20  # small blank arrays compress well and are harmless


def refuse_bomb(name: str, unpacked: int, packed: int, largest: int = LARGEST_BYTES) -> None:
    """Refuse data that would unpack to more than `largest` bytes, or suspiciously far, before unpacking it."""
    if unpacked > largest:
        raise InputError(
            f"{name} would unpack to {unpacked:,} bytes; at most {largest:,} are read into memory. "
            "Use an image folder or parquet, which are read piece by piece."
        )
    if unpacked > RATIO_MATTERS_FROM and unpacked > LARGEST_RATIO * max(packed, 1):
        raise InputError(
            f"{name} unpacks from {packed:,} to {unpacked:,} bytes, more than {LARGEST_RATIO} times its size: "
            "it looks like a decompression bomb and was not read. Save it again without compression if it is yours."
        )
