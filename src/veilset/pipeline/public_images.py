"""Public images as people have them: a path, an array, records; brought to the size and colours of private ones."""

from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.privacy.vault import Public, PublicFacts
from veilset.release.inputs import refuse_release_as_public

PublicSource = Records | Public | str | Path | Any
"""A path, an array (N, H, W[, C]), or what `open_images` gives."""


def public_records(public: PublicSource, facts: PublicFacts, progress: Progress = SILENT) -> Records | Public:
    """These images in the shape of the private ones, where it is square; they still have to be compared with those."""
    height, width, channels = facts.shape
    size = height if height == width else None
    if isinstance(public, str | Path):
        refuse_release_as_public(str(public))  # by the name that was given; the comparison knows where a link leads
        return open_images(public, size=size, channels=channels, needs_classes=False, progress=progress)
    if isinstance(public, Public) or (hasattr(public, "read") and hasattr(public, "labels")):
        return _in_shape(public, facts)
    pixels = np.asarray(public)
    if pixels.ndim not in (3, 4):
        raise InputError(
            f"Expected public images as a path, an array (N, H, W[, C]) or from open_images, got "
            f"{type(public).__name__}."
        )
    return _in_shape(ImageSet(pixels, np.zeros(len(pixels), np.int64)), facts)


def _in_shape(records: Records | Public, facts: PublicFacts) -> Records | Public:
    """Images in memory, brought to the size and colours of a vault's."""
    height, width, channels = facts.shape
    if isinstance(records, ImageSet) and tuple(records.shape) != facts.shape and height == width:
        return records.with_channels(channels).resize(height)
    return records
