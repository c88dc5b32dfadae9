"""Digests outside of memory: what was written comes back, and nobody else can read it."""

import errno
import gc
import hashlib
import os
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from veilset.core import sealed_rows
from veilset.core.errors import InputError
from veilset.core.sealed_rows import SealedRows


def hashes(count: int) -> np.ndarray:
    return np.array([list(hashlib.sha256(str(row).encode()).digest()) for row in range(count)], np.uint8)


def sealed(rows: np.ndarray) -> SealedRows:
    kept = SealedRows()
    for row in rows:
        kept.append(row.tobytes())
    return kept


@pytest.mark.parametrize("at_once", [1, 7, 1 << 13])
def test_rows_come_back_by_number(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_rows, "_READ_AT_ONCE", at_once)
    monkeypatch.setattr(sealed_rows, "_WRITTEN_AT_ONCE", 100)
    rows = hashes(50)
    kept = sealed(rows)
    assert len(kept) == 50
    for asked in ([], [49], [3, 4, 5, 6], [7, 7, 6, 5], [49, 0, 1, 2, 30, 31], list(range(50))):
        np.testing.assert_array_equal(kept.at(np.array(asked, np.int32)), rows[asked])
    np.testing.assert_array_equal(np.concatenate([*kept.blocks()]), rows)
    for outside in (-1, 50):
        with pytest.raises(IndexError, match=r"0\.\.49"):
            kept.at(np.array([0, outside]))


def test_rows_may_be_added_after_a_reading() -> None:
    rows, kept = hashes(40), SealedRows()
    for number, row in enumerate(rows):
        kept.append(row.tobytes())
        np.testing.assert_array_equal(kept.at(np.array([number, 0])), rows[[number, 0]])
    np.testing.assert_array_equal(kept.at(np.arange(40)), rows)


@pytest.mark.parametrize("at_once", [1, 10, 1 << 17])
def test_in_order_is_sorted_whatever_fits_at_once(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_rows, "_SORTED_AT_ONCE", at_once)
    rows = np.concatenate([hashes(300), hashes(5), np.zeros((1, 32), np.uint8), np.full((1, 32), 255, np.uint8)])
    found = [bytes(row) for block in sealed(rows).in_order() for row in block]
    assert found == sorted(map(bytes, rows))


def test_the_file_has_no_name_and_nothing_in_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = hashes(20)
    first, second = sealed(rows), sealed(rows)
    contents = []
    for kept in (first, second):
        kept.at(np.arange(1))
        contents.append(os.pread(kept._file, 20 * 32, 0))
        assert len(contents[-1]) == 20 * 32
        assert not any(bytes(row)[start : start + 4] in contents[-1] for row in rows for start in range(0, 32, 4))
    assert not {contents[0][i : i + 16] for i in range(0, 640, 16)} & {
        contents[1][i : i + 16] for i in range(0, 640, 16)
    }
    assert list(tmp_path.iterdir()) == []


def test_equal_rows_do_not_look_equal() -> None:
    kept = sealed(np.zeros((64, 32), np.uint8))
    kept.at(np.arange(1))
    content = os.pread(kept._file, 64 * 32, 0)
    assert len({content[start : start + 16] for start in range(0, len(content), 16)}) == 128


def test_the_file_is_closed_with_its_rows() -> None:
    kept = sealed(hashes(2))
    file = kept._file
    os.fstat(file)
    del kept
    gc.collect()
    with pytest.raises(OSError):  # noqa: PT011  # the number of an open file may not be used any more
        os.fstat(file)


def test_a_forked_process_reads_the_same() -> None:
    rows = hashes(30)
    kept = sealed(rows)
    child = os.fork()
    if child == 0:
        os._exit(0 if (kept.at(np.arange(30)) == rows).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(kept.at(np.arange(30)), rows)


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = sealed(hashes(2))

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(InputError, match=r"No space left on device\. Set TMPDIR"):
            kept.at(np.arange(2))
        patch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(InputError, match="Set TMPDIR"):
            SealedRows()


def test_a_file_that_was_cut_off_is_refused() -> None:
    kept = sealed(hashes(9))
    kept.at(np.arange(9))
    os.ftruncate(kept._file, 100)
    with pytest.raises(InputError, match="cut off"):
        kept.at(np.arange(9))


def test_memory_does_not_grow_with_the_rows() -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = SealedRows()
    for row in range(50_000):
        kept.append(hashlib.sha256(row.to_bytes(8, "big")).digest())
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(kept) == 50_000
    assert held < 200_000  # digests in memory would be 1.6 million
