"""What hospitals' archives bring: one clear line for each, exit code 2, and never a patient in it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from archives import SECRET, patient, uid, write_dicom, write_nifti
from veilset.cli.main import app

pydicom = pytest.importorskip("pydicom")
pytest.importorskip("nibabel")
TEST_FILES = Path(pydicom.__file__).parent / "data" / "test_files"
GREY = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
Build = Callable[[Path], object]
CASES: dict[str, tuple[Build, list[str], str]] = {}


def case(name: str, message: str, *options: str) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        CASES[name] = (build, list(options), message)
        return build

    return add


def dicom(folder: Path, number: int, **tags) -> Path:
    who = tags.pop("who", patient(number))
    pixels = tags.pop("pixels", GREY)
    return write_dicom(folder / f"{number}.dcm", pixels, who=who, number=number, **tags)


def archive(folder: Path, **tags) -> None:
    """Four good files and one with these tags, all in the table."""
    for number in range(4):
        dicom(folder, number)
    dicom(folder, 4, **tags)
    labels(folder, "path,label\n" + "".join(f"{number}.dcm,{number % 2}\n" for number in range(5)))


def labels(folder: Path, text: str, encoding: str = "utf-8") -> None:
    (folder / "labels.csv").write_bytes(text.encode(encoding))


def pngs(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(GREY + number).save(folder / name)


@case("no PatientID", "1 of 5 DICOM files have no PatientID: 4.dcm. Add a column group")
def _(folder):
    archive(folder, who="")


@case("a PatientID of spaces", "1 of 5 DICOM files have no PatientID: 4.dcm")
def _(folder):
    archive(folder, who="   ")


@case("one study of two patients", "0.dcm and 4.dcm belong to one study but to two patients")
def _(folder):
    archive(folder, study=0)


@case("every patient overwritten by one name", "All 3 DICOM files have one PatientID in 3 studies")
def _(folder):
    for number in range(3):
        dicom(folder, number, who=SECRET)
    labels(folder, "path,label\n0.dcm,0\n1.dcm,1\n2.dcm,0\n")


@case("two labels for one study", "Lines 2 and 3 of .*labels.csv give one StudyInstanceUID two labels")
def _(folder):
    archive(folder)
    labels(folder, f"StudyInstanceUID,label\n{uid(2, 0)},0\n{uid(2, 0)},1\n")


@case("two groups for one study", "Lines 2 and 3 of .*labels.csv give one StudyInstanceUID two groups")
def _(folder):
    archive(folder)
    labels(folder, f"StudyInstanceUID,label,group\n{uid(2, 0)},0,{SECRET}a\n{uid(2, 0)},0,{SECRET}b\n")


@case("one path twice", "1 paths of labels.csv stand there twice: 0.dcm")
def _(folder):
    archive(folder)
    labels(folder, f"path,label,group\n0.dcm,0,{SECRET}\n./0.dcm,0,{SECRET}b\n")


@case("labels for paths that are not there", "1 files of labels.csv are not in .*: 9.dcm")
def _(folder):
    archive(folder)
    labels(folder, "path,label\n0.dcm,0\n9.dcm,1\n")


@case("labels for studies that are not there", r"1 of 3 lines of .*labels.csv belong to no image: line 4\.")
def _(folder):
    archive(folder)
    labels(folder, f"StudyInstanceUID,label\n{uid(2, 0)},0\n{uid(2, 1)},1\n{uid(2, 77)},1\n")


@case("files without labels", "No DICOM file has a label: of 5 files none has a SOPInstanceUID that stands in")
def _(folder):
    archive(folder)
    labels(folder, "SOPInstanceUID,label\n1.2.3,0\n")


@case(
    "no table", r"holds DICOM files and no labels.csv. Add one, or pass --table FILE.csv, with the columns path or SOP"
)
def _(folder):
    archive(folder)
    (folder / "labels.csv").unlink()


@case("no column of labels", "Unknown column of .*labels.csv 'label'")
def _(folder):
    archive(folder)
    labels(folder, "path,finding\n0.dcm,0\n")


@case("no line of names", "Unknown column of .*labels.csv 'path'. Its first line must name the columns")
def _(folder):
    archive(folder)
    labels(folder, f"0.dcm,{SECRET},0\n")


@case("blank groups", "Line 3 of .*labels.csv lacks a group")
def _(folder):
    archive(folder)
    labels(folder, f"path,label,group\n0.dcm,0,{SECRET}\n1.dcm,1,  \n")


@case("a blank label behind a BOM and semicolons", "Line 3 of .*labels.csv lacks a label")
def _(folder):
    archive(folder)
    labels(folder, "path;label\r\n0.dcm;0\r\n1.dcm;\r\n", "utf-8-sig")


@case("a table in Latin-1", "labels.csv is not a CSV file in UTF-8 .*Save it as CSV with the encoding UTF-8")
def _(folder):
    archive(folder)
    labels(folder, "path,label\n0.dcm,müde\n", "latin-1")


@case("a table in UTF-16, as spreadsheets save it", "labels.csv is not a CSV file in UTF-8")
def _(folder):
    archive(folder)
    labels(folder, "path,label\n0.dcm,0\n", "utf-16")


@case("a label that --classes does not name", "Labels 2 are not among --classes 0,1", "--classes", "0,1")
def _(folder):
    archive(folder)
    labels(folder, "path,label\n0.dcm,0\n1.dcm,1\n2.dcm,2\n")


@case("one image twice", "3.dcm and 4.dcm have the same SOPInstanceUID")
def _(folder):
    archive(folder)
    shutil.copy(folder / "3.dcm", folder / "4.dcm")


@case("a transfer syntax of nobody", r"4.dcm \(stored as something unknown, which cannot be read\)")
def _(folder):
    archive(folder, TransferSyntaxUID="1.2.3.4.5.6")


@case(
    "a transfer syntax without a codec", r"4.dcm \(stored as High-Throughput JPEG 2000 .*pip install veilset\[medical\]"
)
def _(folder):
    archive(folder)
    path = folder / "4.dcm"
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.201"
    dataset.PixelData = pydicom.encaps.encapsulate([bytes(40)])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(path)


@case("deflated", r"4.dcm \(stored as Deflated Explicit VR, which is not read: unpack it first\)")
def _(folder):
    archive(folder)
    shutil.copy(TEST_FILES / "image_dfl.dcm", folder / "4.dcm")


@case("pixels cut off", r"1 of 5 images cannot be read: 4.dcm \(fewer pixels than it says: the file is cut off\)")
def _(folder):
    archive(folder)
    path = folder / "4.dcm"
    path.write_bytes(path.read_bytes()[:-30])


@case("something else called .dcm", r"4.dcm \(not a DICOM file: its first bytes say something else\)")
def _(folder):
    archive(folder)
    Image.fromarray(GREY).save(folder / "4.dcm", "PNG")


@case("an empty file", r"1 of 5 DICOM files cannot be read: 4.dcm")
def _(folder):
    archive(folder)
    (folder / "4.dcm").write_bytes(b"")


@case("grey and colour", "Some images are grey and some in colour.*Pass --channels 1 or 3")
def _(folder):
    archive(folder, pixels=np.repeat(GREY[..., None], 3, axis=2))


@case("different sizes", "2 different shapes.*Pass --size 32")
def _(folder):
    archive(folder, pixels=GREY[:4])


@case("an image of no pixels", r"4.dcm \(an image of 0x8 pixels\)")
def _(folder):
    archive(folder, Rows=0)


@case("impossible bits", r"4.dcm \(12 bits stored in 8 allocated\)")
def _(folder):
    archive(folder, BitsStored=12)


@case("a number that is none", r"4.dcm \(damaged: its tags cannot be read \(\w+\)\)")
def _(folder):
    archive(folder, NumberOfFrames=23)
    path = folder / "4.dcm"
    path.write_bytes(path.read_bytes().replace(b"IS\x02\x0023", b"IS\x02\x00XY"))


@case("a bomb", r"4.dcm \(more than 64,000,000 pixels\)")
def _(folder):
    archive(folder, Rows=65535, Columns=65535)


@case("several frames without a rule", "4.dcm has 3 frames. Say which to use: --frames first, middle or all")
def _(folder):
    archive(folder, pixels=np.stack([GREY] * 3), NumberOfFrames=3)


@case("text that is declared", "1 files say that text is burned into the image, perhaps a name: 4.dcm")
def _(folder):
    archive(folder, BurnedInAnnotation="YES")


@case("a report named in the table", "No DICOM file has a label")
def _(folder):
    shutil.copy(TEST_FILES / "test-SR.dcm", folder / "report.dcm")
    labels(folder, "path,label\nreport.dcm,0\n")


@case("DICOM beside images", "holds 1 image files and 5 DICOM files. Say which to read: --kind images or --kind dicom")
def _(folder):
    archive(folder)
    pngs(folder, "thumb.png")


@case("a NIfTI file of 2 dimensions", r"a.nii \(2 dimensions; 3 are expected", "--slices", "middle")
def _(folder):
    write_nifti(folder / "a.nii", GREY)
    labels(folder, "path,label\na.nii,0\n")


@case("a NIfTI file that is none", r"a.nii.gz \(not a NIfTI file, or damaged", "--slices", "middle")
def _(folder):
    (folder / "a.nii.gz").write_bytes(b"no")
    labels(folder, "path,label\na.nii.gz,0\n")


@case("volumes without a rule", "holds NIfTI volumes. Say which slices to use: --slices middle, all or a number")
def _(folder):
    write_nifti(folder / "a.nii", np.stack([GREY] * 3))
    labels(folder, "path,label\na.nii,0\n")


@case("an empty folder", "holds no images: expected one sub-folder for each class")
def _(folder):
    pass


@case("stray files alone", "holds no images.*There are 2 files of the system")
def _(folder):
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "Thumbs.db").write_bytes(b"x")


@case("a damaged PNG", r"1 of 3 images cannot be read: b/3.png \(damaged: .*leave them out with --skip-bad")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png", "b/3.png")
    path = folder / "b" / "3.png"
    path.write_bytes(path.read_bytes()[:60])


@case("an image that is text", r"b/3.png \(not an image of a known format\)")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png")
    (folder / "b" / "3.png").write_text("see PACS")


@case("an animation", r"b/3.tif \(2 frames where one image is expected\)")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png")
    Image.fromarray(GREY).save(folder / "b" / "3.tif", save_all=True, append_images=[Image.fromarray(GREY)])


@case("values of 32 bits", r"b/3.tif \(32-bit values; 8 or 16 bits are read\)")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png")
    Image.fromarray(GREY.astype(np.int32) * 10**6).save(folder / "b" / "3.tif")


@case("a folder that links to itself", "loop is a link to another folder")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png")
    (folder / "a" / "loop").symlink_to(folder / "a")


@case("a file that links to itself", "3.png is a link that leads nowhere")
def _(folder):
    pngs(folder, "a/1.png", "b/2.png")
    (folder / "b" / "3.png").symlink_to(folder / "b" / "3.png")


@case("a DICOM file that is a link to the outside", "1 paths of labels.csv leave")
def _(folder):
    archive(folder)
    (folder / "4.dcm").rename(folder.parent / "4.dcm")
    (folder / "4.dcm").symlink_to(folder.parent / "4.dcm")


@pytest.mark.parametrize("name", CASES)
def test_a_bad_archive_gets_one_clear_line(tmp_path, name):
    build, options, message = CASES[name]
    folder = tmp_path / "archive"
    folder.mkdir()
    build(folder)
    found = CliRunner().invoke(app, ["inspect", str(folder), *options])
    assert found.exit_code == 2, found.output
    errors = [line for line in found.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert found.stderr.rstrip().endswith(errors[0]), "one line, and the last"
    assert re.search(message, errors[0]), errors[0]
    assert SECRET not in found.output + found.stderr
    assert "1.2.826" not in found.output + found.stderr  # no id of a study or an image, either
