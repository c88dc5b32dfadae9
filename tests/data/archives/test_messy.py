"""Folders as people keep them, NIfTI volumes, text in pixels, and what `veilset inspect` says of them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from archives import SECRET, patient, write_dicom_archive, write_nifti
from veilset.cli.main import app
from veilset.core.errors import InputError
from veilset.data import open_images
from veilset.data.archives import text
from veilset.data.archives.nifti import BY_HEADER, BY_SLICE
from veilset.data.archives.reading import Reading, chosen_frames

GREY = np.random.default_rng(0).integers(0, 256, (12, 10), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (12, 10, 3), dtype=np.uint8)


class Notes:
    """A progress that keeps what is said."""

    def __init__(self) -> None:
        from veilset.core.progress import SILENT

        self.said: list[str] = []
        self.task = SILENT.task

    def note(self, said: str) -> None:
        self.said.append(said)


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    root = tmp_path / "messy"
    for name in ("ill", "well", "__MACOSX"):
        (root / name).mkdir(parents=True)
    Image.fromarray(GREY).save(root / "ill" / "grey.png")
    Image.fromarray(GREY.astype(np.uint16) * 257).save(root / "ill" / "sixteen.png")
    Image.fromarray(GREY).convert("P").save(root / "ill" / "palette.png")
    Image.fromarray(np.dstack([COLOUR, GREY])).save(root / "ill" / "alpha.png")
    Image.fromarray(COLOUR).convert("CMYK").save(root / "well" / "print.jpg")
    exif = Image.Exif()
    exif[274] = 6  # turned by a quarter
    Image.fromarray(COLOUR).save(root / "well" / "phone.jpg", exif=exif)
    Image.fromarray(COLOUR).resize((40, 30)).save(root / "well" / "large.webp", lossless=True)
    Image.fromarray(GREY).save(root / "well" / "scan.tif")
    for stray in ("ill/.DS_Store", "Thumbs.db", "well/desktop.ini", "__MACOSX/ill", "well/notes.txt", "well/old.gif"):
        (root / stray).write_bytes(b"x")
    Image.fromarray(GREY).save(root / "cover.png")
    return root


def test_mixed_formats_become_one_set(messy):
    notes = Notes()
    records = open_images(messy, size=16, channels=1, progress=notes)
    assert records.shape == (16, 16, 1)
    assert records.labels.tolist() == [0] * 4 + [1] * 4
    assert (records.tally.found, records.tally.used) == (14, 8)
    assert notes.said[-1] == (
        "14 files found, 8 used. Left out: 3 of the system (.DS_Store, Thumbs.db and the like); 1 of another kind "
        "(.txt); 1 of another kind (.gif); 1 outside of the class folders."
    )
    alike = records.read(np.array([1, 3]))  # grey.png and sixteen.png: the high byte is the 8-bit value
    np.testing.assert_array_equal(alike[0], alike[1])


def test_bad_files_are_left_out_and_never_certified(messy, tmp_path):
    (messy / "well" / "bad.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"1 of 9 images cannot be read: well/bad.png"):
        open_images(messy, size=16, channels=1)
    for number in range(20):
        Image.fromarray(GREY + np.uint8(number)).save(messy / "ill" / f"{number}.png")
    arguments = ["synthesize", str(messy), "--size", "16", "--channels", "1", "--skip-bad", "--samples", "20", "-y"]
    arguments += ["--method", "merf", "--preset", "smoke", "--epsilon", "10", "--delta", "0.01"]
    found = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "release")])
    assert found.exit_code == 0, found.output
    for path in (tmp_path / "release").iterdir():
        assert not any(word in path.read_bytes() for word in (b"bad.png", b"skip-bad", b"skip_bad", b"unreadable")), (
            path
        )
    assert "1 that cannot be read (--skip-bad)" in found.stderr
    assert "Left out as unreadable: well/bad.png (" in found.stderr


def test_a_class_of_bad_files_alone_is_refused(messy):
    for path in (messy / "well").iterdir():
        path.write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match="1 of 2 classes have no record: well"):
        open_images(messy, size=16, channels=1, reading=Reading(skip_bad=True))


def test_frames_are_chosen_by_public_rules():
    assert chosen_frames("first", 9) == [0]
    assert chosen_frames("middle", 9) == [4]
    assert chosen_frames("3", 9) == [1, 4, 7]
    assert chosen_frames("20", 3) == [0, 1, 2]
    for wrong in ({"slices": "0"}, {"slices": "top"}, {"frames": "last"}, {"burned_in": "yes"}, {"window": (1.0, 0.0)}):
        with pytest.raises(InputError, match="Expected --"):
            Reading(**wrong)


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    pytest.importorskip("nibabel")
    for number, name in enumerate(["a.nii", "b.nii.gz"]):
        values = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6) + np.uint8(number)
        write_nifti(tmp_path / name, values)
    (tmp_path / "labels.csv").write_text("path,label\na.nii,0\nb.nii.gz,1\n")
    return tmp_path


@pytest.mark.parametrize(("rule", "slices"), [("middle", [3]), ("all", [0, 1, 2, 3, 4, 5]), ("2", [1, 4])])
def test_volumes_by_slices(volumes, rule, slices):
    records = open_images(volumes, reading=Reading(slices=rule))
    values = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    expected = np.stack([values[:, ::-1, place].T for place in slices])
    np.testing.assert_array_equal(records.read(np.arange(len(slices)))[..., 0], expected)
    np.testing.assert_array_equal(records.read(np.arange(len(slices), 2 * len(slices)))[..., 0], expected + 1)
    assert records.groups.tolist() == ["a.nii"] * len(slices) + ["b.nii.gz"] * len(slices)
    assert any("each file" in line for line in records.tally.lines())


def test_a_volume_is_seen_the_same_way_however_it_lies(volumes):
    """A file whose axes are turned and mirrored, and whose header says so, has the same slices."""
    values = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    turned = values[::-1].transpose(2, 0, 1)
    affine = np.array([[0, -1, 0, 3], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])
    write_nifti(volumes / "b.nii.gz", turned, affine)
    records = open_images(volumes, reading=Reading(slices="all"))
    np.testing.assert_array_equal(records.read(np.arange(6)), records.read(np.arange(6, 12)))


def test_values_of_volumes_come_to_8_bits_by_a_rule_that_is_said(volumes):
    import nibabel

    values = np.arange(120, dtype=np.int16).reshape(4, 5, 6) * 10
    image = nibabel.Nifti1Image(values, np.eye(4))
    nibabel.save(image, volumes / "a.nii")
    image.header["cal_min"], image.header["cal_max"] = 0, 2550
    nibabel.save(image, volumes / "b.nii.gz")
    records = open_images(volumes, reading=Reading(slices="middle"))
    assert dict(records.tally.rules) == {BY_SLICE: 1, BY_HEADER: 1}
    first, second = records.read(np.arange(2))
    assert (first.min(), first.max()) == (0, 255)
    np.testing.assert_array_equal(second[..., 0], (values[:, ::-1, 3].T / 10).astype(np.uint8))
    records = open_images(volumes, reading=Reading(slices="middle", window=(1275, 2550)))
    np.testing.assert_array_equal(records.read(np.array([0])), records.read(np.array([1])))


def test_volumes_over_time_need_a_rule(volumes):
    write_nifti(volumes / "a.nii", np.zeros((4, 5, 6, 3), np.uint8) + np.arange(3, dtype=np.uint8))
    with pytest.raises(InputError, match=r"a.nii holds 3 volumes. Say which to use: --frames"):
        open_images(volumes, reading=Reading(slices="middle"))
    records = open_images(volumes, reading=Reading(slices="middle", frames="all"))
    assert records.read(np.arange(3))[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_text_that_a_check_finds(messy, monkeypatch):
    def find(image: np.ndarray) -> list[text.Box]:
        return [(2, 4, 1, 3)] if image.shape[:2] == (30, 40) else []

    monkeypatch.setattr(text, "finder", lambda: find)
    with pytest.raises(InputError, match=r"1 files show that text is burned into the image.*well/large.webp"):
        open_images(messy, size=16, channels=1, reading=Reading(check_text=True))
    monkeypatch.setattr(text, "_MARGIN", 0)
    (messy / "well" / "large.webp").rename(messy / "ill" / "large.webp")
    records = open_images(messy, size=30, channels=3, reading=Reading(check_text=True, burned_in="mask"))
    plain = open_images(messy, size=30, channels=3)
    changed = (records.digests() != plain.digests()).any(axis=1)
    assert changed.sum() == 1
    assert "blanked: 1 images where it was found." in records.tally.lines()[1]


def test_a_check_for_text_needs_its_package(messy, monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(InputError, match=r"needs rapidocr, which is not installed: pip install veilset\[medical\]"):
        open_images(messy, size=16, channels=1, reading=Reading(check_text=True))


def test_the_check_reads_a_name():
    pytest.importorskip("rapidocr")
    from PIL import ImageDraw

    picture = Image.new("L", (400, 200), 40)
    ImageDraw.Draw(picture).text((20, 20), "DOE^JANE 1961", fill=250, font_size=30)
    ImageDraw.Draw(picture).text((360, 150), "L", fill=250, font_size=30)
    found = text.finder()(np.asarray(picture)[..., None])
    assert len(found) == 1
    top, bottom, left, right = found[0]
    assert top < 40 < bottom
    assert left < 30 < 200 < right


def test_inspect_shows_what_was_read(tmp_path):
    pytest.importorskip("pydicom")
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8), dtype=np.uint8)
    folder = write_dicom_archive(tmp_path / "dicom", images, list("abababaab"), [patient(n // 4) for n in range(9)])
    (folder / ".DS_Store").write_bytes(b"x")
    page = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["inspect", str(folder), "--page", str(page), "--json"])
    assert found.exit_code == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["found"], result["used"], result["unit"], result["units"]) == (10, 9, "group", 3)
    assert result["classes"] == {"a": 5, "b": 4}
    assert result["groups"] == {"groups": 3, "least": 1, "median": 4.0, "most": 4}
    assert any("Only 3 groups" in warning for warning in result["warnings"])
    assert result["minutes"]["merf"] > 0
    assert "NOT FOR RELEASE" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    assert SECRET not in found.output + found.stderr + page.read_text()
    again = CliRunner().invoke(app, ["inspect", str(folder), "--page", str(page)])
    assert again.exit_code == 2
    shown = CliRunner().invoke(app, ["inspect", str(folder), "--limit", "2"])
    assert "left out by --limit" in shown.stdout


def test_inspect_touches_no_account_and_writes_nothing(messy, tmp_path, monkeypatch):
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    before = sorted(tmp_path.rglob("*"))
    found = CliRunner().invoke(app, ["inspect", str(messy), "--size", "16", "--channels", "1"])
    assert found.exit_code == 0, found.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert "14 found, 8 used, 6 left out" in found.stdout
    assert "No groups are known" in found.stderr
