"""ScatterNet: a linear head on fixed wavelet features (Oyallon and Mallat, 2015).

The default teacher is of this kind, so a student of this kind can say all that such a teacher says: where images look
nothing like the private ones, that is worth more than depth (docs/methods/imgsyn.md).
"""

from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.classifiers.on_fixed import OnFixedFeatures
from veilset.models.features.wavelets import ScatteringFeatures

# Length of the rows that the head reads, so that the learning rates of other networks suit it.
_ROW_LENGTH = 10.0


class ScatterNet(OnFixedFeatures):
    """The features, scaled to one length, and a linear head: 39,700 parameters for 28x28x1 and ten classes.

    Args:
        channels: colour channels of the images.
        classes: number of logits.
        size: shorter side of the images, at least 16.
        norm: "group" alone: features are standardised within each record.
    """

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        if norm != "group":
            raise InputError(f"scatternet standardises within each record, so norm={norm!r} has no place in it.")
        features = ScatteringFeatures((size, size, channels))
        self.fixed, self.fixed_width = features, features.width
        self.head = nn.Linear(self.fixed_width, classes)

    def read(self, features: Tensor) -> Tensor:
        """Logits of what `fixed` returned."""
        logits: Tensor = self.head(_ROW_LENGTH * functional.normalize(features, dim=1))
        return logits
