"""DICOM archives: the same records as from other files, and no tag anywhere."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from archives import SECRET, patient, uid, write_dicom, write_dicom_archive
from veilset.cli.main import app
from veilset.core.errors import InputError
from veilset.data import ImageSet, open_images
from veilset.data.archives.dicom_pixels import BY_BITS, BY_FILE, BY_LUT, BY_WINDOW, dicom_picture, windowed
from veilset.data.archives.reading import Reading

pydicom = pytest.importorskip("pydicom")
TEST_FILES = Path(pydicom.__file__).parent / "data" / "test_files"


def pictures(count: int = 12, side: int = 8, kind: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, np.iinfo(kind).max, (count, side, side), dtype=kind)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    labels = ["ill", "well"] * 6
    return write_dicom_archive(tmp_path / "dicom", pictures(), labels, [patient(n // 3) for n in range(12)])


def table(archive: Path, text: str) -> Path:
    (archive / "labels.csv").write_text(text)
    return archive


def test_records_are_those_of_the_same_pack(archive):
    records = open_images(archive)
    held = ImageSet(pictures(), np.tile([0, 1], 6), ("ill", "well"))
    np.testing.assert_array_equal(records.read(np.arange(12)), held.images)
    np.testing.assert_array_equal(records.digests(), held.digests())
    np.testing.assert_array_equal(records.source_digests(), held.source_digests())
    assert records.groups.tolist() == [patient(n // 3) for n in range(12)]


def test_size_channels_and_limit_are_those_of_every_source(archive):
    records = open_images(archive, size=16, channels=3, limit=2, seed=1)
    assert records.shape == (16, 16, 3)
    whole = open_images(archive, size=16, channels=3)
    kept = np.isin(whole.groups, records.groups)
    np.testing.assert_array_equal(records.digests(), whole.digests()[kept])
    assert 1 <= len(set(records.groups.tolist())) < 4
    assert records.tally.ignored["left out by --limit"] == 12 - len(records)


def test_a_release_is_the_same_byte_for_byte_but_for_noise(tmp_path):
    """As DICOM, as PNG with a table, and as a pack: with seeded noise the released files are equal."""
    images = np.random.default_rng(1).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    labels, who = [str(n % 2) for n in range(60)], [patient(n // 2) for n in range(60)]
    write_dicom_archive(tmp_path / "dicom", images, labels, who)
    (tmp_path / "png").mkdir()
    lines = ["path,label,group"]
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "png" / f"{number:05}.png")
        lines.append(f"{number:05}.png,{labels[number]},{who[number]}")
    table(tmp_path / "png", "\n".join(lines))
    np.savez(tmp_path / "pack.npz", images=images, labels=np.array(labels).astype(int), patients=np.array(who))
    data = {}
    for source, more in (("dicom", []), ("png", []), ("pack.npz", ["--groups", "patients"])):
        out = tmp_path / f"release-{source}"
        options = [
            "--method",
            "merf",
            "--preset",
            "smoke",
            "--epsilon",
            "10",
            "--samples",
            "20",
            "--insecure-seed",
            "1",
        ]
        found = CliRunner().invoke(
            app, ["synthesize", str(tmp_path / source), *options, *more, "--out", str(out), "-y"]
        )
        assert found.exit_code == 0, found.output
        assert SECRET not in found.output
        data[source] = (out / "data.npz").read_bytes()
        certificate = json.loads((out / "certificate.json").read_text())
        assert certificate["unit"] == "group"
        assert not any(SECRET.encode() in file.read_bytes() for file in out.rglob("*") if file.is_file())
    assert data["dicom"] == data["png"] == data["pack.npz"]


@pytest.mark.parametrize("column", ["SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "PatientID", "path"])
def test_a_table_may_name_files_by_their_ids(archive, column):
    value = {
        "SOPInstanceUID": lambda n: uid(1, n),
        "SeriesInstanceUID": lambda n: uid(3, n),
        "StudyInstanceUID": lambda n: uid(2, n),
        "PatientID": lambda n: patient(n // 3),
        "path": lambda n: f"000/{n:05}.dcm",
    }[column]
    table(archive, f"{column.lower()};label\n" + "".join(f"{value(n)};{n // 3 % 2}\n" for n in range(12)))
    records = open_images(archive)
    assert records.labels.tolist() == [n // 3 % 2 for n in range(12)]
    assert len(set(records.groups.tolist())) == 4


def test_a_table_elsewhere_and_its_groups(archive, tmp_path):
    shutil.move(archive / "labels.csv", tmp_path / "mine.csv")
    with pytest.raises(InputError, match=r"no labels.csv.*--table"):
        open_images(archive)
    lines = (tmp_path / "mine.csv").read_text().splitlines()
    text = "\n".join([f"{lines[0]},group", *(f"{line},g{number % 5}" for number, line in enumerate(lines[1:]))])
    (tmp_path / "mine.csv").write_text(text)
    records = open_images(archive, reading=Reading(table=tmp_path / "mine.csv"))
    assert sorted(set(records.groups.tolist())) == ["g0", "g1", "g2", "g3", "g4"]
    assert "4 PatientIDs lie in more than one group" in records.tally.lines()[0]


def test_files_without_an_ending_are_found_and_strays_counted(archive):
    (archive / "000" / "00011.dcm").rename(archive / "000" / "1.2.840.113619.2")
    text = (archive / "labels.csv").read_text().replace("00011.dcm", "1.2.840.113619.2")
    table(archive, text.replace("000/00003.dcm,well\n", ""))
    for name in (".DS_Store", "Thumbs.db", "DICOMDIR", "readme.txt"):
        (archive / name).write_bytes(b"x")
    shutil.copy(TEST_FILES / "test-SR.dcm", archive / "report.dcm")
    records = open_images(archive)
    assert len(records) == 11
    tally = records.tally
    assert (tally.found, tally.used) == (17, 11)
    assert tally.ignored["of another kind (.txt)"] == 1
    assert tally.ignored["that labels.csv does not name"] == 2
    assert sum(tally.ignored.values()) == 6


def test_what_holds_no_image_is_left_out_of_studies(archive):
    table(archive, "StudyInstanceUID,label\n" + "".join(f"{uid(2, n)},{n % 2}\n" for n in range(12)))
    shutil.copy(TEST_FILES / "test-SR.dcm", archive / "report.dcm")
    records = open_images(archive)
    assert records.tally.ignored["without an image (reports, plans and the like)"] == 1


@pytest.mark.parametrize(("rule", "frames"), [("first", [0]), ("middle", [2]), ("all", [0, 1, 2, 3, 4])])
def test_frames_by_a_named_rule(tmp_path, rule, frames):
    stack = pictures(5)
    for number, label in enumerate(["a", "b"]):
        write_dicom(tmp_path / f"{label}.dcm", stack + number, who=patient(number), number=number, NumberOfFrames=5)
    table(tmp_path, "path,label\na.dcm,a\nb.dcm,b\n")
    with pytest.raises(InputError, match=r"a.dcm has 5 frames. Say which to use: --frames"):
        open_images(tmp_path)
    records = open_images(tmp_path, reading=Reading(frames=rule))
    np.testing.assert_array_equal(records.read(np.arange(len(frames)))[..., 0], stack[frames])
    assert records.groups.tolist() == [patient(0)] * len(frames) + [patient(1)] * len(frames)
    assert records.tally.used == 2


def one(tmp_path: Path, pixels: np.ndarray, window: tuple[float, float] | None = None, **tags):
    path = write_dicom(tmp_path / "one.dcm", pixels, who=patient(1), number=1, **tags)
    picture = dicom_picture(path, 0, window)
    return picture.pixels[..., 0] if picture.pixels.shape[2] == 1 else picture.pixels, picture.rule


def test_windows(tmp_path):
    hounsfield = np.array([[-1024, -160, 40], [140, 240, 3000]], np.int16)
    stored = (hounsfield + 1024).astype(np.uint16)
    scaled = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    expected = np.rint(255 * np.clip((hounsfield - 39.5) / 399 + 0.5, 0, 1))
    for given, tags, rule in (
        ((40, 400), {}, BY_WINDOW),
        ((40, 400), {"WindowCenter": 1, "WindowWidth": 2}, BY_WINDOW),
        (None, {"WindowCenter": [40, 600], "WindowWidth": [400, 2000]}, BY_FILE),
    ):
        pixels, found = one(tmp_path, stored, given, **scaled, **tags)
        np.testing.assert_array_equal(pixels, expected)
        assert found == rule
    exact, _ = one(tmp_path, stored, **scaled, WindowCenter=40, WindowWidth=400, VOILUTFunction="LINEAR_EXACT")
    np.testing.assert_array_equal(exact, np.rint(255 * np.clip((hounsfield - 40) / 400 + 0.5, 0, 1)))
    sigmoid, _ = one(tmp_path, stored, **scaled, WindowCenter=40, WindowWidth=400, VOILUTFunction="SIGMOID")
    np.testing.assert_array_equal(sigmoid, np.rint(255 / (1 + np.exp(-4 * (hounsfield - 40) / 400))))
    assert windowed(np.array([0, 1, 2]), 1.5, 1, "LINEAR").tolist() == [0, 128, 255]


def test_a_window_of_the_whole_range_changes_nothing(tmp_path):
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    pixels, _ = one(tmp_path, every, WindowCenter=128, WindowWidth=256)
    np.testing.assert_array_equal(pixels, every)


def test_without_a_window_the_bits_stored_decide(tmp_path):
    """The declared range, never that of an image's own pixels."""
    twelve = np.array([[0, 15, 16], [2048, 4079, 4095]], np.uint16)
    pixels, rule = one(tmp_path, twelve, BitsStored=12, HighBit=11)
    np.testing.assert_array_equal(pixels, twelve >> 4)
    assert rule == BY_BITS
    sixteen = pictures(1, 8, np.uint16)[0]
    pixels, _ = one(tmp_path, sixteen)
    (tmp_path / "a").mkdir()
    Image.fromarray(sixteen).save(tmp_path / "a" / "one.png")
    as_png = open_images(tmp_path, reading=Reading(kind="images")).read(np.array([0]))[0, ..., 0]
    np.testing.assert_array_equal(pixels, as_png)
    signed = np.array([[-2048, -1, 0, 2047]], np.int16)
    pixels, _ = one(tmp_path, signed, BitsStored=12, HighBit=11)
    assert pixels.tolist() == [[0, 127, 128, 255]]
    pixels, _ = one(tmp_path, signed, BitsStored=12, HighBit=11, RescaleSlope=-1, RescaleIntercept=0)
    assert pixels.tolist() == [[255, 128, 127, 0]]


def test_monochrome1_is_turned_over(tmp_path):
    grey = pictures(1)[0]
    pixels, _ = one(tmp_path, grey, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(pixels, 255 - grey)


def test_lookup_tables(tmp_path):
    lut = pydicom.Dataset()
    lut.LUTDescriptor = [4, 0, 16]
    lut.LUTData = np.array([0, 256, 512, 65535], np.uint16).tobytes()
    pixels, rule = one(tmp_path, np.array([[0, 1], [2, 3]], np.uint8), VOILUTSequence=[lut])
    assert pixels.tolist() == [[0, 1], [2, 255]]
    assert rule == BY_LUT


def test_enhanced_files_have_a_window_for_each_frame(tmp_path):
    stack = np.stack([np.full((2, 2), 100, np.uint16), np.full((2, 2), 100, np.uint16)])

    def item(centre: int) -> object:
        window, group = pydicom.Dataset(), pydicom.Dataset()
        window.WindowCenter, window.WindowWidth = centre, 101
        group.FrameVOILUTSequence = [window]
        return group

    tags = {"NumberOfFrames": 2, "PerFrameFunctionalGroupsSequence": [item(50), item(150)]}
    path = write_dicom(tmp_path / "e.dcm", stack, who=patient(1), number=1, **tags)
    assert [int(dicom_picture(path, frame, None).pixels[0, 0, 0]) for frame in (0, 1)] == [255, 1]


@pytest.mark.parametrize(
    "name",
    ["MR_small_RLE", "MR_small_bigendian", "MR_small_implicit", "MR_small_jp2klossless", "MR_small_jpeg_ls_lossless"],
)
def test_the_way_of_storing_changes_nothing(name):
    """Files that come with pydicom: one scan, stored in six ways."""
    if "jp" in name:
        pytest.importorskip("gdcm")
    plain, other = (dicom_picture(TEST_FILES / f"{file}.dcm", 0, None) for file in ("MR_small", name))
    np.testing.assert_array_equal(other.pixels, plain.pixels)
    np.testing.assert_array_equal(other.raw, plain.raw)
    assert other.raw.tobytes() == plain.raw.tobytes()


@pytest.mark.parametrize("name", ["SC_rgb_rle", "SC_rgb_rle_16bit", "SC_ybr_full_422_uncompressed", "examples_palette"])
def test_colours_become_rgb(name):
    assert dicom_picture(TEST_FILES / f"{name}.dcm", 0, None).pixels.shape[2] == 3


def test_text_that_a_file_declares(archive):
    for number in (0, 5):
        tags = {"BurnedInAnnotation": "YES"}
        write_dicom(
            archive / f"000/{number:05}.dcm", pictures()[number], who=patient(number // 3), number=number, **tags
        )
    with pytest.raises(
        InputError, match=r"2 files say that text is burned.*000/00000.dcm, 000/00005.dcm. Pass --burned"
    ):
        open_images(archive)
    kept = open_images(archive, reading=Reading(burned_in="keep"))
    assert "KEPT" in kept.tally.lines()[0]
    np.testing.assert_array_equal(kept.read(np.arange(12))[..., 0], pictures())
    masked = open_images(archive, reading=Reading(burned_in="mask"))
    pixels = masked.read(np.arange(12))[..., 0]
    expected = pictures()
    for number in (0, 5):
        expected[number, [0, -1], :] = expected[number, :, [0, -1]] = 0
    np.testing.assert_array_equal(pixels, expected)
    np.testing.assert_array_equal(masked.source_digests(), kept.source_digests())


def test_a_window_moves_no_account(archive):
    """What finds a dataset's account is what the files hold, whatever view of it is taken."""
    views = [open_images(archive, reading=Reading(window=window)) for window in (None, (40, 400))]
    assert (views[0].digests() != views[1].digests()).any()
    np.testing.assert_array_equal(views[0].source_digests(), views[1].source_digests())


def test_bad_files_are_left_out_on_request(archive):
    (archive / "000" / "00002.dcm").write_bytes(b"no")
    path = archive / "000" / "00004.dcm"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"1 of 12 DICOM files cannot be read: 000/00002.dcm"):
        open_images(archive)
    records = open_images(archive, reading=Reading(skip_bad=True))
    assert len(records) == records.tally.used == 10
    assert records.tally.ignored["that cannot be read (--skip-bad)"] == 2


def test_nothing_that_is_odd_is_quoted(archive, capfd):
    """pydicom's warnings and errors quote values; none comes through, whatever the filters are."""
    import warnings

    path = archive / "000" / "00001.dcm"
    warnings.simplefilter("always")
    for tag in (b"MONOCHROME2 ", b"1.2.826"):
        path.write_bytes(path.read_bytes().replace(tag, SECRET.encode()[: len(tag)]))
    with pytest.raises(InputError) as caught:
        open_images(archive)
    assert "SECRET" not in str(caught.value)
    found = capfd.readouterr()
    assert "SECRET" not in found.out + found.err
