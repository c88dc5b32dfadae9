import builtins
import csv
import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError, VerificationError
from veilset.data.opening import open_images
from veilset.release import export
from veilset.release.export import export_release, folder_names
from veilset.release.format import load_release

FORMATS = ["folder", "parquet", "webdataset", "npz", "hf"]


@pytest.mark.parametrize("to", FORMATS)
def test_every_export_carries_certificate_and_card_and_is_deterministic(make, to):
    path = make.saved(channels=3)
    first = export_release(path, to, make.folder / "first")
    second = export_release(path, to, make.folder / "second")
    assert (first / "certificate.json").read_bytes() == (path / "certificate.json").read_bytes()
    card = (first / "README.md").read_text()
    assert "This is an export of a release" in card
    assert ("data.npz" in card) is (to == "npz")
    files = [file.relative_to(first) for file in first.rglob("*") if file.is_file()]
    assert files
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("to", ["folder", "parquet"])
def test_our_readers_read_our_exports(make, to, channels):
    path = make.saved(channels=channels)
    release = load_release(path)
    records = open_images(str(export_release(path, to, make.folder / "out")))
    images = records.read(np.arange(len(release)))
    # The folder comes sorted by class.
    order = np.argsort(release.labels, kind="stable") if to == "folder" else np.arange(len(release))
    np.testing.assert_array_equal(images, release.images[order])
    np.testing.assert_array_equal(records.labels, release.labels[order])
    assert records.class_names == release.certificate.facts.class_names


def test_the_npz_export_is_the_certified_file(make):
    path = make.saved()
    out = export_release(path, "npz", make.folder / "out")
    assert (out / "data.npz").read_bytes() == (path / "data.npz").read_bytes()
    records = open_images(str(out / "data.npz"))
    np.testing.assert_array_equal(records.labels, load_release(path).labels)


@pytest.mark.parametrize("soft", [True, False])
def test_the_folder_has_a_line_of_metadata_for_each_image(make, soft):
    path = make.saved(soft=soft)
    release = load_release(path)
    out = export_release(path, "folder", make.folder / "out")
    with (out / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for index, row in enumerate(rows):
        np.testing.assert_array_equal(np.asarray(Image.open(out / row["file_name"])), release.images[index, ..., 0])
        assert int(row["label"]) == release.labels[index]
        assert row["class_name"] == ("cat", "dog", "emu")[release.labels[index]]
        if soft:
            assert [np.float32(row[f"soft_{i}"]) for i in range(3)] == release.soft_labels[index].tolist()
    assert ("soft_0" in rows[0]) is soft


def test_parquet_has_the_features_of_hugging_face(make, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export, "_ROWS_PER_FILE", 5)
    path = make.saved()
    out = export_release(path, "parquet", make.folder / "out")
    files = sorted(out.glob("*.parquet"))
    assert [file.name for file in files] == [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    table = parquet.read_table(files[1])
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    assert features["label"] == {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}
    assert features["soft_label"]["length"] == 3
    assert table["soft_label"].to_pylist() == load_release(path).soft_labels[5:10].tolist()
    np.testing.assert_array_equal(open_images(str(out)).read(np.arange(12)), load_release(path).images)


def test_webdataset_shards_hold_image_class_and_description(make, monkeypatch):
    monkeypatch.setattr(export, "_ROWS_PER_FILE", 5)
    path = make.saved(channels=3)
    release = load_release(path)
    out = export_release(path, "webdataset", make.folder / "out")
    shards = sorted(out.glob("*.tar"))
    assert len(shards) == 3
    seen = 0
    for shard in shards:
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
            content = {member.name: tar.extractfile(member).read() for member in members}
        assert all(member.mtime == 0 and member.uid == 0 for member in members)
        for stem in sorted({name.partition(".")[0] for name in content}):
            image = np.asarray(Image.open(io.BytesIO(content[f"{stem}.png"])))
            np.testing.assert_array_equal(image, release.images[seen])
            about = json.loads(content[f"{stem}.json"])
            assert int(content[f"{stem}.cls"]) == about["label"] == release.labels[seen]
            assert np.float32(about["soft_label"]).tolist() == release.soft_labels[seen].tolist()
            seen += 1
    assert seen == 12


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("cat", "dog"), ["cat", "dog"]),
        (("dog", "cat"), ["0_dog", "1_cat"]),
        (tuple(map(str, range(10))), list(map(str, range(10)))),
        (tuple(map(str, range(11))), [f"{i:02d}_{i}" for i in range(11)]),
        (("10", "9"), ["0_10", "1_9"]),
        (("a/b", "c\\d"), ["a_b", "c_d"]),
        (("../../x", "/etc"), ["0_x", "1_etc"]),
        ((".", "..", ""), ["0_class_", "1_class_", "2_class_"]),
        (("Cat", "cat"), ["0_Cat", "1_cat"]),
        (("con", "nul.txt"), ["class_con", "class_nul.txt"]),
        (("a b", "a:b"), ["0_a_b", "1_a_b"]),
        (("héron",), ["héron"]),
    ],
)
def test_folder_names_are_safe_distinct_and_in_order(names, folders):
    assert folder_names(names) == folders


def test_long_names_are_cut():
    assert len(folder_names(["é" * 300])[0].encode()) <= 100


@pytest.mark.parametrize("names", [("z/../..", "a", "\ud800"), ("10", "9", "8")])
@pytest.mark.parametrize("to", ["folder", "parquet", "webdataset"])
def test_odd_class_names_keep_their_labels(make, to, names):
    path = make.saved(names=names)
    out = export_release(path, to, make.folder / "deep" / "out")
    assert {file.name for file in (make.folder / "deep").iterdir()} == {"out"}
    if to == "folder":
        np.testing.assert_array_equal(open_images(str(out)).labels, np.sort(load_release(path).labels))


def test_an_altered_release_is_not_exported(make):
    path = make.saved()
    (path / "card.md").write_text("better")
    with pytest.raises(VerificationError, match=r"card\.md"):
        export_release(path, "folder", make.folder / "out")
    assert not (make.folder / "out").exists()


def test_bad_requests_are_refused_and_leave_nothing(make, monkeypatch):
    path = make.saved()
    out = make.folder / "out"
    with pytest.raises(InputError, match="Did you mean parquet"):
        export_release(path, "parket", out)
    with pytest.raises(InputError, match="does not exist"):
        export_release(make.folder / "gone", "npz", out)
    with pytest.raises(InputError, match="inside the release"):
        export_release(path, "npz", path / "out")
    out.mkdir()
    with pytest.raises(InputError, match="exists already"):
        export_release(path, "npz", out)
    out.rmdir()
    five = make.saved(channels=5)
    with pytest.raises(InputError, match="1 to 4 channels"):
        export_release(five, "folder", out)
    real = builtins.__import__

    def without_pyarrow(name, *rest, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(InputError, match=r"veilset\[data\]"):
        export_release(path, "parquet", out)
    assert not out.exists()
    assert not list(make.folder.glob(".out*"))


def test_the_signature_goes_along(make, pristine):
    path = make.folder / "signed"
    path.mkdir()
    for name, content in pristine.items():
        if name != "key":
            (path / name).write_bytes(content)
    out = export_release(path, "npz", make.folder / "out")
    assert (out / "certificate.sig").read_bytes() == pristine["certificate.sig"]


def test_a_release_without_a_guarantee_exports_without_an_epsilon(make):
    for to in FORMATS:
        out = export_release(make.saved(noise="seeded"), to, make.folder / to)
        for file in out.rglob("*"):
            if file.suffix in {".md", ".csv"}:
                assert "epsilon" not in file.read_text()


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1+1", "\r=1+1", " =cmd|' /C calc'!A0", "\uff1d1+1", "\n=1"]
)
def test_no_cell_of_the_table_is_a_formula(make, name):
    out = export_release(make.saved(names=("cat", name)), "folder", make.folder / "out")
    with (out / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = name.translate({9: " ", 10: " ", 13: " "})
    assert {row["class_name"] for row in rows} == {"cat", f"'{shown}"}
    for row in rows:
        assert not row["file_name"].startswith(("=", "+", "-", "@", "\t", "\r"))
