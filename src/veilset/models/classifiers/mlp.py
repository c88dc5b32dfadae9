"""A multilayer perceptron: two hidden layers on pixels, blind to what lies beside what."""

from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError

_LARGEST_SIDE = 32  # larger images are averaged down to this, so that the first layer stays small


class MLP(nn.Module):
    """Two hidden layers; about 235,000 parameters for 28x28x1 and ten classes.

    Args:
        channels: colour channels of the images.
        classes: number of logits.
        size: shorter side of the images, at least 16.
        norm: "group"; there is none, so that records are never mixed.
        width: units of the first hidden layer; the second has half as many.
    """

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group", width: int = 256) -> None:
        super().__init__()
        if norm != "group":
            raise InputError(f"mlp has no norm and so mixes no records, as with norm=group; got norm={norm!r}.")
        if width < 2:
            raise InputError(f"Expected width of at least 2, got {width}.")
        self.side = min(size, _LARGEST_SIDE)
        self.layers = nn.Sequential(
            nn.Linear(channels * self.side**2, width),
            nn.ReLU(),
            nn.Linear(width, width // 2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width // 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        pixels = functional.adaptive_avg_pool2d(images, self.side)
        logits: Tensor = self.head(self.layers(pixels.flatten(1)))
        return logits
