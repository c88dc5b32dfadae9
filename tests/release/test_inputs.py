"""A release is no set of public images, however it is named: what it cost its people would be forgotten."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilset as vs
from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.privacy.vault import Vault, compared_by_sites
from veilset.release.export import export_release
from veilset.release.inputs import inputs_at


@pytest.fixture
def vault() -> Vault:
    images = np.random.default_rng(1).integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
    return Vault(ImageSet(images, np.arange(40) % 2))


def _through_a_link(path: Path) -> Path:
    link = path.parent / "link.npz"
    link.symlink_to(path / "data.npz")
    return link


def _of_a_hub(path: Path) -> Path:
    return export_release(path, "hf", path.parent / "hub") / "data"


def _one_class(path: Path) -> Path:
    return export_release(path, "folder", path.parent / "folder") / "cat"


PLACES = [lambda path: path / "data.npz", lambda path: path, _through_a_link, _of_a_hub, _one_class]


@pytest.mark.parametrize("place", PLACES)
def test_no_door_takes_a_release_for_public_images(make: Any, vault: Vault, place: Any) -> None:
    found = place(make.saved())
    with pytest.raises(InputError, match="would be forgotten"):
        vs.synthesize(vault, method="merf", budget=1.0, preset="smoke", samples=20, public=found)
    images = open_images(found, needs_classes=False, size=16, channels=1)
    with pytest.raises(InputError, match="would be forgotten"):
        vault.check_public(images)
    with pytest.raises(InputError, match="would be forgotten"):
        compared_by_sites(images)


def test_a_release_of_links_is_one(make: Any, vault: Vault, tmp_path: Path) -> None:
    """Caches of downloads hold files by their hash, and folders of links to them."""
    path, cache = make.saved(), tmp_path / "cache"
    cache.mkdir()
    for name in ("data.npz", "certificate.json"):
        (cache / name).symlink_to((path / name).rename(tmp_path / f"blob-{name}.npz"))
    with pytest.raises(InputError, match="would be forgotten"):
        vs.synthesize(vault, method="merf", budget=1.0, preset="smoke", samples=20, public=cache / "data.npz")


def test_its_images_without_its_certificate_are_public(make: Any, vault: Vault, tmp_path: Path) -> None:
    """The way that the error names, for releases of other people."""
    copied = tmp_path / "elsewhere" / "images.npz"
    copied.parent.mkdir()
    copied.write_bytes((make.saved() / "data.npz").read_bytes())
    assert len(vault.check_public(open_images(copied, size=16))) == 12


def test_a_link_to_a_file_of_a_release_is_that_release(make: Any, tmp_path: Path) -> None:
    path = make.saved(model=True)
    link = tmp_path / "generator.safetensors"
    link.symlink_to(path / "generator.safetensors")
    found = inputs_at(str(link))
    assert [one.events for one in found] == [one.events for one in inputs_at(str(path))]
    assert found
