"""A fresh release, read by the tools of other people: Hugging Face datasets, webdataset, mlcroissant, ImageFolder."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.release import export, shards, table
from veilset.release.about import About
from veilset.release.export import export_release
from veilset.release.format import describe_shards, load_release, seal_directory
from veilset.release.manifest import Manifest, Shard, shard_name
from veilset.release.pack import Pack
from veilset.release.shards import write_shard
from veilset.release.verify import verify_release

ABOUT = About(title="Chests", licence="cc-by-4.0", publisher="A hospital", description="X-rays of 2020, with consent")


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """Hugging Face datasets, without a network and with a cache of its own."""
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets")


def loaded(datasets, folder: Path, tmp_path: Path):
    found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert list(found) == ["train"]
    return found["train"]


def require_same(found, release) -> None:
    assert found.features["label"].names == ["cat", "dog", "emu"]
    assert ("soft_label" in found.features) is (release.soft_labels is not None)
    assert len(found) == len(release)
    for index, row in enumerate(found):
        np.testing.assert_array_equal(
            np.asarray(row["image"]).reshape(release.images[index].shape), release.images[index]
        )
        assert row["label"] == release.labels[index]
        if release.soft_labels is not None:
            np.testing.assert_array_equal(np.float32(row["soft_label"]), release.soft_labels[index])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("soft", [True, False])
def test_hugging_face_loads_a_release_as_it_is(make, datasets, tmp_path, channels, soft):
    path = make.saved(channels=channels, soft=soft, model=True)
    for name in (".DS_Store", ".gitattributes"):
        (path / name).write_text("x")
    (path / "README.md").write_text("# Ours\n\nWords of our own.\n")
    require_same(loaded(datasets, path, tmp_path), load_release(path))
    assert verify_release(path).ok


@pytest.mark.filterwarnings("ignore")
def test_the_card_of_a_release_can_be_its_readme(make, datasets, tmp_path):
    path = make.saved()
    shutil.copyfile(path / "card.md", path / "README.md")
    require_same(loaded(datasets, path, tmp_path), load_release(path))


def in_shards(make, path: Path, form: str, count: int = 2) -> Path:
    """The images of a release in one file as a release in shards, as `veilset sample` writes it."""
    release, out = load_release(path), path.with_name(f"{path.name}-{form}")
    facts, each, shards = release.certificate.facts, len(release) // count, []
    (out / "shards").mkdir(parents=True)
    for number in range(count):
        name, first = shard_name(number, count, form), number * each
        place, part = out / "shards" / name, release.pack.part(first, first + each)
        write_shard(place, [part], facts.class_names, first=first, form=form)
        labels = tuple(np.bincount(part.labels, minlength=facts.classes).tolist())
        size = place.stat().st_size
        shards.append(Shard(name=name, first=first, count=each, labels=labels, size=size, sha256=sha256_of(place)))
    manifest = Manifest(form=form, shards=tuple(shards))
    (out / "manifest.json").write_bytes(manifest.to_bytes())
    describe_shards(out, release.certificate, ABOUT, manifest, has_soft_labels=True)
    seal_directory(out, release.certificate, None)
    return out


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_loads_shards_of_tables_as_they_are(make, datasets, tmp_path):
    path = make.saved(channels=3)
    out = in_shards(make, path, "parquet")
    for place in (out, out / "shards"):
        (place / ".DS_Store").write_text("x")
    assert verify_release(out).ok, verify_release(out).problems
    assert [note.split()[0] for note in verify_release(out).notes] == [".DS_Store", "shards/.DS_Store"]
    require_same(loaded(datasets, out, tmp_path), load_release(path))
    shutil.copyfile(out / "card.md", out / "README.md")
    require_same(loaded(datasets, out, tmp_path), load_release(path))


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_loads_shards_of_tars_as_they_are(make, datasets, tmp_path):
    path = make.saved()
    release, out = load_release(path), in_shards(make, path, "webdataset")
    assert verify_release(out).ok, verify_release(out).problems
    found = loaded(datasets, out, tmp_path)
    assert [row["cls"] for row in found] == release.labels.tolist()
    assert [row["json"]["class_name"] for row in found][:3] == ["cat", "dog", "emu"]
    np.testing.assert_allclose(found[3]["json"]["soft_label"], release.soft_labels[3])
    np.testing.assert_array_equal(np.asarray(found[3]["png"]), release.images[3, ..., 0])


def test_shards_that_lead_elsewhere_do_not_verify(make, forge):
    out = in_shards(make, make.saved(), "webdataset")
    place = out / ".huggingface.yaml"
    place.write_text(place.read_text().replace("shards/*.tar", "https://example.org/x.tar"))
    forge(out, lambda content: None)
    assert ["leads elsewhere" in problem for problem in verify_release(out).problems] == [True]


@pytest.mark.parametrize("what", ["label", "image", "soft", "names", "fewer", "nonsense"])
def test_a_table_that_is_not_the_pack_does_not_verify(make, forge, what):
    path = make.saved()
    release = load_release(path)
    facts, pack = release.certificate.facts, release.pack
    images, labels, soft = pack.images.copy(), pack.labels.copy(), pack.soft_labels.copy()
    images[5, 0, 0] += what == "image"
    labels[5] = (labels[5] + (what == "label")) % 3
    soft[5, 0] += 1e-3 if what == "soft" else 0
    altered = Pack(images=images, labels=labels, soft_labels=soft).part(0, 11 if what == "fewer" else 12)
    names = ["dog", "cat", "emu"] if what == "names" else facts.class_names
    write_shard(path / "train.parquet", [altered], names, first=0, form="parquet")
    if what == "nonsense":
        (path / "train.parquet").write_bytes(b"PAR1 and nothing more PAR1")
    forge(path, lambda content: None)
    (problem,) = verify_release(path).problems
    assert problem.startswith("train.parquet")


@pytest.mark.parametrize("how", ["orientation", "transparency", "a word", "more behind"])
def test_a_picture_that_other_readers_show_otherwise_does_not_verify(make, forge, monkeypatch, how):
    """`datasets` turns a picture by its note on orientation; the pixels in the file are those of the pack."""
    path = make.saved()
    release = load_release(path)
    exif, words = Image.Exif(), PngInfo()
    exif[0x0112] = 3
    words.add_text("Author", "somebody")
    noted = {"orientation": {"exif": exif}, "transparency": {"transparency": 7}, "a word": {"pnginfo": words}}

    def with_notes(images):
        for image in images:
            content = io.BytesIO()
            Image.fromarray(image[..., 0]).save(content, "PNG", **noted.get(how, {}))
            yield content.getvalue() + (b"behind" if how == "more behind" else b"")

    monkeypatch.setattr(shards, "pngs", with_notes)
    names = release.certificate.facts.class_names
    write_shard(path / "train.parquet", [release.pack], names, first=0, form="parquet")
    forge(path, lambda content: None)
    (problem,) = verify_release(path).problems
    assert "more than pixels" in problem


def test_a_release_without_a_table_verifies_and_its_card_says_how_to_get_one(make, monkeypatch):
    monkeypatch.setattr(table, "LARGEST", 12 * 8 * 6 - 1)
    path = make.saved()
    assert not (path / "train.parquet").exists()
    assert verify_release(path).ok
    assert "--to hf" in (path / "card.md").read_text()


def test_without_pyarrow_a_table_is_noted_as_not_compared(make, monkeypatch):
    path = make.saved()
    monkeypatch.setattr("veilset.release.verify.can_read_tables", lambda: False)
    found = verify_release(path)
    assert found.ok
    assert "was not compared" in found.notes[0]
    monkeypatch.setattr(table, "can_read_tables", lambda: False)
    assert not (make.saved() / "train.parquet").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["hf", "parquet"])
@pytest.mark.parametrize("soft", [True, False])
def test_hugging_face_loads_the_folder_as_it_is(make, datasets, tmp_path, monkeypatch, to, soft):
    monkeypatch.setattr(export, "_ROWS_PER_FILE", 5)
    path = make.saved(channels=3, soft=soft)
    release = load_release(path)
    found = loaded(datasets, export_release(path, to, tmp_path / "out"), tmp_path)
    require_same(found, release)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_loads_webdataset_shards_and_not_the_certificate(make, datasets, tmp_path):
    path = make.saved()
    release = load_release(path)
    found = loaded(datasets, export_release(path, "webdataset", tmp_path / "out"), tmp_path)
    assert len(found) == len(release)
    assert [row["cls"] for row in found] == release.labels.tolist()
    np.testing.assert_array_equal(np.asarray(found[3]["png"]), release.images[3, ..., 0])


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_loads_the_folder_of_images(make, datasets, tmp_path):
    path = make.saved()
    release = load_release(path)
    found = loaded(datasets, export_release(path, "folder", tmp_path / "out"), tmp_path)
    assert [row["label"] for row in found] == release.labels.tolist()
    np.testing.assert_array_equal(np.asarray(found[3]["image"]), release.images[3, ..., 0])
    assert found[3]["soft_0"] == pytest.approx(release.soft_labels[3, 0])


@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_the_shards(make, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    path = make.saved(channels=3)
    release = load_release(path)
    out = export_release(path, "webdataset", tmp_path / "out")
    shards = str(out / "shard-000000.tar")
    rows = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8").to_tuple("png", "cls", "json"))
    assert [label for _, label, _ in rows] == release.labels.tolist()
    for index, (image, _, about) in enumerate(rows):
        np.testing.assert_array_equal(image, release.images[index])
        assert about["soft_label"] == pytest.approx(release.soft_labels[index].tolist())


def test_an_image_folder_numbers_its_classes_as_the_release_does(make, tmp_path):
    """As torchvision's ImageFolder does it: classes are the sorted folders, samples their files."""
    path = make.saved(channels=3)
    release = load_release(path)
    out = export_release(path, "folder", tmp_path / "out")
    classes = sorted(entry.name for entry in os.scandir(out) if entry.is_dir())
    assert classes == ["cat", "dog", "emu"]
    for label, name in enumerate(classes):
        images = [np.asarray(Image.open(file).convert("RGB")) for file in sorted((out / name).iterdir())]
        np.testing.assert_array_equal(images, release.images[release.labels == label])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", [None, "croissant", "hf", "parquet", "webdataset", "folder", "npz"])
def test_croissant_describes_a_release_and_each_export(make, tmp_path, to):
    mlcroissant = pytest.importorskip("mlcroissant")
    path = make.release().save(tmp_path / "release", about=ABOUT)
    out = path if to is None else export_release(path, to, tmp_path / "out")
    place = out if out.is_file() else out / "croissant.json"
    dataset = mlcroissant.Dataset(jsonld=str(place))
    assert not dataset.metadata.ctx.issues.errors
    assert not dataset.metadata.ctx.issues.warnings
    told = dataset.metadata
    assert (told.name, told.license) == ("Chests", ["https://spdx.org/licenses/CC-BY-4.0"])
    assert told.data_collection == "X-rays of 2020, with consent"
    assert "epsilon = " in told.personal_sensitive_information[0]
    assert len(told.data_limitations) == 2
    classes = [row["classes/name"] for row in dataset.records("classes")]
    assert [name.decode() if isinstance(name, bytes) else name for name in classes] == ["cat", "dog", "emu"]


@pytest.mark.filterwarnings("ignore")
def test_mlcroissant_reads_images_and_labels_of_the_hugging_face_folder(make, tmp_path):
    mlcroissant = pytest.importorskip("mlcroissant")
    path = make.saved()
    release = load_release(path)
    out = export_release(path, "hf", tmp_path / "out")
    rows = list(mlcroissant.Dataset(jsonld=str(out / "croissant.json")).records("part-0"))
    assert [row["part-0/label"] for row in rows] == release.labels.tolist()
    np.testing.assert_array_equal(np.asarray(rows[3]["part-0/image"]), release.images[3, ..., 0])
    np.testing.assert_allclose(rows[3]["part-0/soft_label"], release.soft_labels[3])


def test_the_registry_entry_is_yaml_with_the_certified_numbers(make, tmp_path):
    yaml = pytest.importorskip("yaml")
    path = make.release().save(tmp_path / "release", about=ABOUT)
    entry = yaml.safe_load(export_release(path, "registry", tmp_path / "entry.yaml").read_text())["deployment"]
    certificate = load_release(path).certificate
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": certificate.epsilon, "delta": 1e-5}
    assert entry["basic"]["data_curators"][0]["data_curator_name"] == "A hospital"
    assert entry["dp_variant"]["variant_name"] == "Approximate DP"
    assert entry["deployment_model"]["model_name"] == "Central"
    assert "class means: Gaussian, noise multiplier 5" in entry["implementation"]["mechanisms"]
    nobody = make.saved(noise="seeded")
    with pytest.raises(InputError, match="no guarantee"):
        export_release(nobody, "registry", tmp_path / "none.yaml")
    assert not (tmp_path / "none.yaml").exists()


@pytest.mark.parametrize("to", ["label", "datasheet", "croissant"])
def test_descriptions_without_a_guarantee_name_no_epsilon(make, tmp_path, to):
    about = About(title="epsilon 1 chests", description="epsilon = 3, they said")
    path = make.release(noise="seeded").save(tmp_path / "release", about=about)
    text = export_release(path, to, tmp_path / "out").read_text()
    assert "epsilon = " not in text.replace("epsilon = (not stated)", "")
    assert "epsilon 1" not in text


def test_what_the_publisher_says_goes_into_every_form(make, tmp_path):
    path = make.release().save(tmp_path / "release", about=ABOUT)
    for to in ("hf", "label", "datasheet", "registry", "croissant"):
        out = export_release(path, to, tmp_path / to)
        text = (out / "README.md" if out.is_dir() else out).read_text()
        assert "Chests" in text
        assert "X-rays of 2020" in text
    assert "license: cc-by-4.0\n" in (path / "card.md").read_text()
    changed = export_release(path, "hf", tmp_path / "changed", about=ABOUT.but(licence="https://example.org/l"))
    assert "license: other\n" in (changed / "README.md").read_text()
    assert json.loads((changed / "croissant.json").read_text())["license"] == "https://example.org/l"


@pytest.mark.parametrize("licence", ["cc-by-4.1", "javascript:alert(1)", "https://a b"])
def test_unknown_licences_are_refused(licence):
    with pytest.raises(InputError, match="Unknown licence"):
        About(licence=licence)


def test_one_file_is_a_file(make, tmp_path):
    path = make.saved()
    out = export_release(path, "npz", tmp_path / "x.npz")
    assert out.read_bytes() == (path / "data.npz").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        export_release(path, "npz", out)
