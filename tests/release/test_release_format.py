import io
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.release.format import Release, load_release
from veilset.release.pack import Pack, read_pack, write_pack
from veilset.release.verify import verify_release


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("soft", [True, False])
def test_a_saved_release_reads_back_equal(make, channels, soft):
    release = make.release(channels=channels, soft=soft, model=True)
    path = release.save(make.folder / "out")
    again = load_release(path)
    np.testing.assert_array_equal(again.images, release.images)
    np.testing.assert_array_equal(again.labels, release.labels)
    assert (again.soft_labels is None) is not soft
    if soft:
        np.testing.assert_array_equal(again.soft_labels, release.soft_labels)
    weights, description = again.models["generator"]
    assert description == {"kind": "linear", "sizes": [2, 3]}
    assert weights["b"].tolist() == release.models["generator"][0]["b"].tolist()
    assert replace(again.certificate, files={}) == release.certificate
    assert verify_release(path).ok


def test_the_directory_holds_exactly_the_files_of_the_interface(make):
    path = make.saved(model=True)
    names = {file.name for file in path.iterdir()}
    descriptions = {"card.md", "croissant.json", "label.md"}
    data = {"data.npz", "train.parquet"}
    assert names == {*data, "certificate.json", "generator.safetensors", "generator.json"} | descriptions
    assert set(load_release(path).certificate.files) == names - {"certificate.json"}
    with np.load(path / "data.npz", allow_pickle=False) as pack:
        assert {name: (pack[name].dtype.str, pack[name].shape) for name in pack} == {
            "images": ("|u1", (12, 8, 6)),
            "labels": ("<i8", (12,)),
            "soft_labels": ("<f4", (12, 3)),
        }


def test_the_same_content_gives_the_same_bytes(make):
    first, second = make.saved(model=True, channels=3), make.saved(model=True, channels=3)
    assert {file.name for file in first.iterdir()} == {file.name for file in second.iterdir()}
    for name in sorted({file.name for file in first.iterdir()} - {"certificate.json"}):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_an_existing_place_is_left_alone_and_a_failure_leaves_nothing(make):
    taken = make.folder / "taken"
    taken.mkdir()
    with pytest.raises(InputError, match="exists already"):
        make.release().save(taken)
    broken = replace(make.release(), models={"generator": ({}, {"f": object()})})
    with pytest.raises(InputError):
        broken.save(make.folder / "broken")
    with pytest.raises(InputError, match="Cannot read the key"):
        make.release().save(make.folder / "unsigned", make.folder / "no-key")
    assert {path.name for path in make.folder.iterdir() if path.is_dir()} == {"taken"}


def test_a_release_is_checked_when_it_is_made(make):
    good = make.release()
    for changes, message in [
        ({"images": good.images.astype(np.float32)}, "uint8"),
        ({"images": good.images[..., 0]}, "uint8"),
        ({"images": good.images[:5]}, "label"),
        ({"labels": good.labels + 1}, r"labels 0\.\.2"),
        ({"labels": good.labels.astype(np.int32)}, "int64"),
        ({"soft_labels": good.soft_labels * 2}, "sum to 1"),
        ({"soft_labels": good.soft_labels * np.nan}, "sum to 1"),
        ({"soft_labels": good.soft_labels[:, :2]}, "soft labels"),
        ({"models": {"critic": ({}, {})}}, "critic"),
        ({"certificate": make.certificate(samples=11)}, "11 images"),
    ]:
        with pytest.raises(InputError, match=message):
            replace(good, **changes)


def test_arrays_are_read_only_and_the_repr_is_short(make):
    release = make.release()
    with pytest.raises(ValueError, match="read-only"):
        release.images[0] = 0
    assert repr(release).startswith("Release(12 images 8x6x1, guarantee dp, epsilon 1.")
    assert "epsilon" not in repr(make.release(noise="seeded"))


@pytest.mark.parametrize("soft", [True, False])
def test_a_torch_dataset_trains_any_loop(make, soft):
    import torch
    from torch.utils.data import DataLoader

    release = load_release(make.saved(channels=3, soft=soft))
    dataset = release.torch()
    assert len(dataset) == 12
    image, _ = dataset[4]
    assert image.dtype == torch.float32
    np.testing.assert_allclose(image.numpy(), release.images[4].transpose(2, 0, 1) / 255, rtol=1e-6)
    images, targets = next(iter(DataLoader(dataset, batch_size=5)))
    assert images.shape == (5, 3, 8, 6)
    assert targets.shape == ((5, 3) if soft else (5,))
    assert float(torch.nn.functional.cross_entropy(torch.zeros(5, 3), targets)) == pytest.approx(np.log(3), rel=1e-5)


def test_what_is_no_release_is_an_input_error(make):
    empty = make.folder / "empty"
    empty.mkdir()
    file = make.folder / "file"
    file.write_text("x")
    for path, message in [(make.folder / "gone", "does not exist"), (file, "is a file"), (empty, "not a release")]:
        with pytest.raises(InputError, match=message):
            load_release(path)


def test_a_truncated_or_altered_pack_is_a_verification_error(make):
    path = make.saved()
    content = (path / "data.npz").read_bytes()
    (path / "data.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(VerificationError, match=r"data\.npz was altered"):
        load_release(path)


def _npz(folder, entries, compression=zipfile.ZIP_STORED):
    path = folder / "pack.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


def _npy(array):
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(array), version=(1, 0))
    return content.getvalue()


def test_packs_of_another_form_are_refused(tmp_path):
    images, labels = _npy(np.zeros((2, 3, 3), np.uint8)), _npy(np.zeros(2, np.int64))
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(lying, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 28, 28)})
    objects = _npy(np.zeros(2, np.int64)).replace(b"'<i8'", b"'|O' ") + pickle.dumps([1, 2])
    both = [("images.npy", images), ("labels.npy", labels)]
    assert read_pack(_npz(tmp_path, both)).images.shape == (2, 3, 3, 1)
    for path in [
        _npz(tmp_path, both, zipfile.ZIP_DEFLATED),
    ]:
        with pytest.raises(VerificationError, match="compressed"):
            read_pack(path)
    for entries in [
        [("images.npy", lying.getvalue()), ("labels.npy", labels)],
        [("images.npy", images), ("labels.npy", objects)],
        [("images.npy", _npy(np.zeros((2, 3, 3), np.float64))), ("labels.npy", labels)],
        [("images.npy", images)],
        [*both, ("more.npy", labels)],
        [*both, ("soft_labels.npy", b"")],
        [("images.npy", b"\x93NUMPY\x02\x00"), ("labels.npy", labels)],
    ]:
        with pytest.raises(VerificationError, match="cannot be read"):
            read_pack(_npz(tmp_path, entries))
    (tmp_path / "pack.npz").write_bytes(b"not a zip")
    with pytest.raises(VerificationError, match="cannot be read"):
        read_pack(tmp_path / "pack.npz")


def test_a_pack_cut_anywhere_is_refused(tmp_path, make):
    release = make.release()
    path = tmp_path / "pack.npz"
    write_pack(path, Pack(images=release.images, labels=release.labels, soft_labels=release.soft_labels))
    content = path.read_bytes()
    for cut in range(0, len(content), 37):
        path.write_bytes(content[:cut])
        with pytest.raises(VerificationError):
            read_pack(path)


def test_reading_and_verifying_images_does_not_load_torch(make):
    path = make.saved()
    code = (
        "import sys; from veilset.release.verify import verify_release;"
        "from veilset.release.format import load_release;"
        f"load_release({str(path)!r}); assert verify_release({str(path)!r}).ok; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_public_names_lead_here():
    import veilset

    assert veilset.Release is Release
    assert veilset.load_release is load_release
    assert veilset.verify is verify_release
