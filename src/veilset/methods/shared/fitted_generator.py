"""A finished generator and what is released of it: labelled images, and a word on how they look.

The labels come from a private classifier that has a share of the budget (teachers).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.core.records import Images, Labels
from veilset.methods.shared.gan import even_labels, sample_images
from veilset.methods.shared.image_health import inspect, require_finite, soft_labels_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts
from veilset.teachers import Recipe, TeacherConfig, plan_teacher, train_teacher
from veilset.teachers.fitting import Context

_TEACHER = "teacher"
_LOOKED_AT = 20  # images of each class in the report on collapse
_GRAINED_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class FittedGenerator:
    """A generator that no longer moves, and the private classifier that labels its images, where there is one.

    Images get grain of up to `grain` before they are labelled and released; 0 is none.
    """

    generator: nn.Module
    teacher: nn.Module | None
    facts: PublicFacts
    device: str
    bernoulli: bool = False
    grain: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self.generator, "the generator")

    def draw(self, count: int, seed: int) -> tuple[Images, Labels, NDArray[np.float32]]:
        """Images, every class asked for alike often; labels and soft labels are what the classifier sees on them.

        Without a classifier they are those that the generator was asked for.
        """
        return self._drawn(count, seed, self.grain)

    def _drawn(self, count: int, seed: int, grain: float) -> tuple[Images, Labels, NDArray[np.float32]]:
        asked = even_labels(count, self.facts.classes)
        images = sample_images(self.generator, asked, seed, bernoulli=self.bernoulli)
        images = with_grain(images, grain, seed) if grain else images
        if self.teacher is None:
            return images, asked, np.eye(self.facts.classes, dtype=np.float32)[asked]
        soft = soft_labels_of(self.teacher, images, self.device)
        return images, soft.argmax(axis=1).astype(np.int64), soft

    def warnings(self) -> list[str]:
        """Collapse and lost classes, seen on generated images without grain, which would pass for variety."""
        asked = even_labels(_LOOKED_AT * self.facts.classes, self.facts.classes)
        images, seen_as, _ = self._drawn(len(asked), 0, grain=0.0)
        known = None if self.teacher is None else seen_as
        return inspect(images, asked, self.facts.classes, known).warnings(self.facts.class_names)


def with_grain(images: Images, most: float, seed: int) -> Images:
    """8-bit images (b, H, W, C) with noise of one and two pixels' size; each image draws its strength, up to `most`.

    A student of smooth images alone takes the first sharp edge that it meets for a sign of some class.
    """
    coins = torch_generator(seed, "grain")
    parts = []
    for part in torch.split(torch.from_numpy(images), _GRAINED_AT_ONCE):
        pixels = part.permute(0, 3, 1, 2).float() / 255
        height, width = pixels.shape[2:]
        fine = torch.randn(pixels.shape, generator=coins)
        coarse = torch.randn(*pixels.shape[:2], math.ceil(height / 2), math.ceil(width / 2), generator=coins)
        noise = fine / 2 + functional.interpolate(coarse, (height, width), mode="bicubic")
        pixels = (pixels + most * torch.rand(len(pixels), 1, 1, 1, generator=coins) * noise).clamp(0, 1)
        parts.append((pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(parts).numpy()


def plan_labels(facts: PublicFacts, budget: Budget, noise: float) -> tuple[Recipe, Event]:
    """The classifier that labels a release, at a given noise; its batch and steps are those of the budget."""
    return plan_teacher(TeacherConfig(label=_TEACHER, noise_multiplier=noise), facts, False, budget)


def train_labels(session: Session, context: Context) -> nn.Module:
    """Train the classifier that the session's plan names.

    Privacy: as `train_teacher`; event "teacher" of the plan.
    """
    event = session.planned(_TEACHER)
    recipe, planned = plan_labels(session.facts, session.plan.budget, event.noise_multiplier)
    assert planned == event
    return train_teacher(session, recipe, event, None, context).network
