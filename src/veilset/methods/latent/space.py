"""The coordinates in which latents are searched and summed: public, and standard normal for the generator's own images.

A latent w is straightened (models/generators/style.py), centred, turned to its principal directions and divided by
their deviations, all estimated from samples of the generator. There, a length means the same in every direction, the
generator's own population has mean 0 and covariance 1, and what is not estimated can be left at that.

Privacy: everything here is computed from the public generator and the seed.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from veilset.core.files import write_whole
from veilset.core.randomness import torch_generator
from veilset.models.features.code import principal_directions
from veilset.models.generators.style import LatentGenerator

_SAMPLES = 20_000
# Directions of less deviation than this share of the largest hardly change an image; they are not stretched further.
_LEAST_DEVIATION = 1e-3


@dataclass(frozen=True, kw_only=True)
class LatentSpace:
    """A generator and the public coordinates v of its latents."""

    generator: LatentGenerator
    centre: Tensor  # (d,)
    directions: Tensor  # (d, d), one in each column, the most variance first
    deviations: Tensor  # (d,)

    @classmethod
    def of(cls, generator: LatentGenerator, seed: int, kept: Path | None = None) -> "LatentSpace":
        """The coordinates by samples of the generator; with `kept`, those of that file, which is written if absent.

        A paid sum means nothing in other coordinates, and directions of equal variance turn with the last digit.
        """
        if kept is not None and kept.exists():
            stored = torch.load(kept, map_location=generator.w_average.device, weights_only=True)
            return cls(generator=generator, **stored)
        straight = generator.straighten(generator.draw(_SAMPLES, torch_generator(seed, "latent space")))
        centre = straight.mean(dim=0)
        variances, directions = principal_directions(straight - centre, generator.latent_size)
        deviations = variances.sqrt()
        deviations = deviations.clamp(min=_LEAST_DEVIATION * float(deviations[0]))
        numbers = {"centre": centre, "directions": directions, "deviations": deviations}
        if kept is not None:
            content = io.BytesIO()
            torch.save(numbers, content)
            write_whole(kept, content.getvalue())
        return cls(generator=generator, **numbers)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return len(self.centre)

    def coordinates(self, w: Tensor) -> Tensor:
        """v (b, d) of latents w (b, d)."""
        return (self.generator.straighten(w) - self.centre) @ self.directions / self.deviations

    def latents(self, v: Tensor) -> Tensor:
        """w of coordinates v; differentiable."""
        return self.generator.bend(v * self.deviations @ self.directions.T + self.centre)

    def images(self, v: Tensor) -> Tensor:
        """Images in [0, 1] (b, C, H, W); differentiable in v."""
        pictures: Tensor = self.generator(self.latents(v))
        return pictures

    def draw(self, count: int, coins: torch.Generator) -> Tensor:
        """Coordinates of the generator's own images."""
        return self.coordinates(self.generator.draw(count, coins))

    def stored(self, v: Tensor) -> Tensor:
        """8-bit images (b, C, H, W) on the CPU."""
        return self.generator.render(self.latents(v))
