"""To whom each image belongs: one integer or one text for each image, and never an empty one."""

from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.records import Groups


def checked_groups(groups: Any, count: int) -> Groups:
    """The groups of `count` images. A blank one would make one person of everybody whose name is missing."""
    array = np.asarray(groups)
    if array.dtype.kind not in "iuU":
        raise InputError(f"Expected groups as integers or text, got dtype {array.dtype}.")
    if array.shape != (count,):
        raise InputError(f"Expected one group for each of {count} images, got groups of shape {array.shape}.")
    if array.dtype.kind != "U":
        return array.astype(np.int64, copy=False)
    blank = int((np.char.strip(array) == "").sum())
    if blank:
        raise InputError(f"{blank} of {count} images have a blank group. Say to whom each belongs, or remove them.")
    return array
