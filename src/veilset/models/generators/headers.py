"""What a generator's file says of itself, read without its weights and without torch."""

import json
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.models.generators.sides import LatentsName, layer_count

HEADER = "veilset_generator"
"""Where the description stands in a file's metadata."""

_IN_A_RELEASE = "generator.safetensors"
_DESCRIPTION_LIMIT = 1 << 20
_LAYERED = {"style_generator", "stylegan2_generator", "style", "stylegan2"}  # the last two in old files
_PICKLE_ENDINGS = {".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".bin"}


def generator_file(place: Path) -> Path:
    """The file of a generator: the place itself, or the one in a release's folder."""
    return place / _IN_A_RELEASE if place.is_dir() else place


def latent_size_in(path: Path, shape: tuple[int, int, int], latents: LatentsName = "w") -> int:
    """The length of the latents of the generator in a file, which is refused where it cannot make images of `shape`."""
    form, (height, width, channels) = read_description(path), shape
    size, depth, latent_size = (int(form[name]) for name in ("size", "channels", "latent_size"))
    breadth = int(form.get("breadth", size))
    if (size, breadth, depth) != shape:
        raise InputError(
            f"The generator {path} makes images of {size}x{breadth}x{depth}, the private ones are "
            f"{height}x{width}x{channels}. Pass --size {size} --channels {depth}, or another generator."
        )
    if latents != "w" and form.get("network", form.get("kind")) not in _LAYERED:
        raise InputError(f"latents={latents} needs a style or stylegan2 generator, which {path} is not. Set latents=w.")
    return latent_size * (layer_count(size, breadth) if latents == "w_plus" else 1)


def read_description(place: Path) -> dict[str, Any]:
    """What the header of a generator's file says, or what lies beside it in a release, without reading its weights."""
    from safetensors import SafetensorError, safe_open

    path = generator_file(place)
    if not path.is_file():
        raise InputError(f"There is no generator at {path}. Make one: veilset generator train PUBLIC --out {path.name}")
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file begins with the length of its header, whose first byte may be that of a pickle, and then "{".
    if path.suffix in _PICKLE_ENDINGS or (start[:1] == b"\x80" and start[8:] != b"{"):
        raise InputError(
            f"{path} is a pickle, and opening one can run whatever code it holds. "
            "Convert it without running it: veilset generator convert FILE.pkl --out FILE.safetensors"
        )
    try:
        with safe_open(path, framework="np") as file:
            header = (file.metadata() or {}).get(HEADER)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file: {error}.") from error
    try:
        description: Any = json.loads(header) if header is not None else _beside(path)
        if not isinstance(description, dict):
            raise InputError(
                f"{path} does not say which generator it holds. Use a file of `veilset generator train` or `convert`."
            )
        numbers = {"size", "channels", "latent_size", *({"breadth"} & set(description))}
        return description | {name: int(description[name]) for name in numbers}
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"The header of {path} is damaged: {error}.") from error


def _beside(path: Path) -> Any:
    """What a release of latent says of the public generator in it; None where `path` is no such file."""
    described = path.with_suffix(".json")
    if path.name != _IN_A_RELEASE or not described.is_file() or described.stat().st_size > _DESCRIPTION_LIMIT:
        return None
    content = json.loads(described.read_bytes())
    return content.get("generator") if isinstance(content, dict) else None
