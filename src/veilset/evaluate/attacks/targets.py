"""What of a release is attacked: its images, its student or one trained on it, and its generator."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import ShadowTrainer, Target
from veilset.models import NETWORKS, build_network
from veilset.models.generators.conditional import rebuild_generator
from veilset.release.format import Release
from veilset.release.students import student_recipe
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig

_DEFAULT_STUDENT = "convnet"


def release_target(
    release: Release,
    *,
    student: str | None = None,
    recipe: TrainingConfig | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Target:
    """The release as an attacker sees it.

    Args:
        release: what was published.
        student: train this network on the release and attack it; None takes the release's own student where it has
            one, else trains a convnet.
        recipe: of that training, and of the shadow models'.
        seed: of that training.
        device: where networks run.
        progress: is told steps.
    """
    facts = release.certificate.facts
    if student is None and "student" in release.models:
        weights, made = release.models["student"]
        name, network = rebuild_student(made, weights)
        description = f"the release's own student ({name})"
    else:
        name = student or _DEFAULT_STUDENT
        description = f"a {name} trained on the release"
        network = build_network(name, shape=facts.shape, classes=facts.classes, seed=seed)
        train_classifier(
            network,
            release.images,
            release.labels,
            release.soft_labels,
            config=student_recipe(release.certificate, recipe),
            seed=seed,
            device=device,
            progress=progress,
        )
    return Target(
        description=description,
        classes=facts.classes,
        network=network.to(device).eval(),
        released=release.images,
        generator=_generator(release, device),
        train_shadow=plain_shadows(name, facts.shape, facts.classes, recipe=recipe, device=device, progress=progress),
    )


def plain_shadows(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    recipe: TrainingConfig | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> ShadowTrainer:
    """Shadow models trained straight on the records they are given.

    For a target that saw a release only, that is a stand-in: a shadow made by the release's own method is nearer to
    it, and a caller who can afford one gives `Target` another trainer.
    """

    def train(images: Images, labels: Labels, seed: int) -> nn.Module:
        network = build_network(name, shape=shape, classes=classes, seed=seed)
        return train_classifier(network, images, labels, config=recipe, seed=seed, device=device, progress=progress)

    return train


def rebuild_student(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[str, nn.Module]:
    """The name and the network of a stored student. Only networks of `models.NETWORKS` are built."""
    name = description.get("name", description.get("student"))
    try:
        if name not in NETWORKS:
            raise InputError(f"its network is {name!r}")
        height, width, channels = (int(side) for side in description["shape"])
        wide = None if description.get("width") is None else int(description["width"])
        classes = int(description["classes"])
        network = build_network(str(name), shape=(height, width, channels), classes=classes, width=wide)
        network.load_state_dict(dict(weights))
    except (InputError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"The release's student cannot be rebuilt: {type(error).__name__}: {error}. "
            "Pass --student to attack one that is trained on the release."
        ) from error
    return str(name), network.eval()


def _generator(release: Release, device: str) -> nn.Module | None:
    """The generator, where there is one of a kind that we can rebuild."""
    if "generator" not in release.models:
        return None
    weights, description = release.models["generator"]
    try:
        generator = rebuild_generator(description, weights)
    except InputError:
        return None
    if not isinstance(getattr(generator, "latent_size", None), int):
        return None
    return generator.to(torch.device(device)).requires_grad_(False)
