"""Public generators in files: safetensors whose header says what rebuilds them. Nothing in such a file is executed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.models.descriptions import described, recognised
from veilset.models.generators.eigen import EigenGenerator
from veilset.models.generators.headers import HEADER, generator_file, read_description
from veilset.models.generators.sharpened import SharpenedGenerator
from veilset.models.generators.style import LatentGenerator, StyleGenerator
from veilset.models.generators.stylegan2 import StyleGan2
from veilset.models.stored import built_to_fit, sizes_of

_KINDS: dict[str, type[LatentGenerator]] = {
    "style_generator": StyleGenerator,
    "sharpened_generator": SharpenedGenerator,
    "eigen_generator": EigenGenerator,
    "stylegan2_generator": StyleGan2,
}
_PREFIX = "generator."  # of the generator's weights in the file of a release


def description_of(generator: LatentGenerator) -> dict[str, Any]:
    """JSON-ready data that rebuilds a generator without its weights."""
    network = next(name for name, known in _KINDS.items() if type(generator) is known)
    breadth = {} if generator.breadth is None else {"breadth": generator.breadth}
    return described(network, **{name: getattr(generator, name) for name in generator.settings}, **breadth)


def rebuild(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LatentGenerator:
    """The generator of a description and its weights, ready to use. Only kinds that are known here are built."""
    try:
        description = recognised(description)
        kind = _KINDS[description["network"]]
        sizes = sizes_of(description, (*kind.settings, *(("breadth",) if "breadth" in description else ())))
        generator = built_to_fit(lambda: kind(**sizes), weights)
    except (InputError, AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"Not a generator and its weights: {type(error).__name__}: {error}") from error
    assert isinstance(generator, LatentGenerator)
    return generator


def save_generator(generator: LatentGenerator, path: Path) -> None:
    """Write a generator, whole or not at all."""
    from safetensors.torch import save

    weights = {name: value.detach().cpu().contiguous().clone() for name, value in generator.state_dict().items()}
    write_whole(path, save(weights, metadata={HEADER: json.dumps(description_of(generator))}))


def load_generator(place: Path, *, sha256: str | None = None) -> LatentGenerator:
    """Read a generator back from its file, or from the folder of a release of latent.

    With `sha256`, what was read must have that hash.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path, description = generator_file(place), read_description(place)
    try:
        content = path.read_bytes()
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise InputError(f"{path} was changed while it was read. Leave it alone and start again.")
        weights = load(content)
    except (SafetensorError, OSError) as error:
        raise InputError(f"Cannot read the weights of {path}: {error}.") from error
    # A release of latent keeps its Gaussians in the same file.
    inside = {name.removeprefix(_PREFIX): value for name, value in weights.items() if name.startswith(_PREFIX)}
    return rebuild(description, inside or weights)
