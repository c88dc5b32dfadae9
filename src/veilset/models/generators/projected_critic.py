"""A critic that sees images through fixed pretrained features (Projected GAN, Sauer et al., NeurIPS 2021).

The maps of a published network at several depths are mixed by random weights that nobody trains: across channels, so
that no feature can be ignored, and across depths, from the deepest to the first. A small critic reads each of the mixed
maps. What is seen this way differs between real and generated images in many respects from the first step on, so that a
generator learns in an hour what takes days against a critic that learns to see by itself.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from veilset.models.features.pretrained import LiteFeatures

DEPTHS = 3
"""Of the maps that are read: a quarter, an eighth and a sixteenth of the side. Deeper ones have too few places."""
_MIXED = (32, 64, 128)  # channels after mixing
_LAST_SIDE = 4  # of the scores
_SLOPE = 0.2


class ProjectedCritic(nn.Module):
    """Scores of images in [0, 1]: for each depth one for every place of a coarse grid.

    Images of one batch see each other's spread, so real and generated ones are shown in batches of their own.

    Args:
        features: what it sees through; nothing of it is trained or stored.
        width: channels of the small critics' hidden maps.
    """

    def __init__(self, features: LiteFeatures, width: int = 64) -> None:
        super().__init__()
        self.features = features
        with torch.no_grad():
            shapes = [
                maps.shape for maps in features.first_maps(torch.zeros(1, 3, features.side, features.side), DEPTHS)
            ]
        for depth, shape in enumerate(shapes):
            self.register_buffer(f"channels_{depth}", _random(_MIXED[depth], shape[1]))
            if depth + 1 < DEPTHS:
                self.register_buffer(f"scales_{depth}", _random(_MIXED[depth], _MIXED[depth + 1]))
        self.critics = nn.ModuleList(
            _small_critic(channels + 1, width, shape[-1]) for channels, shape in zip(_MIXED, shapes, strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Scores (b, 1, h, w) by depth; gradients flow to the images."""
        return self.judge(self.project(images))

    def project(self, images: Tensor) -> list[Tensor]:
        """The mixed maps by depth."""
        maps = self.features.first_maps(images, DEPTHS)
        mixed = [functional.conv2d(part, self.get_buffer(f"channels_{depth}")) for depth, part in enumerate(maps)]
        for depth in reversed(range(DEPTHS - 1)):
            deeper = functional.conv2d(mixed[depth + 1], self.get_buffer(f"scales_{depth}"))
            mixed[depth] = mixed[depth] + functional.interpolate(deeper, mixed[depth].shape[2:], mode="bilinear")
        return mixed

    def judge(self, projected: list[Tensor]) -> list[Tensor]:
        """The scores of maps that are mixed already."""
        return [critic(_with_spread(maps)) for critic, maps in zip(self.critics, projected, strict=True)]


def hinge_of_critic(of_real: list[Tensor], of_generated: list[Tensor]) -> Tensor:
    """What the critic makes small: real images are to score above 1, generated ones below -1."""
    real = torch.stack([functional.relu(1 - scores).mean() for scores in of_real])
    generated = torch.stack([functional.relu(1 + scores).mean() for scores in of_generated])
    return real.sum() + generated.sum()


def hinge_of_generator(of_generated: list[Tensor]) -> Tensor:
    """What the generator makes small."""
    return -torch.stack([scores.mean() for scores in of_generated]).sum()


def _with_spread(maps: Tensor) -> Tensor:
    """One more map: how much the images of the batch differ, so that a generator of one image is found out."""
    spread: Tensor = (maps.var(dim=0, unbiased=False) + 1e-8).sqrt().mean()
    return torch.cat([maps, spread.expand(len(maps), 1, *maps.shape[2:])], dim=1)


def _random(after: int, before: int) -> Tensor:
    """A random 1x1 kernel that keeps the variance of what comes in."""
    kernel: Tensor = torch.randn(after, before, 1, 1) / before**0.5
    return kernel


def _groups(width: int) -> int:
    """Of the norms. A norm over the batch would hide from the critic what all generated images have in common."""
    return next(groups for groups in (8, 4, 2, 1) if width % groups == 0)


def _small_critic(channels: int, width: int, side: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    while side > _LAST_SIDE:
        layers += [
            spectral_norm(nn.Conv2d(channels, width, 4, 2, 1)),
            nn.GroupNorm(_groups(width), width),
            nn.LeakyReLU(_SLOPE),
        ]
        channels, side = width, side // 2
    layers += [
        spectral_norm(nn.Conv2d(channels, width, 3, 1, 1)),
        nn.GroupNorm(_groups(width), width),
        nn.LeakyReLU(_SLOPE),
    ]
    return nn.Sequential(*layers, spectral_norm(nn.Conv2d(width, 1, 3, 1, 1)))
