"""The trained teacher: a network from images to logits, and what rebuilds it."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.models import NETWORKS, build_network
from veilset.models.features import DEFAULT_SIDE, FEATURES, build_features
from veilset.models.features.code import Code
from veilset.models.features.weights import PUBLISHED, weights_of
from veilset.teachers.config import Kind


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A classifier that private training has finished; what is computed from it is post-processing.

    Args:
        network: floats in [0, 1], (b, C, H, W), to logits (b, classes); gradients flow to the images.
        description: JSON-ready data that rebuilds the network without its weights.
    """

    network: nn.Module
    description: Mapping[str, Any]

    def __call__(self, images: Tensor) -> Tensor:
        """The logits of a batch of images."""
        logits: Tensor = self.network(images)
        return logits

    def weights(self) -> dict[str, Tensor]:
        """All that the network has learned, by name."""
        return {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}


def finished(network: nn.Module, description: Mapping[str, Any]) -> Teacher:
    """A teacher whose weights no longer move."""
    return Teacher(network=network.eval().requires_grad_(False), description=dict(description))


def rebuild_teacher(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Teacher:
    """The teacher of a stored description and its weights. What a description names is never imported."""
    try:
        kind, features = str(description["kind"]), str(description.get("features"))
        if kind == "scattering":  # what version 1 called a head on wavelets
            kind, features = "head", "wavelets"
        if kind not in get_args(Kind):
            raise ValueError(f"its kind is {kind!r}, none of ours")
        if kind == "head":
            _require_published(features, description.get("features_sha256"))
        # A head has no use for the name, and others would take it for that of a network: shadow models are built by it.
        if description["name"] not in NETWORKS:
            raise ValueError(f"its network is {description['name']!r}, none of ours")
        shape = (int(description["shape"][0]), int(description["shape"][1]), int(description["shape"][2]))
        # Weights of torch's own initialisation are drawn and overwritten; the caller's random state stays.
        with torch.random.fork_rng(devices=[]):
            network = make_network(
                kind=kind,
                name=str(description["name"]),
                shape=shape,
                classes=int(description["classes"]),
                directions=int(description["directions"]),
                head_only=bool(description["head_only"]),
                features=features,
                side=int(description.get("side", DEFAULT_SIDE)),
            )
        network.load_state_dict(dict(weights))
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Not a teacher and its weights: {type(error).__name__}: {error}") from error
    return finished(network, description)


def rebuild_network(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """The network of a stored teacher, ready to use."""
    return rebuild_teacher(description, weights).network


def make_network(
    *,
    kind: str,
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    directions: int,
    head_only: bool,
    features: str = "wavelets",
    side: int = DEFAULT_SIDE,
    seed: int = 0,
) -> nn.Module:
    """The untrained network of a teacher; a head starts at zero, so that every teacher starts from even odds."""
    if kind == "head":
        return on_code(build_features(features, shape, side=side), shape, classes, directions)
    network = build_network(name, shape=shape, classes=classes, seed=seed)
    return on_code(without_head(network), shape, classes, directions) if head_only else network


def on_code(extractor: nn.Module, shape: tuple[int, int, int], classes: int, directions: int) -> nn.Sequential:
    """A zero linear head on the code of fixed features."""
    height, width, channels = shape
    with torch.no_grad():
        features = extractor.eval()(torch.zeros(1, channels, height, width)).shape[1]
    head = nn.Linear(min(directions, features), classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(OrderedDict(code=Code(extractor, features, head.in_features), head=head))


def _require_published(features: str, sha256: object) -> None:
    """Refuse features that only their owner has, and weights that differ from those that are published here."""
    parts, hashes = features.split("+"), iter(str(sha256).split("+"))
    if len(set(parts)) < len(parts) or not set(parts) <= set(FEATURES):
        raise ValueError(f"its features are {features[:100]!r}, none of ours")
    for part in parts:
        if (weights := weights_of(part)) is None:
            continue
        found, ours = next(hashes, None), PUBLISHED[weights].sha256
        if found != ours:
            raise ValueError(f"its features {part} have the SHA-256 {found}, ours have {ours}")


def head_of(network: nn.Module) -> tuple[str, nn.Linear]:
    """The name and the module of the last linear layer, which gives the logits."""
    found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not found or not found[-1][0]:
        raise InputError("Expected a network that ends in an nn.Linear, found none. Train all of it instead.")
    return found[-1]


def without_head(network: nn.Module) -> nn.Module:
    """The network up to what its head reads."""
    parent, _, child = head_of(network)[0].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return network
