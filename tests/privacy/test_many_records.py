"""Millions of records: little is held for each of them, and all that is made of their digests is what it was."""

import gc
import hashlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from veilset.core import records as core_records
from veilset.core import sealed_rows
from veilset.core.records import Records
from veilset.data import ImageSet
from veilset.data.decoding import Form
from veilset.data.selection import kept, key_of, part_of_each
from veilset.data.streaming import Picture, StreamedImages
from veilset.pipeline.federated.parts import Part
from veilset.privacy import noise
from veilset.privacy.noise import NoiseSource
from veilset.privacy.sources import likeness_of
from veilset.privacy.vault import Vault, contents_of

COUNT, KEY = 60, b"a key"
NAMES = ("zero", "one", "two")


class Made:
    """Pictures that are a function of their row; two of them are alike."""

    def __init__(self, side: int = 4) -> None:
        self._side = side

    def name(self, row: int) -> str:
        return str(row)

    def picture(self, row: int) -> Picture:
        own = np.frombuffer(hashlib.sha256(str(row % 57).encode()).digest(), np.uint8)
        return Picture(np.resize(own, (self._side, self._side, 1)))


def groups_of(count: int) -> np.ndarray:
    return np.arange(count) * 7 % 11


def streamed(groups: np.ndarray | None = None) -> StreamedImages:
    return StreamedImages(Made(), np.arange(COUNT) % 57 % 3, NAMES, groups, Form())


def held(groups: np.ndarray | None = None) -> ImageSet:
    images = np.stack([Made().picture(row).pixels for row in range(COUNT)])
    return ImageSet(images, np.arange(COUNT) % 57 % 3, NAMES, groups)


def part(groups: np.ndarray | None = None) -> Part:
    return Part(streamed(groups), np.arange(COUNT)[::-1].copy())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_records, "_AT_ONCE", 7)


EVERY = pytest.mark.parametrize("make", [held, streamed, part])


@EVERY
def test_a_fingerprint_is_the_hash_of_sorted_units(make: Callable[..., Any]) -> None:
    digests = [bytes(digest) for digest in make().digests()]
    units = sorted(hashlib.sha256(digest + digest).digest() for digest in digests)
    assert Vault(make()).fingerprint() == hashlib.sha256(b"".join(units)).hexdigest()
    assert Vault(make()).fingerprint() == Vault(held()).fingerprint()


@EVERY
def test_a_fingerprint_of_groups_has_their_names_and_images(make: Callable[..., Any]) -> None:
    records = make(groups_of(COUNT))
    own: dict[str, list[bytes]] = {}
    for group, digest in zip(records.groups, records.digests(), strict=True):
        own.setdefault(str(group), []).append(bytes(digest))
    units = sorted(hashlib.sha256(n.encode() + b"".join(sorted(d))).digest() for n, d in own.items())
    assert Vault(records, unit="group").fingerprint() == hashlib.sha256(b"".join(units)).hexdigest()


@EVERY
def test_hashes_of_the_source_are_sorted_and_distinct(make: Callable[..., Any]) -> None:
    sources = {bytes(digest) for digest in make().source_digests()}
    wanted = sorted(int.from_bytes(hashlib.blake2b(s, key=KEY, digest_size=8).digest(), "little") for s in sources)
    assert len(wanted) == 57
    assert Vault(make()).source_hashes(KEY).tolist() == wanted


@EVERY
def test_parts_and_choices_are_by_the_whole_digest(make: Callable[..., Any]) -> None:
    records: Records = make()
    key = key_of(3, "a purpose")
    hashes = [
        int.from_bytes(hashlib.blake2b(bytes(d), key=key, digest_size=8).digest(), "big") for d in records.digests()
    ]
    assert part_of_each(records, 4, key).tolist() == [own % 4 for own in hashes]
    assert kept(records, 0.3, key).tolist() == [row for row, own in enumerate(hashes) if (own >> 11) * 2.0**-53 < 0.3]


@EVERY
@pytest.mark.parametrize("unit", ["record", "group"])
def test_rows_of_shards_are_in_the_order_of_own_ids(make: Callable[..., Any], unit: Any) -> None:
    rows = contents_of(Vault(make(groups_of(COUNT)), unit=unit))
    ids, owner = list(rows.own_ids()), rows.shard_of_each(5, KEY)
    assert ids == [rows.own_id(number) for number in range(rows.count)]
    parts: list[list[int]] = [[] for _ in range(5)]
    for number in sorted(range(len(ids)), key=ids.__getitem__):
        parts[owner[number]] += rows.of(number).tolist()
    assert [found.tolist() for found in rows.of_shards(5, KEY)] == parts
    assert [len(found) for found in rows.of_shards(1000, KEY)].count(0) > 900


def test_a_streamed_set_has_the_labels_and_digests_of_a_held_one() -> None:
    disk, memory, some = streamed(), held(), np.array([9, 2, 2, 58])
    assert disk.labels.dtype == disk.labels_at(some).dtype == np.int64
    assert not disk.labels.flags.writeable
    np.testing.assert_array_equal(disk.labels, memory.labels)
    np.testing.assert_array_equal(disk.labels_at(some), memory.labels[some])
    np.testing.assert_array_equal(disk.digests_at(some), memory.digests()[some])
    np.testing.assert_array_equal(disk.source_digests(), memory.source_digests())


@pytest.mark.parametrize("classes", [2, 256, 257, 70_000])
def test_labels_of_many_classes_are_not_cut(classes: int) -> None:
    labels = np.array([0, 1, classes - 1, classes - 1], np.int64)
    names = tuple(map(str, range(classes)))
    assert StreamedImages(Made(), labels, names, None, Form()).labels.tolist() == labels.tolist()


def test_little_is_held_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_records, "_AT_ONCE", 1 << 9)
    monkeypatch.setattr(sealed_rows, "_READ_AT_ONCE", 1 << 9)
    monkeypatch.setattr(sealed_rows, "_SORTED_AT_ONCE", 1 << 11)

    def memory(count: int) -> tuple[int, int]:
        tracemalloc.start()
        records = StreamedImages(Made(), np.arange(count) % 3, NAMES, None, Form())
        vault = Vault(records)
        units = contents_of(vault).units
        tracemalloc.reset_peak()
        vault.fingerprint()
        vault.source_hashes(KEY)
        gc.collect()  # rubbish of whatever ran before is not held
        rest, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(units) == count
        return rest, peak

    memory(1000)  # what is loaded once
    # Other threads may take memory while it is measured, and never give back what is not theirs: the least counts.
    small, large = (np.min([memory(count) for _ in range(3)], axis=0) for count in (6_000, 16_000))
    assert large[0] - small[0] < 10_000 * 8  # a label, a number
    assert large[1] - small[1] < 10_000 * 24  # and what finding the account takes for a moment


def test_coins_are_the_same_however_many_are_tossed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NoiseSource(3).coins(1000, 0.3)
    monkeypatch.setattr(noise, "_CHUNK", 64)
    np.testing.assert_array_equal(NoiseSource(3).coins(1000, 0.3), whole)
    assert 200 < whole.sum() < 400


@pytest.mark.parametrize("size", [0, 1, 50, 1 << 14])
@pytest.mark.parametrize("of", [100, 1 << 16])
def test_likeness_counts_what_both_have(size: int, of: int) -> None:
    coins = np.random.default_rng(size + of)
    sketch, hashes = (np.unique(coins.integers(0, of, size, dtype=np.uint64)) for _ in range(2))
    shared = len(set(sketch.tolist()) & set(hashes.tolist()))
    share = shared / max(1, min(len(sketch), len(hashes)))
    wanted = "same" if share >= 0.9 else "unsure" if share > 0.1 and shared >= 2 else "other"
    assert likeness_of(sketch, hashes, same_place=False) == wanted
