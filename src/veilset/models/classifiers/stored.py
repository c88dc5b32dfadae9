"""Classifiers as they are published: by the name of a network of ours, its settings and its weights."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.models import NETWORKS, build_network
from veilset.models.stored import built_to_fit, sizes_of


def rebuild_classifier(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """The classifier of a stored description and its weights, ready to use. Only networks of `NETWORKS` are built."""
    name = description.get("name")
    if not isinstance(name, str) or name not in NETWORKS:
        raise InputError(f"The stored network is {name!r}, none of ours. What a release names is not imported.")
    try:
        height, width, channels = (int(side) for side in description["shape"])
        classes = sizes_of(description, ("classes",))["classes"]
        wide = None if description.get("width") is None else sizes_of(description, ("width",))["width"]
        shape = (height, width, channels)
        return built_to_fit(lambda: build_network(name, shape=shape, classes=classes, width=wide), weights)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"What is stored does not fit the network {name!r}: {error}") from error
