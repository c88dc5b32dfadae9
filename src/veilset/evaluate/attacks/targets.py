"""What of a release is attacked: its images, its student or one trained on it, and its generator."""

import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import ShadowTrainer, Target
from veilset.models import NETWORKS, build_network
from veilset.models.descriptions import recognised
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
        name, network = own_student(release)
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


def own_student(release: Release) -> tuple[str, nn.Module]:
    """The student that the release holds: the name of its network, which shadow models share, and the network."""
    try:
        name, network = str(recognised(release.models["student"][1]).get("name")), release.model("student")
        # A stranger's word may name a network of ours and no code of its own; attacks look at gradients.
        return name if name in NETWORKS else "convnet", network.requires_grad_(True)
    except InputError as error:
        raise InputError(
            f"The release's student cannot be rebuilt: {error} "
            "Pass --student to attack one that is trained on the release."
        ) from error


def _generator(release: Release, device: str) -> nn.Module | None:
    """The generator, where there is one of a kind that we can rebuild."""
    if "generator" not in release.models:
        return None
    try:
        generator = release.model("generator")
    except InputError:
        return None
    # The sampler of latent is no network from latents and classes to images.
    return generator.to(torch.device(device)) if isinstance(generator, nn.Module) else None
