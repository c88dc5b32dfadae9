"""A student that learns the brightness of an image for certain, and quickly."""

from torch import Tensor, nn


class Brightness(nn.Module):
    """Logits that are linear in the mean of the pixels and its square."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(2, classes)

    def forward(self, images: Tensor) -> Tensor:
        light = 4 * images.mean(dim=(1, 2, 3))[:, None] - 2
        return self.head(nn.functional.pad(light, (0, 1)) + nn.functional.pad(light.square(), (1, 0)))


def linear(classes: int) -> Brightness:
    return Brightness(classes)
