"""Networks of a release, rebuilt from what is stored of them.

One fixed table says who rebuilds a network of which name; its code is imported when such a network is asked for, and a
description can choose from the table and nothing else.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError
from veilset.core.registry import Registry
from veilset.models.descriptions import recognised
from veilset.privacy.vault import PublicFacts

if TYPE_CHECKING:
    from torch import Tensor

Rebuild = Callable[[Mapping[str, Any], "Mapping[str, Tensor]"], Any]
"""From a description, recognised, and weights to a network that is ready to use: evaluating, its weights fixed."""

REBUILDERS: Registry[Rebuild] = Registry(
    "network",
    {
        "classifier": "veilset.models.classifiers.stored:rebuild_classifier",
        "teacher": "veilset.teachers.teacher:rebuild_network",
        "modulated_generator": "veilset.models.generators.conditional:rebuild_generator",
        "smooth_generator": "veilset.models.generators.conditional:rebuild_generator",
        "dcgan_generator": "veilset.models.generators.conditional:rebuild_generator",
        "resnet_generator": "veilset.models.generators.conditional:rebuild_generator",
        "latent_sampler": "veilset.methods.latent.sampling:rebuild_sampler",
    },
)

# A student that is asked for logits must not turn out to be a generator.
_CLASSIFIERS = ("classifier", "teacher")
_GENERATORS = tuple(name for name in REBUILDERS if name not in _CLASSIFIERS)
_ROLES = {"generator": _GENERATORS, "student": _CLASSIFIERS, "teacher": _CLASSIFIERS}


def rebuild_model(
    role: str, description: Mapping[str, Any], weights: "Mapping[str, Tensor]", facts: PublicFacts
) -> Any:
    """The network that a release of these facts stores as its `generator`, `student` or `teacher`."""
    found = recognised(description)
    if found["network"] not in _ROLES[role]:
        raise InputError(f"Expected the {role} to be one of {', '.join(_ROLES[role])}, found a {found['network']}.")
    of_release = {"shape": list(facts.shape), "classes": facts.classes}
    for name, value in of_release.items():
        if found.get(name, value) != value:
            raise InputError(f"Expected a {role} for {name} {value} as the certificate says, found {found[name]!r}.")
    return REBUILDERS.get(found["network"])(of_release | found, weights)
