"""Public generators in files: safetensors whose header says what rebuilds them. Nothing in such a file is executed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.models.descriptions import described, recognised
from veilset.models.generators.eigen import EigenGenerator
from veilset.models.generators.style import LatentGenerator, StyleGenerator
from veilset.models.generators.stylegan2 import StyleGan2

_HEADER = "veilset_generator"
_KINDS: dict[str, type[LatentGenerator]] = {
    "style_generator": StyleGenerator,
    "eigen_generator": EigenGenerator,
    "stylegan2_generator": StyleGan2,
}
_IN_A_RELEASE, _PREFIX = "generator.safetensors", "generator."
_DESCRIPTION_LIMIT = 1 << 20
_PICKLE_ENDINGS = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin"}


def description_of(generator: LatentGenerator) -> dict[str, Any]:
    """JSON-ready data that rebuilds a generator without its weights."""
    network = next(name for name, known in _KINDS.items() if type(generator) is known)
    return described(network, **{name: getattr(generator, name) for name in generator.settings})


def rebuild(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentGenerator:
    """The generator of a description and its weights, ready to use. Only kinds that are known here are built."""
    try:
        description = recognised(description)
        kind = _KINDS[description["network"]]
        # Weights of torch's own initialisation are drawn and overwritten; the caller's random state stays.
        with torch.random.fork_rng(devices=[]):
            generator = kind(**{name: int(description[name]) for name in kind.settings})
        generator.load_state_dict(dict(weights))
    except (InputError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Not a generator and its weights: {type(error).__name__}: {error}") from error
    return generator.eval().requires_grad_(False)


def save_generator(generator: LatentGenerator, path: Path) -> None:
    """Write a generator, whole or not at all."""
    from safetensors.torch import save

    weights = {name: value.detach().cpu().contiguous().clone() for name, value in generator.state_dict().items()}
    write_whole(path, save(weights, metadata={_HEADER: json.dumps(description_of(generator))}))


def generator_file(place: Path) -> Path:
    """The file of a generator: the place itself, or the one in a release's folder."""
    return place / _IN_A_RELEASE if place.is_dir() else place


def load_generator(place: Path) -> LatentGenerator:
    """Read a generator back from its file, or from the folder of a release of latent."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path, description = generator_file(place), read_description(place)
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"Cannot read the weights of {path}: {error}.") from error
    # A release of latent keeps its Gaussians in the same file.
    inside = {name.removeprefix(_PREFIX): value for name, value in weights.items() if name.startswith(_PREFIX)}
    return rebuild(description, inside or weights)


def latent_size_in(path: Path, shape: tuple[int, int, int]) -> int:
    """The length of the latents of the generator in a file, which is refused where it cannot make images of `shape`."""
    form, (height, width, channels) = read_description(path), shape
    size, depth, latent_size = (int(form[name]) for name in ("size", "channels", "latent_size"))
    if (size, size, depth) != shape:
        raise InputError(
            f"The generator {path} makes images of {size}x{size}x{depth}, the private ones are "
            f"{height}x{width}x{channels}. Pass --size {size} --channels {depth}, or another generator."
        )
    return latent_size


def read_description(place: Path) -> dict[str, Any]:
    """What the header of a generator's file says, or what lies beside it in a release, without reading its weights."""
    from safetensors import SafetensorError, safe_open

    path = generator_file(place)
    if not path.is_file():
        raise InputError(f"There is no generator at {path}. Make one: veilset generator train PUBLIC --out {path.name}")
    with path.open("rb") as file:
        start = file.read(2)
    if path.suffix in _PICKLE_ENDINGS or start[:1] == b"\x80":
        raise InputError(
            f"{path} is a pickle, and opening one can run whatever code it holds. "
            "Convert it without running it: veilset generator convert FILE.pkl --out FILE.safetensors"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}.") from error
    try:
        description: Any = json.loads(header) if header is not None else _beside(path)
        if not isinstance(description, dict):
            raise InputError(
                f"{path} does not say which generator it holds. Use a file of `veilset generator train` or `convert`."
            )
        return description | {name: int(description[name]) for name in ("size", "channels", "latent_size")}
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"The header of {path} is damaged: {error}.") from error


def _beside(path: Path) -> Any:
    """What a release of latent says of the public generator in it; None where `path` is no such file."""
    described = path.with_suffix(".json")
    if path.name != _IN_A_RELEASE or not described.is_file() or described.stat().st_size > _DESCRIPTION_LIMIT:
        return None
    content = json.loads(described.read_bytes())
    return content.get("generator") if isinstance(content, dict) else None
