"""A small conditional generator: a latent vector and a class in, an image out.

It is made for methods in which every gradient step also pays for the features of the images, on a CPU: most of its
weights are in the first linear map, and the convolutions that follow are few, narrow and transposed. Nothing in it
mixes records, so an image depends on its own latent and class alone.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError

# Sides up to this are reached from size/4, larger ones from size/8: the linear map must not grow without bound.
_LARGEST_SIDE_OF_TWO_STAGES = 40

# The logits of the smoothed picture are multiplied by this, so that edges can stay sharp in spite of the smoothing.
_LOGIT_GAIN = 4.0


class ConditionalGenerator(nn.Module):
    """Images of one class from latent vectors.

    Args:
        size: side of the square image, 16 to 64 pixels.
        channels: colour channels of the image.
        classes: number of classes.
        latent_size: length of the latent vector, drawn from a standard normal.
        width: feature maps at the smallest resolution; halved at each stage. A multiple of 16.
    """

    def __init__(self, size: int, channels: int, classes: int, latent_size: int = 64, width: int = 64) -> None:
        super().__init__()
        if not 16 <= size <= 64:
            raise InputError(f"Expected a size of 16 to 64 pixels, got {size}. Resize the images.")
        if min(channels, classes, latent_size) < 1:
            raise InputError(
                f"Expected channels, classes and latent_size of at least 1, got {channels}, {classes}, {latent_size}."
            )
        if width < 16 or width % 16:
            raise InputError(f"Expected width to be a multiple of 16, got {width}.")
        self.size, self.channels, self.classes, self.latent_size, self.width = (
            size,
            channels,
            classes,
            latent_size,
            width,
        )
        stages = 2 if size <= _LARGEST_SIDE_OF_TWO_STAGES else 3
        self.start = math.ceil(size / 2**stages)
        widths = [width // 2**stage for stage in range(stages)]
        self.class_vectors = nn.Parameter(torch.randn(classes, latent_size))
        self.first = nn.Linear(2 * latent_size, width * self.start**2)
        self.modulations = nn.ModuleList(nn.Linear(2 * latent_size, 2 * count) for count in widths)
        self.stages = nn.ModuleList(
            nn.ConvTranspose2d(count, after, 4, stride=2, padding=1)
            for count, after in zip(widths, [*widths[1:], channels], strict=True)
        )
        for modulation in self.modulations:
            assert isinstance(modulation, nn.Linear)
            nn.init.normal_(modulation.weight, std=0.02)
            nn.init.zeros_(modulation.bias)
        binomial = torch.tensor([1.0, 2.0, 1.0]) / 4
        smoothing = (binomial[:, None] * binomial).expand(channels, 1, 3, 3).clone()
        self.register_buffer("smoothing", smoothing, persistent=False)

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images in [0, 1], (batch, channels, size, size).

        Args:
            latents: (batch, latent_size).
            classes: (batch,) class numbers, or (batch, classes) weights for a picture between classes.
        """
        vectors = self.class_vectors[classes] if classes.ndim == 1 else classes @ self.class_vectors
        code = torch.cat([latents, vectors], dim=1)
        maps = self.first(code).view(-1, self.width, self.start, self.start)
        maps = maps.contiguous(memory_format=torch.channels_last)  # the faster layout on a CPU
        for modulation, stage in zip(self.modulations, self.stages, strict=True):
            scale, shift = modulation(code)[:, :, None, None].chunk(2, dim=1)
            maps = stage(functional.relu(functional.group_norm(maps, 4) * (1 + scale) + shift))
        # Smoothing the logits removes the checkerboard of transposed convolutions, which features of a low resolution
        # cannot see and a classifier can.
        padded = functional.pad(maps, (1, 1, 1, 1), mode="replicate")
        logits = functional.conv2d(padded, self.get_buffer("smoothing"), groups=self.channels)
        margin = (logits.shape[-1] - self.size) // 2
        inside = slice(margin, margin + self.size)
        return torch.sigmoid(_LOGIT_GAIN * logits[:, :, inside, inside])
