"""Short rows of bytes that need no memory: enciphered, in a file without a name.

Every record has two digests of 32 bytes. Shards, limits, parts and accounts are made from all of their bytes, and must
come out the same on every machine; a shorter form would change them, and an unkeyed one lets whoever chose two images
make their digests equal. So the digests are kept whole, and outside of memory: there may be millions.

Privacy: a digest of a private image tells whoever has that image that it is among the records, so none is written in
clear. The file holds them under AES-256 in counter mode, with a key that is drawn for this file and never leaves the
process; a place is written once, so no part of the key stream is used twice. Without the key the file is random bytes.
It lies in the folder for temporary files (TMPDIR), has no name there, and is gone when the process ends, however it
ends. Nothing vouches for its bytes: who can write to an unnamed file of this process can write to its memory.
"""

import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from threading import Lock
from weakref import finalize

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from veilset.core.errors import InputError

WIDTH = 32  # bytes of a row
_CIPHER_BLOCK = 16
_WRITTEN_AT_ONCE = 1 << 16  # bytes
_READ_AT_ONCE = 1 << 13  # rows
_SORTED_AT_ONCE = 1 << 16  # rows

Bytes = NDArray[np.uint8]


class SealedRows:
    """Rows of 32 bytes: appended one after the other, read by number. Threads and forked processes may read them."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._stream = self._cipher(0).encryptor()
        self._count, self._waiting = 0, bytearray()
        try:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed with this object
        except OSError as error:
            raise _no_room(error) from error
        self._file = file.fileno()
        self._written, self._writing = 0, Lock()
        finalize(self, file.close)

    def __len__(self) -> int:
        return self._count

    def append(self, row: bytes) -> None:
        """One more row."""
        if len(row) != WIDTH:
            raise ValueError(f"Expected {WIDTH} bytes, got {len(row)}.")
        self._waiting += row
        self._count += 1
        if len(self._waiting) >= _WRITTEN_AT_ONCE:
            self._write()

    def at(self, rows: NDArray[np.integer]) -> Bytes:
        """(k, 32) the rows with these numbers, in this order."""
        self._write()
        found = np.empty((len(rows), WIDTH), np.uint8)
        if len(rows) == 0:
            return found
        if int(rows.min()) < 0 or int(rows.max()) >= self._count:
            raise IndexError(f"Expected rows 0..{self._count - 1}, got {int(rows.min())}..{int(rows.max())}.")
        is_new = np.arange(len(rows)) % _READ_AT_ONCE == 0  # where a run of neighbours begins
        is_new[1:] |= np.diff(rows) != 1
        starts = np.flatnonzero(is_new).tolist()
        for start, end in pairwise([*starts, len(rows)]):
            found[start:end] = self._run(int(rows[start]), end - start)
        return found

    def blocks(self) -> Iterator[Bytes]:
        """All rows in their order, some thousands at a time."""
        for start in range(0, self._count, _READ_AT_ONCE):
            yield self.at(np.arange(start, min(start + _READ_AT_ONCE, self._count)))

    def in_order(self) -> Iterator[Bytes]:
        """All rows from the smallest to the largest, in blocks. They should be hashes: the first byte divides them."""
        passes = min(256, 1 + self._count // _SORTED_AT_ONCE)
        for number in range(passes):
            part = np.concatenate(
                [np.zeros((0, WIDTH), np.uint8)]
                + [block[block[:, 0].astype(np.int64) * passes // 256 == number] for block in self.blocks()]
            )
            part.view(f"S{WIDTH}").sort(axis=0)
            yield part

    def _run(self, first: int, count: int) -> Bytes:
        content = os.pread(self._file, count * WIDTH, first * WIDTH)
        if len(content) != count * WIDTH:
            raise InputError("A temporary file was cut off. Check the disk that holds TMPDIR, then start again.")
        clear = self._cipher(first * WIDTH // _CIPHER_BLOCK).decryptor().update(content)
        return np.frombuffer(clear, np.uint8).reshape(count, WIDTH)

    def _write(self) -> None:
        with self._writing:
            left = memoryview(self._stream.update(bytes(self._waiting)))
            self._waiting.clear()
            try:
                while left:
                    done = os.pwrite(self._file, left, self._written)
                    self._written += done
                    left = left[done:]
            except OSError as error:
                raise _no_room(error) from error

    def _cipher(self, block: int) -> Cipher[modes.CTR]:
        return Cipher(algorithms.AES256(self._key), modes.CTR(block.to_bytes(_CIPHER_BLOCK, "big")))


def _no_room(error: OSError) -> InputError:
    return InputError(
        f"No temporary file for the digests of the records can be written: {error.strerror or error}. Set TMPDIR to a "
        "folder with room: 64 bytes for each image."
    )
