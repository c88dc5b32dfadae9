"""What makes and varies candidates. Nothing here sees a private image.

A generator is anything with `random` and `vary`; the user's own is named as `module:function`, and the function is
called with the keyword arguments `shape` (height, width, channels), `classes` and `seed`.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.registry import resolve
from veilset.models import working_directory_importable
from veilset.privacy.vault import PublicFacts


@runtime_checkable
class Generator(Protocol):
    """Random images, and variations of images. The same seeds give the same images."""

    def random(self, labels: Tensor, seed: int) -> Tensor:
        """An image in [0, 1] for each label (b,): (b, C, H, W). A generator may know classes or not.

        Of F findings, labels 0 to F-1 ask for images with that finding, and F for images without any.
        """

    def vary(self, images: Tensor, degree: float, seed: int) -> Tensor:
        """A changed copy of each image; 0 is next to no change and 1 the most that keeps anything of it."""


class Checked:
    """A generator whose images have the right number, shape and range, whoever wrote it."""

    def __init__(self, generator: Generator, facts: PublicFacts, name: str) -> None:
        self._generator, self._name = generator, name
        height, width, channels = facts.shape
        self._shape = (channels, height, width)

    def random(self, labels: Tensor, seed: int) -> Tensor:
        """Random images for labels."""
        return self._checked(self._generator.random(labels, seed), len(labels))

    def vary(self, images: Tensor, degree: float, seed: int) -> Tensor:
        """Variations of images, of which there may be none."""
        return self._checked(self._generator.vary(images, degree, seed), len(images)) if len(images) else images

    def _checked(self, images: Any, count: int) -> Tensor:
        if not isinstance(images, Tensor) or tuple(images.shape) != (count, *self._shape):
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"Expected {count} images of shape {self._shape} from {self._name}, got {got}.")
        if not bool(torch.isfinite(images).all()):
            raise InputError(f"{self._name} gave pixels that are not finite.")
        return images.detach().float().cpu().clamp(0, 1)


def own_generator(name: str, facts: PublicFacts, seed: int) -> Generator:
    """What the user's `module:function` returns."""
    with working_directory_importable(True):
        generator = resolve(name)(shape=facts.shape, classes=facts.classes, seed=seed)
    if not isinstance(generator, Generator):
        raise InputError(
            f"Expected {name} to return an object with random(labels, seed) and vary(images, degree, seed), got "
            f"{type(generator).__name__}."
        )
    return generator
