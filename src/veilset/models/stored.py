"""Networks of a stranger's description: built without memory first, and only then for real if their weights fit.

A description is a few words, and a width of a million in it would ask for all memory there is. So the network is first
made on torch's `meta` device, which holds shapes and no numbers, and compared with the weights that were stored.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError

_LARGEST = 1 << 16  # of any size in a description
_MOST_LAYERS = 64


def sizes_of(description: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, int]:
    """Whole numbers of a description by name, none of them beyond what a network of ours can have."""
    found = {}
    for name in names:
        value, most = description[name], _MOST_LAYERS if name.endswith("layers") else _LARGEST
        if type(value) not in (int, float) or not abs(value) <= most or value != int(value):
            raise InputError(f"Expected {name} to be a whole number of at most {most}, found {str(value)[:40]}.")
        found[name] = int(value)
    return found


def built_to_fit(build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> nn.Module:
    """The network of `build` with these weights, ready to use; refused before it is built where they do not fit."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn and overwritten; the caller's random state stays
        with torch.device("meta"):
            wanted = {name: tuple(value.shape) for name, value in build().state_dict().items()}
        stored = {name: tuple(value.shape) for name, value in weights.items()}
        if wanted != stored:
            name = next(name for name in {**wanted, **stored} if wanted.get(name) != stored.get(name))
            raise ValueError(f"{name} has the shape {stored.get(name)}, and the network wants {wanted.get(name)}")
        network = build()
    network.load_state_dict(dict(weights))
    return network.eval().requires_grad_(False)
