"""A fresh release, read by the tools of other people: Hugging Face datasets, webdataset, mlcroissant, ImageFolder."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veilset.core.errors import InputError
from veilset.release import export
from veilset.release.about import About
from veilset.release.export import export_release
from veilset.release.format import load_release

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", ["hf", "parquet"])
@pytest.mark.parametrize("soft", [True, False])
def test_hugging_face_loads_the_folder_as_it_is(make, datasets, tmp_path, monkeypatch, to, soft):
    monkeypatch.setattr(export, "_ROWS_PER_FILE", 5)
    path = make.saved(channels=3, soft=soft)
    release = load_release(path)
    found = loaded(datasets, export_release(path, to, tmp_path / "out"), tmp_path)
    assert found.features["label"].names == ["cat", "dog", "emu"]
    assert ("soft_label" in found.features) is soft
    assert len(found) == len(release)
    for index, row in enumerate(found):
        np.testing.assert_array_equal(np.asarray(row["image"]), release.images[index])
        assert row["label"] == release.labels[index]
        if soft:
            np.testing.assert_array_equal(np.float32(row["soft_label"]), release.soft_labels[index])


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
