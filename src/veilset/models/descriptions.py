"""Descriptions: what rebuilds a published network without its weights, by a name and a version.

A description is plain data, {"network": NAME, "version": NUMBER, ...settings...}. NAME is one of the table below and
says nothing of where its code lives: files may move, and nothing that a stranger's file says is ever imported. A
network's version counts up when its settings or its weights change their names or their meaning, so that code can tell
what it reads. `release.models` knows who rebuilds what.
"""

from collections.abc import Mapping
from typing import Any

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name

VERSIONS: Mapping[str, int] = {
    "classifier": 1,  # name (of models.NETWORKS), shape, classes, width where it is not the default
    # Kind, name, head_only, shape, classes, directions; of a head features, side and features_sha256. Version 1 called
    # a head on wavelets "scattering" and knew no other.
    "teacher": 2,
    "modulated_generator": 1,  # size, channels, classes, latent_size, width; the next three alike
    "smooth_generator": 1,
    "dcgan_generator": 1,
    "resnet_generator": 1,
    # The settings of its class, and breadth where its images are not square; the next three alike.
    "style_generator": 1,
    "sharpened_generator": 1,
    "eigen_generator": 1,
    "stylegan2_generator": 1,
    # Generator (a description of its own), latents, directions, components, draws. Version 1 knew w alone, and weights
    # have `tails` from version 3 on, and `tail_means` from version 4 on.
    "latent_sampler": 4,
}
"""Every network that is published, and the newest version that this code writes and reads."""

_OLD_GENERATORS = {
    "ConditionalGenerator": "modulated_generator",
    "SmoothGenerator": "smooth_generator",
    "DCGANGenerator": "dcgan_generator",
    "ResNetGenerator": "resnet_generator",
}

OLD_NAMES: Mapping[str, tuple[str, int]] = {
    "veilset.models:build_network": ("classifier", 1),
    **{f"veilset.models.generators:{old}": (new, 1) for old, new in _OLD_GENERATORS.items()},
    **{f"veilset.models.generators.conditional:{old}": (new, 1) for old, new in _OLD_GENERATORS.items()},
    "veilset.methods.latent:rebuild_sampler": ("latent_sampler", 1),
    "veilset.methods.latent.method:rebuild_sampler": ("latent_sampler", 1),
    "style": ("style_generator", 1),
    "eigen": ("eigen_generator", 1),
    "stylegan2": ("stylegan2_generator", 1),
}
"""What descriptions said under "kind" up to Veilset 0.2, which wrote the paths of its own code: name and version."""


def described(network: str, **settings: Any) -> dict[str, Any]:
    """The description of a network in its newest version."""
    if network not in VERSIONS:
        raise unknown_name("network", network, list(VERSIONS))
    return settings | {"network": network, "version": VERSIONS[network]}


def recognised(description: Mapping[str, Any]) -> dict[str, Any]:
    """A stored description with a name and a version that are known here; those of old releases are renamed."""
    known = dict(description) if "version" in description else _renamed(description)
    network, version = known.get("network"), known["version"]
    if not isinstance(network, str) or network not in VERSIONS:
        raise unknown_name("network", str(network), list(VERSIONS))
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InputError(f"Expected the version of a {network} to be a whole number of at least 1, got {version!r}.")
    if version > VERSIONS[network]:
        raise InputError(
            f"This is a {network} of version {version}; this Veilset knows versions up to {VERSIONS[network]}. "
            "Install a newer Veilset to rebuild it."
        )
    return known


def _renamed(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description from before networks had names and versions, as version 1 would have written it."""
    kind = description.get("kind")
    if description.get("type") == "teacher":
        # "network" was the name of the classifier inside, and "kind" a setting, as it still is.
        settings = {key: value for key, value in description.items() if key not in ("type", "network")}
        return settings | {"network": "teacher", "version": 1, "name": description.get("network")}
    settings = {key: value for key, value in description.items() if key != "kind"}
    if "kind" not in description and "student" in description:
        # What `veilset train` writes beside a student.
        return settings | {"network": "classifier", "version": 1, "name": description["student"]}
    if not isinstance(kind, str) or kind not in OLD_NAMES:
        raise unknown_name("network", str(description.get("network", kind)), list(VERSIONS))
    network, version = OLD_NAMES[kind]
    return settings | {"network": network, "version": version}
