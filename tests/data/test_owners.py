"""`--groups-file`, and public images without classes."""

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.data.opening import open_images


@pytest.fixture
def folder(tmp_path):
    """Four images of two classes; 1.png is there twice."""
    for place in ("a/1.png", "a/2.png", "b/1.png", "b/3.png"):
        path = tmp_path / "xrays" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16), 10 * len(list(tmp_path.rglob("*.png"))), np.uint8)).save(path)
    return tmp_path / "xrays"


def owners(folder, text, **options):
    table = folder.parent / "patients.csv"
    table.write_text(text)
    return open_images(folder, groups_file=table, **options).groups.tolist()


PATHS = "path,group\na/1.png,7\na/2.png,7\nb/1.png,8\nb/3.png,9\n"


@pytest.mark.parametrize(
    "text",
    [
        PATHS,
        PATHS.replace("path,group", "File;patient".replace(";", ",")),
        PATHS.replace(",", ";"),
        PATHS.replace("a/2.png", "2.png").replace("b/3", "./b/3"),
        PATHS + "c/gone.png,10\n",
    ],
)
def test_a_table_beside_the_folder_says_who_owns_what(folder, text):
    assert owners(folder, text) == [7, 7, 8, 9]


def test_the_column_can_be_named(folder):
    text = "path,visit,patient\na/1.png,1,x\na/2.png,2,x\nb/1.png,3,y\nb/3.png,4,y\n"
    assert owners(folder, text, groups="patient") == ["x", "x", "y", "y"]
    with pytest.raises(InputError, match=r"Unknown column of .*patients.csv 'group'"):
        owners(folder, text)


def test_it_goes_with_labels_csv(folder):
    (folder / "labels.csv").write_text("path,label\na/1.png,x\na/2.png,y\nb/1.png,x\nb/3.png,y\n")
    assert owners(folder, PATHS) == [7, 7, 8, 9]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (PATHS.replace("b/3.png,9\n", ""), r"no line for 1 of 4 images: b/3.png"),
        (PATHS.replace("a/1.png", "1.png").replace("b/1.png", "other.png"), r"2 files are called 1.png"),
        (PATHS + "./a/1.png,8\n", r"Lines 2 and 6 of .* give one file two groups"),
        (PATHS.replace(",9", ","), r"Line 5 of .* lacks a group"),
        ("a/1.png,7\n", r"Its first line must name the columns: path or file"),
    ],
)
def test_what_is_unclear_is_refused(folder, text, cause):
    with pytest.raises(InputError, match=cause):
        owners(folder, text)


def test_other_sources_name_their_own_groups(folder, tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 16, 16), np.uint8), labels=np.arange(4) % 2)
    for source in (tmp_path / "a.npz", "builtin:digits"):
        with pytest.raises(InputError, match="--groups-file is for folders of image files"):
            open_images(source, groups_file=tmp_path / "patients.csv")
    with pytest.raises(InputError, match=r"--groups names a column.*--groups-file patients.csv"):
        open_images(folder, groups="patients")


def test_public_images_need_no_classes(folder, tmp_path):
    flat = tmp_path / "photos"
    flat.mkdir()
    for number, path in enumerate(folder.rglob("*.png")):
        path.rename(flat / f"{number}.png")
    with pytest.raises(InputError, match="one sub-folder for each class"):
        open_images(flat)
    assert open_images(flat, needs_classes=False).class_names == ("images",)
    (flat / "more").mkdir()
    (flat / "0.png").rename(flat / "more" / "0.png")
    assert len(open_images(flat, needs_classes=False).labels) == 4
    np.savez(tmp_path / "p.npz", images=np.zeros((4, 16, 16), np.uint8))
    assert open_images(tmp_path / "p.npz", needs_classes=False).labels.tolist() == [0] * 4
    with pytest.raises(InputError, match="Unknown array"):
        open_images(tmp_path / "p.npz")


def test_public_parquet_needs_no_label(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(tmp_path / "x.png")
    content = (tmp_path / "x.png").read_bytes()
    parquet.write_table(arrow.table({"image": [content, content]}), tmp_path / "p.parquet")
    assert open_images(tmp_path / "p.parquet", needs_classes=False).class_names == ("images",)
    with pytest.raises(InputError, match="Unknown column"):
        open_images(tmp_path / "p.parquet")


def test_a_pack_without_splits_says_so(tmp_path):
    np.savez(tmp_path / "ok.npz", images=np.zeros((4, 16, 16), np.uint8), labels=np.arange(4) % 2)
    with pytest.raises(InputError, match=r"has no splits, and so no 'train'.*Pass .*ok.npz alone"):
        open_images(f"{tmp_path / 'ok.npz'}:train")
