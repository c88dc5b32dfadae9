"""A trained network from a file: what it holds says how many classes and colours there are, the user says the rest.

Safetensors and PyTorch's own files are read, the latter as tensors alone. Networks are ours by name, the user's own as
module:function, or those of torchvision and timm where these are installed. A file may be a stranger's, so what it says
of itself can name our networks and nothing else: no code, and no library's network, is loaded by its word.
"""

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.models import NETWORKS, build_network
from veilset.privacy.vault import PublicFacts

_STUDENT = ("student.safetensors", "student.json")  # what `veilset train` writes
_WRAPPED = ("state_dict", "model", "model_state_dict")  # where training scripts put the weights
_LARGEST_SIDE = 1024  # of the images that a file may say it knows
_LIBRARIES = ("torchvision", "timm")
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user says of a model; None is read off the file.

    Args:
        network: a name, `module:function`, `torchvision:NAME` or `timm:NAME`.
        size: side of the square images that it knows.
        channels: 1 or 3.
        class_names: in the order of its outputs.
        mean: what it subtracts from pixels in [0, 1], for each channel; libraries' networks have ImageNet's.
        deviation: what it divides them by.
        units: how many images it was trained on, if that may be said.
    """

    network: str | None = None
    size: int | None = None
    channels: int | None = None
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    units: int = 1


class Normalised(nn.Module):
    """A network that wants its pixels shifted and scaled, as one that takes them in [0, 1]."""

    def __init__(self, network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        logits: Tensor = self.network((images - self.get_buffer("mean")) / self.get_buffer("deviation"))
        return logits


class Together(nn.Module):
    """Networks that answer together: log-odds of the mean of their probabilities."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        said = torch.stack([network(images).log_softmax(dim=1) for network in self.networks])
        return said.logsumexp(dim=0) - math.log(len(self.networks))


def read_model(path: Path, declared: Declared) -> tuple[nn.Module, PublicFacts, str]:
    """The network of a file, ready to answer, what is public of it, and its name."""
    weights, said = _read(path)
    name = declared.network or _name_of(path, said)
    facts = _facts(path, weights, declared, said)
    network = _build(name, facts)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1 if "\n" in str(error) else 0].strip()
        raise InputError(f"The weights are not those of {name} for {facts.classes} classes: {first}") from error
    network = _normalised(name, network, facts, declared).eval().requires_grad_(False)
    with torch.no_grad():
        answers = network(torch.zeros(1, facts.shape[2], *facts.shape[:2]))
    if tuple(answers.shape) != (1, facts.classes):
        raise InputError(f"Expected {name} to answer with {facts.classes} numbers, got {tuple(answers.shape)}.")
    return network, facts, name


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and what a description beside or inside it says."""
    said: dict[str, Any] = {}
    if path.is_dir():
        weights, description = (path / name for name in _STUDENT)
        if not (weights.exists() and description.exists()):
            raise InputError(f"{path} is neither a release nor a student of `veilset train`. Pass a file of weights.")
        said = _described(description)
        path = weights
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path), said
        except (SafetensorError, OSError) as error:
            raise InputError(f"Expected a safetensors file at {path}: {error}.") from error
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for files that are not its own
        first = str(error).splitlines()[0][:200]
        raise InputError(f"Expected weights at {path}, as .safetensors or a PyTorch state_dict: {first}") from error
    while isinstance(found, Mapping) and (inside := [name for name in _WRAPPED if name in found]):
        found = found[inside[0]]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise InputError(f"Expected a state_dict of tensors at {path}. Save model.state_dict() there.")
    return {str(name).removeprefix("module."): value for name, value in found.items()}, said


def _described(path: Path) -> dict[str, Any]:
    """What a student's description says, of the types that are asked for."""
    try:
        said = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"Expected JSON in {path}: {error}.") from error
    shape = said.get("shape", [1, 1, 1]) if isinstance(said, dict) else None
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(type(side) is int and 1 <= side <= _LARGEST_SIDE for side in shape)
        or not isinstance(said.get("class_names", []), list)
        or not all(isinstance(name, str) for name in said.get("class_names", []))
    ):
        raise InputError(f"Expected what `veilset train` writes in {path}: a shape and the names of classes.")
    found: dict[str, Any] = said
    return found


def _name_of(path: Path, said: Mapping[str, Any]) -> str:
    """The network of ours that a description names, perhaps with a width."""
    name = said.get("student")
    if not isinstance(name, str):
        raise InputError(f"{path} does not say what network it is of. Pass --network, e.g. --network convnet.")
    if name.partition("@")[0] not in NETWORKS:
        raise InputError(
            f"{path} says that its network is {name!r}, none of ours. What a file names is not imported: if you know "
            "that code, pass it with --network."
        )
    return name


def _facts(path: Path, weights: Mapping[str, Tensor], declared: Declared, said: Mapping[str, Any]) -> PublicFacts:
    """Shape and classes as declared, else as described, else as the first kernel and the last matrix have them."""
    kernels = [value for value in weights.values() if value.ndim == 4]
    matrices = [value for value in weights.values() if value.ndim == 2]
    described = list(said.get("shape", ()))
    size = declared.size or (described[0] if described else None)
    if size is None:
        raise InputError(f"{path} does not say how large its images are. Pass --size, e.g. --size 32.")
    channels = declared.channels or (described[2] if described else kernels[0].shape[1] if kernels else None)
    names = declared.class_names or tuple(said.get("class_names", ()))
    if not names:
        if not matrices:
            raise InputError(f"{path} has no last layer to count classes by. Pass --classes.")
        names = tuple(str(number) for number in range(matrices[-1].shape[0]))
    if channels not in (1, 3):
        raise InputError(f"Expected a network of grey or colour images, got {channels} channels. Pass --channels.")
    return PublicFacts(units=declared.units, unit="record", shape=(size, size, int(channels)), class_names=names)


def _build(name: str, facts: PublicFacts) -> nn.Module:
    library, _, kind = name.partition(":")
    if library not in _LIBRARIES:
        return build_network(name, shape=facts.shape, classes=facts.classes)
    try:
        if library == "timm":
            timm = importlib.import_module("timm")
            made = timm.create_model(kind, pretrained=False, num_classes=facts.classes, in_chans=facts.shape[2])
        else:
            models = importlib.import_module("torchvision.models")
            made = models.get_model(kind, weights=None, num_classes=facts.classes)
    except ImportError as error:
        raise InputError(f"{name} needs {library}, which is not installed: pip install {library}.") from error
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{library} has no classifier {kind!r}: {error}") from error
    network: nn.Module = made
    return network


def _normalised(name: str, network: nn.Module, facts: PublicFacts, declared: Declared) -> nn.Module:
    channels = facts.shape[2]
    mean, deviation = declared.mean, declared.deviation
    if mean is None and deviation is None:
        if name.partition(":")[0] not in _LIBRARIES or channels != len(_IMAGENET[0]):
            return network
        mean, deviation = _IMAGENET
    mean, deviation = mean or (0.0,) * channels, deviation or (1.0,) * channels
    if len(mean) != channels or len(deviation) != channels or min(deviation) <= 0:
        raise InputError(f"Expected {channels} numbers for --mean and as many above 0 for --deviation.")
    return Normalised(network, mean, deviation)
