"""A student of a release: any network, trained on the released images alone."""

from pathlib import Path
from typing import TYPE_CHECKING

from veilset.core.progress import SILENT, Progress
from veilset.models import build_network
from veilset.release.format import Release, load_release
from veilset.release.students import AUTO, student_name, student_recipe
from veilset.training.settings import TrainingConfig

if TYPE_CHECKING:
    from torch import nn


def train(
    release: Release | str | Path,
    *,
    student: str = AUTO,
    epochs: int | None = None,
    recipe: TrainingConfig | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> "nn.Module":
    """Train a student on a release and give it back, ready to use; by post-processing it has the release's guarantee.

    Args:
        release: a release, or the path of one.
        student: the name of a network, one of another width (`resnet18@16`), your own as `module:function`, or auto, as
            the release asks for. A function of your own is called with those of channels, classes, size, height, width
            and norm that it has arguments for, and returns a module from (batch, channels, height, width) to logits.
        epochs: passes over the images; None is a number that fits how many there are.
        recipe: more settings of the training; its epochs go before `epochs`.
        seed: of weights, order and changes to images.
        device: where to train.
        progress: is told steps, never losses.

    >>> import veilset as vs
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit("builtin:digits:train")
    >>> network = vs.train(release, student="lenet", epochs=1)
    >>> network(release.torch()[0][0][None]).shape
    torch.Size([1, 10])
    """
    from veilset.training.classifier import train_classifier

    source = release if isinstance(release, Release) else load_release(release)
    facts = source.certificate.facts
    name = student_name(source.certificate, student)
    network = build_network(name, shape=facts.shape, classes=facts.classes, seed=seed)
    return train_classifier(
        network,
        source.images,
        source.labels,
        source.soft_labels,
        config=student_recipe(source.certificate, recipe or TrainingConfig(epochs=epochs or "auto")),
        seed=seed,
        device=device,
        progress=progress,
    )
