"""Several findings per image, from every kind of source, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data.archives.reading import Reading
from veilset.data.images import ImageSet
from veilset.data.matching import in_class_order
from veilset.data.opening import open_images
from veilset.privacy.vault import Vault, describe

NAMES = ("Edema", "Effusion", "Mass")
MATRIX = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]])


def images(count: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)


def pack(path: Path, matrix: np.ndarray = MATRIX, **more: np.ndarray) -> str:
    np.savez(
        path / "pack.npz", train_images=images(len(matrix)), train_attrs=matrix, attr_names=np.array(NAMES), **more
    )
    return f"{path / 'pack.npz'}:train"


def folder(path: Path, matrix: np.ndarray = MATRIX, extra: str = "") -> Path:
    lines = ["path," + ",".join(NAMES) + (",group" if extra else "")]
    for row, image in enumerate(images(len(matrix))):
        Image.fromarray(image[..., 0]).save(path / f"{row}.png")
        cells = ["" if value == -9 else str(value) for value in matrix[row]]
        lines.append(f"{row}.png," + ",".join(cells) + (f",{extra}{row // 2}" if extra else ""))
    (path / "labels.csv").write_text("\n".join(lines) + "\n")
    return path


def test_a_pack(tmp_path: Path) -> None:
    found = open_images(pack(tmp_path), labels="attrs")
    assert found.class_names == NAMES
    assert np.array_equal(found.labels, MATRIX)
    some = open_images(pack(tmp_path), labels="attrs", reading=Reading(findings=("Mass", "Edema")))
    assert some.class_names == ("Mass", "Edema")
    assert np.array_equal(some.labels, MATRIX[:, [2, 0]])


def test_names_of_columns_without_any(tmp_path: Path) -> None:
    np.savez(tmp_path / "pack.npz", images=images(), labels=MATRIX)
    assert open_images(tmp_path / "pack.npz").class_names == ("0", "1", "2")
    chosen = open_images(tmp_path / "pack.npz", classes=NAMES, reading=Reading(findings=("Mass", "Edema")))
    assert chosen.class_names == ("Mass", "Edema")
    with pytest.raises(InputError, match="Expected 3 different names"):
        open_images(tmp_path / "pack.npz", classes=("a", "b"))


def test_a_folder_with_a_table(tmp_path: Path) -> None:
    found = open_images(folder(tmp_path, extra="p"), reading=Reading(findings=NAMES))
    assert found.class_names == NAMES
    assert np.array_equal(found.labels, MATRIX)
    assert list(found.groups) == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert np.array_equal(found.digests(), ImageSet(images(), MATRIX, NAMES).digests())
    assert np.array_equal(found.read(np.arange(6)), images())


def test_parquet_lists_and_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder(tmp_path)
    pngs = [{"bytes": (tmp_path / f"{row}.png").read_bytes(), "path": None} for row in range(6)]
    columns = {name: MATRIX[:, place].astype(np.int8) for place, name in enumerate(NAMES)}
    table = pa.table({"image": pngs, "attributes": MATRIX.tolist(), **columns})
    parquet.write_table(table, tmp_path / "set.parquet")
    by_list = open_images(tmp_path / "set.parquet", labels="attributes", classes=NAMES)
    assert np.array_equal(by_list.labels, MATRIX)
    by_column = open_images(tmp_path / "set.parquet", reading=Reading(findings=("Mass", "Effusion")))
    assert by_column.class_names == ("Mass", "Effusion")
    assert np.array_equal(by_column.labels, MATRIX[:, [2, 1]])
    ragged = pa.table({"image": pngs, "attributes": [[0, 1]] * 5 + [[0]]})
    parquet.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(InputError, match="differ in length"):
        open_images(tmp_path / "ragged.parquet", labels="attributes")


@pytest.mark.parametrize(("rule", "expected"), [("zeros", 0), ("ones", 1), ("drop", None)])
@pytest.mark.parametrize("kind", ["pack", "folder"])
def test_uncertain(tmp_path: Path, kind: str, rule: str, expected: int | None) -> None:
    doubtful = MATRIX.copy()
    doubtful[1, 1] = -1
    options = {"labels": "attrs"} if kind == "pack" else {}
    source = pack(tmp_path, doubtful) if kind == "pack" else folder(tmp_path, doubtful)
    with pytest.raises(InputError, match=r"1 records are uncertain .* in 'Effusion'.*--uncertain"):
        open_images(source, **options, reading=Reading(findings=NAMES))
    found = open_images(source, **options, reading=Reading(findings=NAMES, uncertain=rule))
    if expected is None:
        assert np.array_equal(found.labels, MATRIX[[0, 2, 3, 4, 5]])
        assert np.array_equal(found.read(np.arange(5)), images()[[0, 2, 3, 4, 5]])
    else:
        filled = MATRIX.copy()
        filled[1, 1] = expected
        assert np.array_equal(found.labels, filled)


def test_an_empty_cell_is_uncertain_and_floats_are_read(tmp_path: Path) -> None:
    blank = MATRIX.copy()
    blank[0, 0] = -9
    place = folder(tmp_path, blank)
    text = (place / "labels.csv").read_text().replace("1.png,1,", "1.png,1.0,")
    (place / "labels.csv").write_text(text)
    found = open_images(place, reading=Reading(findings=NAMES, uncertain="ones"))
    assert found.labels[0, 0] == found.labels[1, 0] == 1


def test_combinations_as_classes(tmp_path: Path) -> None:
    rules = Reading(findings=("Edema", "Mass"), findings_as="classes")
    found = open_images(pack(tmp_path), labels="attrs", reading=rules)
    assert found.class_names == ("none", "Mass", "Edema", "Edema+Mass")
    assert found.labels.tolist() == [0, 2, 2, 1, 1, 3]
    declared = ("none", "Edema", "other")
    some = open_images(pack(tmp_path), labels="attrs", classes=declared, reading=rules)
    assert some.class_names == declared
    assert some.labels.tolist() == [0, 1, 1, 2, 2, 2]
    with pytest.raises(InputError, match="Add other to it"):
        open_images(pack(tmp_path), labels="attrs", classes=("none", "Edema"), reading=rules)
    with pytest.raises(InputError, match=r"Unknown finding 'Oedema'. Did you mean Edema"):
        open_images(pack(tmp_path), labels="attrs", classes=("none", "Oedema", "other"), reading=rules)


def _set(place: tuple[int, int], value: int) -> np.ndarray:
    changed = MATRIX.copy()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("matrix", "reading", "message"),
    [
        (_set((2, 1), 2), Reading(), "Expected 0 or 1 .* for the finding 'Effusion', got 2 in record 2"),
        (MATRIX, Reading(findings=("Edma",)), "Unknown finding 'Edma'. Did you mean Edema"),
        (MATRIX * [1, 1, 0], Reading(), "1 of 3 findings are true of no record: Mass"),
        (MATRIX * [1, 1, 0] + [0, 0, 1], Reading(), "1 of 3 findings are true of every record: Mass"),
        (MATRIX * 0 - 1, Reading(uncertain="drop"), "--uncertain drop leaves none"),
        (MATRIX + 0.5, Reading(), "Expected 0 or 1"),
        (np.array([list("abc")] * 6), Reading(), "Expected findings as 0 and 1"),
    ],
)
def test_bad_matrices(tmp_path: Path, matrix: np.ndarray, reading: Reading, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        open_images(pack(tmp_path, matrix), labels="attrs", reading=reading)
    assert "\n" not in str(error.value)


def test_bad_tables(tmp_path: Path) -> None:
    place = folder(tmp_path, _set((2, 1), 2))
    with pytest.raises(InputError, match=r"Line 4 of .*labels.csv has '2' for the finding Effusion"):
        open_images(place, reading=Reading(findings=NAMES))
    with pytest.raises(InputError, match="Unknown column"):
        open_images(place, reading=Reading(findings=("Edema", "Efusion")))
    with pytest.raises(InputError, match="Leave one out"):
        open_images(place, labels="Edema", reading=Reading(findings=NAMES))


def test_rules_without_findings_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pack.npz", images=images(), labels=np.arange(6) % 2)
    for reading in (Reading(findings=("a",)), Reading(uncertain="ones"), Reading(findings_as="classes")):
        with pytest.raises(InputError, match="is for several findings per image"):
            open_images(tmp_path / "pack.npz", reading=reading)
    with pytest.raises(InputError, match="--findings A does not apply"):
        open_images("builtin:digits", reading=Reading(findings=("A",)))
    with pytest.raises(InputError, match="Expected --uncertain zeros, ones or drop"):
        Reading(uncertain="maybe")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Expected different names"):
        Reading(findings=("a", "a"))


def test_arrays_and_facts() -> None:
    records = ImageSet(images(), MATRIX, NAMES)
    facts = Vault(records).facts
    assert facts.findings
    assert facts.classes == 3
    assert describe(facts.to_json()) == facts
    one = Vault(ImageSet(images(), np.arange(6) % 2)).facts
    assert "findings" not in one.to_json()
    assert describe(one.to_json()) == one
    with pytest.raises(InputError, match="zeros and ones"):
        ImageSet(images(), MATRIX - 1, NAMES)
    with pytest.raises(InputError, match="a name for each of 3 findings"):
        ImageSet(images(), MATRIX, ("a", "b"))


def test_a_digest_tells_findings_apart() -> None:
    """Two records that differ in one finding are two records, so that a copy with another label is its own unit."""
    first, second = ImageSet(images(), MATRIX, NAMES), ImageSet(images(), _set((0, 2), 1), NAMES)
    differ = (first.digests() != second.digests()).any(axis=1)
    assert differ.tolist() == [True, False, False, False, False, False]


def test_columns_are_matched_by_name() -> None:
    records = ImageSet(images(), MATRIX, NAMES)
    turned = in_class_order(records, ("Mass", "Edema", "Effusion"), "the test images")
    assert np.array_equal(turned.labels, MATRIX[:, [2, 0, 1]])
