"""What leaves of PLDK: the distilled images with their labels, and the student. Post-processing."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.randomness import torch_generator
from veilset.core.records import Labels
from veilset.data.tensors import as_bytes
from veilset.methods.base import Fitted, ReleasedModel, Samples
from veilset.methods.pldk.config import PldkSettings
from veilset.methods.pldk.student import student_form
from veilset.methods.shared.image_health import soft_labels_of
from veilset.models.descriptions import described
from veilset.privacy.vault import PublicFacts


def labelled(
    pixels: Tensor, classifier: nn.Module, labels: Labels | None, device: str, *, temperature: float
) -> Samples:
    """Images in [0, 1] as they are stored, and what the classifier says of them; its hard labels without `labels`."""
    images = as_bytes(pixels).contiguous().numpy()
    soft = soft_labels_of(classifier, images, device, temperature=temperature)
    own = soft.argmax(axis=1).astype(np.int64) if labels is None else labels
    return Samples(images=images, labels=own, soft_labels=soft)


@dataclass(frozen=True, kw_only=True)
class FittedPldk(Fitted):
    """The distilled images with their labels, and the student."""

    samples: Samples
    student: nn.Module
    settings: PldkSettings
    facts: PublicFacts

    def sample(self, count: int, seed: int = 0) -> Samples:
        """The distilled images, which are what they are: as many of each class as were asked for, at most all."""
        order = torch.randperm(len(self.samples.labels), generator=torch_generator(seed, "pldk samples")).numpy()
        kept = np.sort(order[:count]) if count < len(order) else np.arange(len(order))
        assert self.samples.soft_labels is not None
        return Samples(
            images=self.samples.images[kept],
            labels=self.samples.labels[kept],
            soft_labels=self.samples.soft_labels[kept],
        )

    def models(self) -> dict[str, ReleasedModel]:
        """The student, with what rebuilds it."""
        description = described("classifier", **student_form(self.settings, self.facts))
        return {"student": ReleasedModel(weights=self.student.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """That the images are not the distilled ones."""
        if self.settings.start != "real":
            return []
        return [
            "The distilled images began as private ones and stayed behind. The images here are drawn patterns, "
            "labelled by the student: use the student."
        ]
