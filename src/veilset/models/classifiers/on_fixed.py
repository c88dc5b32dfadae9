"""Classifiers that read fixed features: what is fixed is computed once, and training repeats only what learns."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn


class OnFixedFeatures(nn.Module):
    """A network whose first part never learns. Subclasses set `fixed` and `fixed_width` and say how to `read` it.

    `fixed` maps images to rows (b, fixed_width). `slow_parts` names parts that start from published weights, and the
    share of the learning rate that they take.
    """

    fixed: nn.Module
    fixed_width: int
    slow_parts: ClassVar[Mapping[str, float]] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        return self.read(self.fixed(images))

    @abstractmethod
    def read(self, features: Tensor) -> Tensor:
        """Logits of what `fixed` returned."""
