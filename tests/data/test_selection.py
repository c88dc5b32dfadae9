import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.data import ImageSet, open_images
from veilset.data.selection import kept, key_of, part_of_each

COUNT = 600
PLACES = (0, COUNT // 2, COUNT - 1)


def make(count: int = COUNT, images_each: int = 1) -> ImageSet:
    coins = np.random.default_rng(7)
    people = np.repeat(np.arange(count // images_each), images_each)
    images = coins.integers(0, 256, (count, 6, 6), np.uint8)
    return ImageSet(images, np.arange(count) % 2, groups=None if images_each == 1 else people * 17)


def without(records: ImageSet, row: int) -> ImageSet:
    return records.subset(np.delete(np.arange(len(records)), row))


def ids(records: Records) -> set[bytes]:
    return {digest.tobytes() for digest in records.digests()}


def saved(records: ImageSet, kind: str, folder: Path) -> Path:
    """The same records as an npz pack, as a folder whose files keep their names, or as parquet."""
    if kind == "npz":
        np.savez(folder.with_suffix(".npz"), images=records.images, labels=records.labels)
        return folder.with_suffix(".npz")
    encoded = []
    for image in records.images:
        buffer = io.BytesIO()
        Image.fromarray(image[..., 0]).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    if kind == "folder":
        for content, label, digest in zip(encoded, records.labels, records.digests(), strict=True):
            path = folder / str(label) / f"{digest.tobytes().hex()}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"image": encoded, "label": records.labels})
    parquet.write_table(table, folder.with_suffix(".parquet"), row_group_size=64)
    return folder.with_suffix(".parquet")


@pytest.mark.parametrize("kind", ["npz", "folder", "parquet"])
def test_a_record_that_is_removed_moves_no_other_under_a_limit(kind: str, tmp_path: Path) -> None:
    records = make()
    whole = ids(open_images(saved(records, kind, tmp_path / "whole"), limit=COUNT // 3))
    assert abs(len(whole) - COUNT // 3) < 60
    for row in PLACES:
        removed = records.digests()[row].tobytes()
        # The limit is a share of n, which is public: the same share in both worlds would move nobody at all.
        part = ids(open_images(saved(without(records, row), kind, tmp_path / f"{row}"), limit=COUNT // 3))
        assert whole - part <= {removed}
        assert len(part - whole) <= 1  # 200 / 599 is larger than 200 / 600 by one part in 1,800


@pytest.mark.parametrize("row", PLACES)
def test_shares_and_parts_are_each_units_own(row: int) -> None:
    records = make()
    less = without(records, row)
    stays = np.delete(np.arange(COUNT), row)
    key = key_of(3, "test")
    np.testing.assert_array_equal(part_of_each(records, 5, key)[stays], part_of_each(less, 5, key))
    chosen = kept(records, 0.3, key)
    np.testing.assert_array_equal(np.intersect1d(chosen, stays), stays[kept(less, 0.3, key)])
    assert abs(len(chosen) - 0.3 * COUNT) < 60


def test_a_group_stays_whole_and_one_with_many_images_moves_no_other() -> None:
    records = make(images_each=4)
    assert records.groups is not None
    key = key_of(0, "test")
    for of_each in (part_of_each(records, 3, key), np.isin(np.arange(COUNT), kept(records, 0.4, key))):
        for group in np.unique(records.groups):
            assert len(set(of_each[records.groups == group].tolist())) == 1
    many = ImageSet(
        np.concatenate([records.images, records.images]),
        np.concatenate([records.labels, records.labels]),
        groups=np.concatenate([records.groups, np.full(COUNT, 999_999)]),
    )
    np.testing.assert_array_equal(part_of_each(many, 3, key)[:COUNT], part_of_each(records, 3, key))


def test_a_limit_counts_groups_where_they_are_known(tmp_path: Path) -> None:
    records = make(images_each=4)
    pack = tmp_path / "set.npz"
    np.savez(pack, images=records.images, labels=records.labels, people=records.groups)
    chosen = open_images(pack, groups="people", limit=50)
    assert chosen.groups is not None
    groups, sizes = np.unique(chosen.groups, return_counts=True)
    assert 30 <= len(groups) <= 70
    assert set(sizes.tolist()) == {4}


def test_purposes_are_independent() -> None:
    records = make()
    limited = kept(records, 0.5, key_of(0, "limit"))
    assert 0.4 < np.isin(kept(records, 0.5, key_of(0, "validation")), limited).mean() < 0.6


def test_the_whole_and_nothing() -> None:
    records = make(20)
    assert len(kept(records, 1.0, key_of(0, "test"))) == 20
    assert len(kept(records, 0.0, key_of(0, "test"))) == 0
    with pytest.raises(InputError, match="share from 0 to 1"):
        kept(records, 1.5, key_of(0, "test"))
    with pytest.raises(InputError, match="at least 1 part"):
        part_of_each(records, 0, key_of(0, "test"))


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_group_is_refused(blank: str, tmp_path: Path) -> None:
    pack = tmp_path / "set.npz"
    np.savez(pack, images=make(4).images, labels=make(4).labels, people=np.array(["a", blank, "b", blank]))
    with pytest.raises(InputError, match="2 of 4 images have a blank group"):
        open_images(pack, groups="people")
