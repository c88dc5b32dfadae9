"""ConvNet: the plain stack of convolutions that dataset condensation papers use, shaped for two CPU cores.

Each stage is convolution, max-pooling, norm, ReLU. Pooling comes before the norm, which then touches a quarter of the
pixels; max-pooling and ReLU commute, and a step took 1.5 times less time (batch 128, 28x28, channels last).
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.norms import halvings, init_relu_network, make_norm, stem, stem_stride

_HEAD_SIDE = 3
# Added to an image's deviation, in units of the pixel range, so that a flat image does not become noise.
_FLAT = 0.05


class ConvNet(nn.Module):
    """A small network for small images; the default student. 104,426 parameters for 28x28x1 and ten classes.

    Args:
        channels: colour channels of the images.
        classes: number of logits.
        size: shorter side of the images, at least 16.
        norm: "group" or "batch".
        width: channels of the first stage; each further stage has twice as many.
        depth: number of stages.
    """

    activation: ClassVar[type[nn.Module]] = nn.ReLU

    def __init__(
        self, *, channels: int, classes: int, size: int, norm: str = "group", width: int = 32, depth: int = 3
    ) -> None:
        super().__init__()
        if width < 1 or depth < 1:
            raise InputError(f"Expected width and depth of at least 1, got {width} and {depth}.")
        # Late stages lose their pooling first: a map below 3x3 has nothing left to tell.
        pooled = halvings(-(-size // stem_stride(size)), most=depth)
        stages: list[nn.Module] = []
        before = channels
        for stage in range(depth):
            after = width * 2**stage
            if stage == 0:
                convolution = stem(channels, width, size)
            else:
                convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            pooling = [nn.MaxPool2d(2)] if stage < pooled else []
            stages += [convolution, *pooling, make_norm(norm, after), self.activation()]
            before = after
        self.features = nn.Sequential(*stages)
        self.head = nn.Linear(before * _HEAD_SIDE**2, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps: Tensor = self.features(images)
        if maps.shape[-2:] != (_HEAD_SIDE, _HEAD_SIDE):  # 28x28 needs none, and it would cost 3 % of a step
            maps = functional.adaptive_avg_pool2d(maps, _HEAD_SIDE)
        logits: Tensor = self.head(maps.flatten(1))
        return logits


class TanhConvNet(ConvNet):
    """A ConvNet whose activations are bounded, for DP-SGD (TSADP).

    Papernot et al., "Tempered sigmoid activations for deep learning with differential privacy" (AAAI 2021): of their
    family, tanh did best, because gradients of bounded activations grow less and lose less to the clip.
    """

    activation = nn.Tanh


class EvenConvNet(ConvNet):
    """A ConvNet that sees each image at mean 0 and deviation 1.

    Released images need not have the brightness and contrast of private ones, so a student should not go by them.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        deviation, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True)
        return super().forward((images - mean) / (deviation + _FLAT))
