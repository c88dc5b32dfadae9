"""Memory that long loops give back while they run.

Torch asks for aligned blocks, and glibc seldom uses freed ones again where small live blocks lie between them:
labelling 168,000 colour images in batches of 100 held 9 GB, of which 0.8 GB were in use.
"""

import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TypeVar

_EVERY = 16

Item = TypeVar("Item")


def giving_back(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; after every 16th, what was freed goes back to the system."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % _EVERY == 0:
            give_back()


def give_back() -> None:
    """Return freed memory to the system where the C library can; elsewhere nothing happens."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:  # no Linux, or another C library
        return None
    return library if hasattr(library, "malloc_trim") else None
