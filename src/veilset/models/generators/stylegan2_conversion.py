"""From NVIDIA's published StyleGAN2 pickles (stylegan2-ada-pytorch and later) to safetensors, executing nothing.

The pickle is read as data (models/generators/inert_pickles.py). A network in it is a record of its state, beside the
source code that NVIDIA's own loader would run; here that code is left alone. Weights are the few forms in which torch
pickles tensors; their bytes go to torch's restricted reader (`weights_only`), which knows numbers only.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.models.generators.inert_pickles import Call, Name, read_inert
from veilset.models.generators.stylegan2 import StyleGan2

_NETWORKS = ("G_ema", "G")
_MOST_NUMBERS = 2**31  # of one tensor


def convert_stylegan2(path: Path) -> StyleGan2:
    """The generator in a pickle; whatever is not one is refused with what was found."""
    if not path.is_file():
        raise InputError(f"There is no file at {path}.")
    try:
        return _converted(read_inert(path), path)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} has an unknown form: {type(error).__name__}: {error}.") from error


def _converted(content: Any, path: Path) -> StyleGan2:
    if not isinstance(content, dict):
        found = ", ".join(sorted(_called(content))) or type(content).__name__
        advice = (
            " It is of the TensorFlow version; bring it to PyTorch with NVIDIA's legacy.py first."
            if "tflib" in found
            else ""
        )
        raise InputError(f"Expected networks named G_ema or G in {path}, found {found}. Nothing was run.{advice}")
    chosen = next((content[name] for name in _NETWORKS if name in content), None)
    if chosen is None:
        raise InputError(f"Expected networks named G_ema or G in {path}, found {', '.join(map(str, content))}.")
    weights = dict(_tensors(chosen, ""))
    if any(name.startswith("mapping.embed") for name in weights):
        raise InputError(f"The network in {path} takes class labels; only those without are supported.")
    generator = StyleGan2(**settings_of(weights), clamp=_clamp_of(chosen))
    expected = generator.state_dict()
    strange = sorted(set(weights) ^ set(expected)) or sorted(
        name for name in expected if weights[name].shape != expected[name].shape
    )
    if strange:
        raise InputError(
            f"The network in {path} is not a StyleGAN2 generator as published: {', '.join(strange[:5])} do not fit."
        )
    generator.load_state_dict({name: value.float() for name, value in weights.items()})
    return generator.eval().requires_grad_(False)


def settings_of(weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The settings of StyleGAN2 that the shapes of its weights tell."""
    widths = {
        int(found[1]): len(value)
        for name, value in weights.items()
        if (found := re.fullmatch(r"synthesis\.b(\d+)\.conv1\.weight", name))
    }
    layers = sum(bool(re.fullmatch(r"mapping\.fc\d+\.weight", name)) for name in weights)
    if not widths or not layers or "mapping.w_avg" not in weights:
        raise InputError(
            f"Expected the weights of a StyleGAN2 generator, found {', '.join(list(weights)[:5]) or 'none'}."
        )
    size, most = max(widths), max(widths.values())
    return {
        "size": size,
        "channels": len(weights[f"synthesis.b{size}.torgb.weight"]),
        "latent_size": len(weights["mapping.w_avg"]),
        "channel_base": max(side * width for side, width in widths.items()),
        "channel_max": most,
        "mapping_layers": layers,
    }


def _tensors(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Names and values of all weights below a module's record."""
    state = _state_of(module)
    for part in ("_parameters", "_buffers"):
        for name, value in _mapping(state.get(part)).items():
            if value is not None:
                yield f"{prefix}{name}", _tensor(value)
    for name, inner in _mapping(state.get("_modules")).items():
        if inner is not None:
            yield from _tensors(inner, f"{prefix}{name}.")


def _state_of(module: Any) -> Mapping[str, Any]:
    """The attributes of a pickled module: plain, or in the record of NVIDIA's persistent classes."""
    if not isinstance(module, Call):
        raise InputError(f"Expected a network, found {type(module).__name__}.")
    if isinstance(module.function, Name) and module.function.name == "_reconstruct_persistent_obj":
        return _mapping(_mapping(module.arguments[0])["state"])
    return _mapping(module.state)


def _mapping(value: Any) -> Mapping[str, Any]:
    """A dict, or the record of an object that is one."""
    if value is None:
        return {}
    if isinstance(value, Call):
        return value.items
    if not isinstance(value, dict):
        raise InputError(f"Expected a mapping, found {type(value).__name__}.")
    return value


def _tensor(value: Any) -> Tensor:
    name = str(value.function) if isinstance(value, Call) else type(value).__name__
    if name == "torch._utils._rebuild_parameter":
        return _tensor(value.arguments[0])
    if name != "torch._utils._rebuild_tensor_v2":
        raise InputError(f"Expected a tensor, found {name}. Nothing was run.")
    storage, offset, size, stride = value.arguments[:4]
    numbers = _numbers(storage)
    shape, steps = tuple(map(int, size)), tuple(map(int, stride))
    reach = int(offset) + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    if min(shape, default=1) < 1 or min((int(offset), *steps)) < 0 or reach >= len(numbers):
        raise InputError("A tensor reaches beyond its own numbers; the file is damaged.")
    if math.prod(shape) > _MOST_NUMBERS:
        raise InputError(f"Expected tensors of at most {_MOST_NUMBERS} numbers, found the shape {shape}.")
    return numbers.as_strided(shape, steps, int(offset)).clone()


def _numbers(storage: Any) -> Tensor:
    """The flat numbers of a storage that was pickled as bytes of its own."""
    if not isinstance(storage, Call) or str(storage.function) != "torch.storage._load_from_bytes":
        raise InputError("Expected the numbers of a tensor as bytes of torch. Nothing was run.")
    try:
        loaded = torch.load(io.BytesIO(storage.arguments[0]), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many kinds here, all of which mean a bad file
        raise InputError(f"The numbers of a tensor cannot be read: {str(error).splitlines()[0]}") from error
    return torch.tensor([], dtype=loaded.dtype).set_(loaded._untyped_storage)


def _clamp_of(network: Any) -> int:
    """The bound on maps that NVIDIA's half precision training sets; 0 for none."""
    synthesis = _mapping(_state_of(network).get("_modules")).get("synthesis")
    block = _mapping(_state_of(synthesis).get("_modules")).get("b4")
    layer = _mapping(_state_of(block).get("_modules")).get("conv1")
    return int(_state_of(layer).get("conv_clamp") or 0)


def _called(value: Any) -> set[str]:
    """What a pickle would have called first, for the message."""
    parts = value if isinstance(value, list | tuple) else [value]
    return {str(part.function) for part in parts if isinstance(part, Call)}
