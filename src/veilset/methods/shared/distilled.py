"""What a fit of dfd or pate leaves: a generator, a student, and the word of a teacher on what is drawn."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veilset.core.randomness import numpy_generator, torch_generator
from veilset.methods.base import Fitted, ReleasedModel, Samples
from veilset.methods.shared.answered_images import answered_images
from veilset.methods.shared.data_free_config import DataFreeSettings
from veilset.models.descriptions import described
from veilset.models.generators.conditional import ConditionalGenerator, description_of
from veilset.privacy.vault import PublicFacts


@dataclass(frozen=True, kw_only=True)
class Distilled(Fitted):
    """Generator and student, finished, and the guide that labels what is drawn.

    Args:
        settings: how many images stray, and what network the student is.
        facts: of the private images.
        generator: whose images are released.
        student: that learned from them what the guide says.
        guide: a classifier that may be shown: of DP weights, or of noisy answers.
        shares: of the classes among the images, (classes,).
        device: where the networks live.
        drowned: warnings of classes that noise hides.
    """

    settings: DataFreeSettings
    facts: PublicFacts
    generator: ConditionalGenerator
    student: nn.Module
    guide: nn.Module
    shares: NDArray[np.float64]
    device: str
    drowned: tuple[str, ...] = ()

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw images, classes by their shares; soft labels are what the guide sees on the 8-bit images."""
        drawn = numpy_generator(seed, "data-free classes").choice(len(self.shares), size=count, p=self.shares)
        coins = torch_generator(seed, "data-free samples")
        parts = answered_images(self.generator, self.guide, torch.from_numpy(drawn), self.settings, coins, self.device)
        images, soft = [], []
        for pixels, answers in parts:
            images.append(pixels.permute(0, 2, 3, 1))
            soft.append(answers.softmax(dim=1).cpu())
        soft_labels = torch.cat(soft).numpy()
        return Samples(
            images=torch.cat(images).numpy(),
            labels=soft_labels.argmax(axis=1).astype(np.int64),
            soft_labels=soft_labels,
        )

    def warnings(self) -> list[str]:
        """Classes that noise hides."""
        return list(self.drowned)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator and the student, with what rebuilds them."""
        learned = described(
            "classifier", name=self.settings.student, shape=list(self.facts.shape), classes=self.facts.classes
        )
        return {
            "generator": ReleasedModel(weights=self.generator.state_dict(), description=description_of(self.generator)),
            "student": ReleasedModel(weights=self.student.state_dict(), description=learned),
        }
