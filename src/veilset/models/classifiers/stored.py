"""Classifiers as they are published: by the name of a network of ours, its settings and its weights."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.models import NETWORKS, build_network


def rebuild_classifier(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """The classifier of a stored description and its weights, ready to use. Only networks of `NETWORKS` are built."""
    name = description.get("name")
    if not isinstance(name, str) or name not in NETWORKS:
        raise InputError(f"The stored network is {name!r}, none of ours. What a release names is not imported.")
    try:
        height, width, channels = (int(side) for side in description["shape"])
        wide = None if description.get("width") is None else int(description["width"])
        classes = int(description["classes"])
        network = build_network(name, shape=(height, width, channels), classes=classes, width=wide)
        network.load_state_dict(dict(weights))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"What is stored does not fit the network {name!r}: {error}") from error
    return network.eval().requires_grad_(False)
