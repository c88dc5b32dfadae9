"""Images of a generator that stray from what it was drawn to (dfd and pate), for a student to ask its teacher about.

A student that saw only typical images of each class knows nothing of the ground between them, where real images of
different classes meet. Asking there costs nothing: generator and teacher are released. Three ways to stray: latents
farther out, pictures between two classes, and deformed pictures.
"""

import torch
from torch import Tensor
from torch.nn import functional

from veilset.models.generators.conditional import ConditionalGenerator
from veilset.training.augment import AugmentConfig, augment

# How far out latents are drawn, for images that do nothing else and for all other straying ones.
_FAR, _FARTHER = 1.2, 1.5
_DEFORMED = AugmentConfig(
    shift=0.12, rotation=20.0, scale=0.2, shear=0.2, erase=0.3, erase_area=0.3, contrast=0.5, brightness=0.15, noise=0.1
)


def straying_images(
    generator: ConditionalGenerator, classes: Tensor, off_distribution: float, coins: torch.Generator, device: str
) -> Tensor:
    """Images in [0, 1] of these classes, (b, C, H, W); the share `off_distribution` strays, a third in each way."""
    count = len(classes)
    # 0 is plain, 1 farther out, 2 between classes, 3 deformed.
    place = (torch.rand(count, generator=coins) - (1 - off_distribution)) / max(off_distribution, 1e-9)
    way = torch.ceil(place * 3).clamp(0, 3)
    reach = torch.tensor([1.0, _FARTHER, _FAR, _FAR])[way.long()]
    latents = reach[:, None] * torch.randn(count, generator.latent_size, generator=coins)
    weights = functional.one_hot(classes, generator.classes).float()
    other = functional.one_hot(torch.randint(generator.classes, (count,), generator=coins), generator.classes)
    share = torch.where(way == 2, torch.rand(count, generator=coins), 1.0)[:, None]
    mixed = share * weights + (1 - share) * other
    images: Tensor = generator(latents.to(device), mixed.to(device)).cpu()
    return torch.where((way == 3)[:, None, None, None], augment(images, _DEFORMED, coins), images)
