"""Whatever is done to a release, `verify` finds it or it means the same as before."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.core.errors import VeilsetError
from veilset.release.format import load_release
from veilset.release.signing import generate_key
from veilset.release.verify import verify_release


def _write(files, folder):
    path = Path(folder) / "release"
    path.mkdir()
    for name, content in files.items():
        if name != "key":
            (path / name).write_bytes(content)
    (Path(folder) / "key.pub").write_bytes(files["key"])
    return path, Path(folder) / "key.pub"


@pytest.fixture
def release(pristine, tmp_path):
    return _write(pristine, tmp_path)


def test_the_pristine_release_verifies_with_and_without_the_key(release):
    path, key = release
    assert verify_release(path).ok
    outcome = verify_release(path, key)
    assert outcome.ok
    assert outcome.signed_by.startswith("ed25519:")


@pytest.mark.parametrize("name", ["data.npz", "card.md", "label.md", "croissant.json", "generator.safetensors"])
def test_altered_missing_and_grown_files_are_found(release, name):
    path, _ = release
    content = (path / name).read_bytes()
    for other in (content[:-1], content + b" ", bytes([content[0] ^ 1]) + content[1:], b""):
        (path / name).write_bytes(other)
        assert any(name in problem for problem in verify_release(path).problems)
        with pytest.raises(VeilsetError):
            load_release(path)
    (path / name).unlink()
    assert f"{name} is missing." in verify_release(path).problems


def test_altered_images_and_labels_are_found(release):
    path, _ = release
    good = dict(np.load(path / "data.npz"))
    for name, other in {"images": good["images"] ^ 1, "labels": good["labels"][::-1].copy()}.items():
        np.savez(path / "data.npz", **(good | {name: other}))
        assert any("data.npz was altered" in problem for problem in verify_release(path).problems)


def test_a_sparse_giant_is_found_without_reading_it(release):
    path, _ = release
    for name in ("data.npz", "card.md"):
        os.truncate(path / name, 1 << 42)
        assert any("larger than" in problem for problem in verify_release(path).problems)
    os.truncate(path / "certificate.json", 1 << 42)
    assert any("larger than" in problem for problem in verify_release(path).problems)


def test_extra_files_folders_links_and_pipes_are_found(release):
    path, _ = release
    for name, add in {
        "notes.txt": lambda place: place.write_text("private"),
        ".hidden": lambda place: place.write_text("private"),
        "folder": lambda place: place.mkdir(),
        "link": lambda place: place.symlink_to("/etc/hosts"),
        "dangling": lambda place: place.symlink_to("/nowhere"),
        "pipe": os.mkfifo,
    }.items():
        place = path / name
        add(place)
        assert any(name in problem for problem in verify_release(path).problems)
        with pytest.raises(VeilsetError):
            load_release(path)
        place.rmdir() if name == "folder" else place.unlink()
    assert verify_release(path).ok


def test_a_listed_file_replaced_by_a_link_to_its_copy_is_found(release, tmp_path):
    path, _ = release
    (path / "card.md").rename(tmp_path / "card.md")
    (path / "card.md").symlink_to(tmp_path / "card.md")
    assert any("symbolic link" in problem for problem in verify_release(path).problems)


def test_edited_certificates_are_found(release):
    path, _ = release
    text = (path / "certificate.json").read_text()
    content = json.loads(text)
    for name, value in {"epsilon": 0.1, "seed": 4, "created": "yesterday", "warnings": ["x"], "versions": {}}.items():
        (path / "certificate.json").write_text(json.dumps(content | {name: value}))
        assert any("checksum" in problem for problem in verify_release(path).problems)
    for other in ("", "{", "[]", "null", "1e999", '{"a": NaN}', "[" * 100_000, "\xff", "9" * 5000):
        (path / "certificate.json").write_text(other, encoding="latin-1")
        assert not verify_release(path).ok
    repeated = text.replace('"epsilon": null', "", 1).replace("{", '{"epsilon": 0.01,', 1)
    (path / "certificate.json").write_text(repeated)
    assert any("repeated" in problem for problem in verify_release(path).problems)


def test_a_careful_forger_without_the_key_is_found_by_the_signature(release, forge):
    path, key = release
    forge(path, lambda content: content.update(created="yesterday"))
    assert any("signature" in problem for problem in verify_release(path).problems)
    (path / "certificate.sig").unlink()
    assert verify_release(path).ok, "without a key, nobody can tell"
    assert verify_release(path, key).problems == ["A key was given, but the release is not signed."]


def test_another_key_is_found(release, tmp_path):
    path, key = release
    other = generate_key(tmp_path / "other")
    assert any("not by the given key" in problem for problem in verify_release(path, other).problems)
    load_release(path).save(tmp_path / "again", tmp_path / "other")
    assert verify_release(tmp_path / "again").ok
    assert not verify_release(tmp_path / "again", key).ok


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"public_key": 1, "signature": "00"}', '{"public_key": "zz"}'])
def test_a_malformed_signature_is_a_problem(release, content):
    path, _ = release
    (path / "certificate.sig").write_text(content)
    assert not verify_release(path).ok


def _meaning(path):
    release = load_release(path)
    weights, description = release.models["generator"]
    tensors = {name: tensor.tolist() for name, tensor in weights.items()}
    arrays = [release.images.tobytes(), release.labels.tobytes(), release.soft_labels.tobytes()]
    return arrays, release.certificate, tensors, description


def _same_or_refused(pristine, name, content):
    with tempfile.TemporaryDirectory() as folder:
        path, key = _write(pristine, folder)
        before = _meaning(path)
        (path / name).write_bytes(content)
        for given_key in (None, key):
            outcome = verify_release(path, given_key)
            json.dumps(outcome.to_json(), allow_nan=False)
            assert not outcome.ok or _meaning(path) == before


_NAMES = st.sampled_from(
    [
        "data.npz",
        "certificate.json",
        "certificate.sig",
        "card.md",
        "label.md",
        "croissant.json",
        "generator.safetensors",
        "generator.json",
    ]
)


@settings(max_examples=150, deadline=None)
@given(name=_NAMES, data=st.data())
def test_flipped_bytes_are_found_or_change_nothing(pristine, name, data):
    content = bytearray(pristine[name])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    _same_or_refused(pristine, name, bytes(content))


@settings(max_examples=50, deadline=None)
@given(name=_NAMES, start=st.integers(0, 10_000), length=st.integers(0, 200), insert=st.binary(max_size=20))
def test_cut_and_spliced_files_are_found_or_change_nothing(pristine, name, start, length, insert):
    content = pristine[name]
    start %= len(content)
    _same_or_refused(pristine, name, content[:start] + insert + content[start + length :])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_edit_of_any_key_by_a_careful_forger_breaks_the_verifier(pristine, forge, rechain, data):
    """Checksum, hashes and chain fit after the edit, the signature does not: nothing passes with the key."""

    def edit(content):
        place = content
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys))
            deeper = isinstance(place[key], dict | list) and len(place[key]) > 0 and data.draw(st.booleans())
            if not deeper:
                break
            place = place[key]
        place[key] = data.draw(_JSON.filter(lambda value: value != place[key]))
        if isinstance(content.get("ledger"), list) and all(isinstance(line, dict) for line in content["ledger"]):
            rechain(content["ledger"])

    with tempfile.TemporaryDirectory() as folder:
        path, key = _write(pristine, folder)
        before = _meaning(path)[1]
        forge(path, edit)
        assert not verify_release(path, key).ok
        (path / "certificate.sig").unlink()
        outcome = verify_release(path)
        json.dumps(outcome.to_json(), allow_nan=False)
        # Unsigned, what nothing else pins down may differ; the guarantee may not.
        if outcome.ok:
            assert (outcome.guarantee, outcome.epsilon, outcome.delta) == (
                before.guarantee,
                before.epsilon,
                before.delta,
            )
