"""A finished generator and what is released of it: labelled images, and a word on how they look.

Used by dpgan, sanitized_gan and dpaf. The labels come from a private classifier that has a share of the budget
(teachers), where there is one.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.core.records import Images
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.base import Fitted, ReleasedModel, Samples
from veilset.methods.shared.choices import Labelling, Variation
from veilset.methods.shared.gan import even_labels, sample_images
from veilset.methods.shared.image_health import inspect, require_finite, soft_labels_of
from veilset.methods.shared.variations import vary
from veilset.models.generators.conditional import description_of
from veilset.privacy.vault import PublicFacts

_LOOKED_AT = 20  # images of each class in the report on collapse
_AT_ONCE = 500
_BALANCED_ON = 500  # images by which the classifier's offsets are found
_ROUNDS = 200


@dataclass(frozen=True, kw_only=True)
class FittedGenerator(Fitted):
    """A generator that no longer moves, and the private classifier that labels its images, where there is one.

    Args:
        generator: of models/generators/conditional.py.
        teacher: the classifier; without one, labels are those that the generator was asked for.
        facts: of the private images.
        device: where both live.
        bernoulli: whether the generator is fed coins of -1 and 1.
        variation: of generated images before the classifier labels them: more to ask it about, at no cost. Without a
            classifier there is nobody to say what a changed image shows, so images stay as they are.
        labelling: what of the classifier's word counts.
        image_noise: largest strength of noise that images get before they are labelled and released; 0 is none.
        found: what the training said of itself, in sentences.
    """

    generator: nn.Module
    teacher: nn.Module | None
    facts: PublicFacts
    device: str
    bernoulli: bool = False
    variation: Variation = "none"
    labelling: Labelling = "classifier"
    image_noise: float = 0.0
    found: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_finite(self.generator, "the generator")

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw images, every class asked for alike often; the classifier, where there is one, labels what it sees."""
        return self._drawn(count, seed, self.image_noise)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it and what it is fed."""
        description = description_of(self.generator) | {"latent": "bernoulli" if self.bernoulli else "gaussian"}
        return {"generator": ReleasedModel(weights=self.generator.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """Collapse and lost classes, seen on images without added noise, which would pass for variety."""
        asked = even_labels(_LOOKED_AT * self.facts.classes, self.facts.classes)
        drawn = self._drawn(len(asked), 0, image_noise=0.0)
        seen_as = None if self.teacher is None else drawn.labels
        health = inspect(drawn.images, asked, self.facts.classes, seen_as)
        return [*health.warnings(self.facts.class_names), *self.found]

    def _drawn(self, count: int, seed: int, image_noise: float) -> Samples:
        asked = even_labels(count, self.facts.classes)
        images = sample_images(self.generator, asked, seed, bernoulli=self.bernoulli)
        if self.teacher is not None and self.variation != "none":
            images = varied(images, self.variation, seed)
        images = with_noise(images, image_noise, seed) if image_noise else images
        if self.teacher is None or self.labelling == "asked":
            soft = np.eye(self.facts.classes, dtype=np.float32)[asked]
            return Samples(images=images, labels=asked, soft_labels=soft)
        soft = soft_labels_of(self.teacher, images, self.device)
        if self.labelling == "balanced":
            soft = reweighted(soft, self._weights())
        return Samples(images=images, labels=soft.argmax(axis=1).astype(np.int64), soft_labels=soft)

    def _weights(self) -> NDArray[np.float32]:
        """(classes,) what makes the classifier give all classes alike often, on images drawn for that alone."""
        assert self.teacher is not None
        asked = even_labels(_BALANCED_ON, self.facts.classes)
        images = sample_images(self.generator, asked, 0, bernoulli=self.bernoulli)
        return even_weights(soft_labels_of(self.teacher, images, self.device))


def reweighted(soft: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities (n, classes) times a weight of each class, adding up to 1 again."""
    product = soft * weights
    shares: NDArray[np.float32] = (product / product.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def even_weights(soft: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights of the classes with which the mean of `soft` (n, classes) is even.

    A classifier of real images may take all generated ones for one class; which of them it takes for it least is
    knowledge all the same. The fixed point of Saerens et al. 2002, towards a prior that is known: classes were asked
    for alike often.
    """
    soft = np.clip(soft, 1e-6, None)
    weights = np.ones(soft.shape[1], dtype=np.float32)
    for _ in range(_ROUNDS):
        weights /= soft.shape[1] * reweighted(soft, weights).mean(axis=0)
        weights /= weights.sum()
    return weights


def varied(images: Images, kind: Variation, seed: int) -> Images:
    """8-bit images (b, H, W, C), each changed."""
    coins = torch_generator(seed, "variations")
    parts = torch.split(torch.from_numpy(images), _AT_ONCE)
    return torch.cat([as_bytes(vary(as_floats(part), kind, coins)) for part in parts]).numpy()


def with_noise(images: Images, most: float, seed: int) -> Images:
    """8-bit images (b, H, W, C) with noise of one and two pixels' size; each image draws its strength, up to `most`.

    A student of smooth images alone takes the first sharp edge that it meets for a sign of some class. This noise has
    nothing to do with privacy.
    """
    coins = torch_generator(seed, "grain")  # the name of a random stream: another one would be other noise
    parts = []
    for part in torch.split(torch.from_numpy(images), _AT_ONCE):
        pixels = as_floats(part)
        height, width = pixels.shape[2:]
        fine = torch.randn(pixels.shape, generator=coins)
        coarse = torch.randn(*pixels.shape[:2], math.ceil(height / 2), math.ceil(width / 2), generator=coins)
        noise = fine / 2 + functional.interpolate(coarse, (height, width), mode="bicubic")
        strengths = most * torch.rand(len(pixels), 1, 1, 1, generator=coins)
        parts.append(as_bytes((pixels + strengths * noise).clamp(0, 1)))
    return torch.cat(parts).numpy()
