"""From the generator's own latents to those of the private population: prefer what fits, then move it.

The generator's own latents are not normal, and what is not normal about them makes its images good. So a sample starts
from one of them. Those likelier under the private Gaussian than under the public one are kept more often (rejection
sampling, tempered so that half of the draws still count), and an affine map of least movement brings what is kept to
the fitted mean and covariance. The better the choice, the less is left to move, and stretched latents are what spoils
images.

Privacy: post-processing of the noisy moments (moments.py), with the generator and public coins.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.methods.base import Fitted, ReleasedModel, Samples
from veilset.methods.latent.choices import Draws
from veilset.methods.latent.config import LatentSettings
from veilset.methods.latent.labelling import Head, Labels
from veilset.methods.latent.moments import positive, symmetric_root
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.methods.shared.findings import as_labels
from veilset.models.descriptions import described
from veilset.models.generators.eigen import SHOWS_PUBLIC, EigenGenerator
from veilset.models.generators.files import description_of, rebuild
from veilset.models.generators.views import behind, seen_by

_STILL_COUNT = 0.5  # of the draws, by their effective number
_MOST_WEIGHT = 4.0  # of a draw, against the usual one
_HALVINGS = 30
_AT_ONCE = 500
_JUDGED = 2000  # images by which a classifier learns how often to see each class


@dataclass(frozen=True, kw_only=True)
class ClassLatents:
    """A Gaussian of the first k coordinates for each class, or several side by side, and how draws come to it."""

    shares: Tensor  # (gaussians,)
    means: Tensor  # (gaussians, k)
    slopes: Tensor  # (gaussians, k): a draw v is kept with probability exp(slope v - v' curve v / 2 - offset)
    curves: Tensor  # (gaussians, k, k)
    offsets: Tensor  # (gaussians,)
    middles: Tensor  # (gaussians, k): the mean of what is kept
    maps: Tensor  # (gaussians, k, k): from their covariance to the fitted one
    tail_means: Tensor  # (gaussians, d - k), or (gaussians, 1) for all alike: of the coordinates after these
    tails: Tensor  # the same: stretch them

    @classmethod
    def of(
        cls,
        shares: Tensor,
        means: Tensor,
        covariances: Tensor,
        draws: Tensor | None = None,
        *,
        prefer: bool = False,
        tail_means: Tensor | None = None,
        tails: Tensor | None = None,
    ) -> "ClassLatents":
        """With `draws` (n, d) of the source that will be moved; without, the source is standard normal.

        Without `tail_means` and `tails`, coordinates that were not estimated stay as they are drawn.
        """
        one = torch.eye(means.shape[1], dtype=means.dtype)
        parts = []
        for mean, covariance in zip(means, map(positive, covariances), strict=True):
            slope, curve, offset = torch.zeros_like(mean), torch.zeros_like(one), torch.zeros_like(mean[0])
            middle, spread = torch.zeros_like(mean), one
            if draws is not None:
                v = draws[:, : len(mean)].to(means.dtype)
                if prefer:
                    precision = torch.linalg.inv(covariance)
                    strength, offset = _tempered(_preference(v, precision @ mean, precision - one))
                    slope, curve = strength * precision @ mean, strength * (precision - one)
                weights = _kept_share(_preference(v, slope, curve) - offset)
                weights = weights / weights.sum()
                middle = weights @ v
                spread = positive((v - middle).T * weights @ (v - middle))
            parts.append((mean, slope, curve, offset, middle, _least_movement(spread, covariance)))
        names = ("means", "slopes", "curves", "offsets", "middles", "maps")
        stacked = {name: torch.stack(part).float() for name, part in zip(names, zip(*parts, strict=True), strict=True)}
        tail_means = torch.zeros(len(shares), 1) if tail_means is None else tail_means
        tails = torch.ones(len(shares), 1) if tails is None else tails
        return cls(shares=shares.float(), tail_means=tail_means.float(), tails=tails.float(), **stacked)

    @property
    def size(self) -> int:
        """k: the coordinates after these keep the public distribution, moved and stretched to the private one."""
        return self.means.shape[1]

    def draw(
        self, source: Callable[[int], Tensor], chosen: Tensor, coins: torch.Generator, truncation: float = 1.0
    ) -> Tensor:
        """Coordinates (b, d) of the Gaussians `chosen` (b,) from the draws (n, d) that `source` makes."""
        counts = chosen.bincount(minlength=len(self.shares)).tolist()
        parts = [
            self.moved(self._kept(source, number, count, coins), number, truncation)
            for number, count in enumerate(counts)
            if count
        ]
        return torch.cat(parts)[chosen.argsort(stable=True).argsort()]

    def _kept(self, source: Callable[[int], Tensor], number: int, count: int, coins: torch.Generator) -> Tensor:
        """Draws that stand the choice of one Gaussian."""
        kept: list[Tensor] = []
        while count:
            pool = source(int(_MOST_WEIGHT) * count)
            wanted = _preference(pool[:, : self.size], self.slopes[number], self.curves[number])
            share = _kept_share(wanted - self.offsets[number])
            kept.append(pool[torch.rand(len(pool), generator=coins) < share][:count])
            count -= len(kept[-1])
        return torch.cat(kept)

    def moved(self, v: Tensor, number: int, truncation: float = 1.0) -> Tensor:
        """Kept draws (b, d) brought to the Gaussian; truncation pulls all coordinates in."""
        first = (v[:, : self.size] - self.middles[number]) @ self.maps[number].T
        rest = self.tails[number] * v[:, self.size :]
        return torch.cat([self.means[number] + truncation * first, self.tail_means[number] + truncation * rest], dim=1)


@dataclass(frozen=True, kw_only=True)
class FittedLatents(Fitted):
    """The generator's coordinates, the Gaussians in them, and what labels the images."""

    settings: LatentSettings
    space: LatentSpace
    search: LatentSearch
    latents: ClassLatents
    labels: Labels
    clip_norm: float
    drowned: tuple[str, ...]

    def sample(self, count: int, seed: int = 0) -> Samples:
        """5. Draw latents of each component, show their images, and label what is stored."""
        images, soft = [], []
        for pictures, answers in self._drawn(count, seed):
            images.append(pictures)
            soft.append(self.labels.probabilities(answers))
        found = torch.cat(soft).float()
        return Samples(
            images=np.ascontiguousarray(torch.cat(images).numpy()),
            labels=as_labels(found) if self.labels.findings else found.argmax(dim=1).numpy(),
            soft_labels=found.numpy(),
        )

    def with_classes_as_drawn(self, shares: Tensor, seed: int) -> "FittedLatents":
        """The same with a classifier whose classes are as frequent as they are drawn, (classes,), on average."""
        if not isinstance(self.labels, Head):
            return self
        answers = torch.cat([found for _, found in self._drawn(_JUDGED, seed)])
        return replace(self, labels=self.labels.with_shares(answers, shares))

    def _drawn(self, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Stored images (b, H, W, C), and the coordinates (b, d) that tell their class."""
        shares = self.latents.shares.double().numpy()
        drawn = numpy_generator(seed, "latent components").choice(len(shares), size=count, p=shares / shares.sum())
        coins = torch_generator(seed, "latent samples")
        draws = partial(source, self.space, self.settings.draws, coins=coins)
        for start in range(0, count, _AT_ONCE):
            chosen = torch.from_numpy(drawn[start : start + _AT_ONCE])
            v = self.latents.draw(draws, chosen, coins, self.settings.truncation)
            pictures = self.space.stored(v.to(self.space.centre.device)).permute(0, 2, 3, 1)
            # Labels were fitted to what the search finds, so they judge that; a descent finds about v itself.
            yield pictures, self.search(pictures) if self.search.settings.steps == 0 else v

    def warnings(self) -> list[str]:
        """Classes that noise hides; that the samples show public images, where the generator is made of them."""
        return [*self.drowned, *([SHOWS_PUBLIC] if isinstance(self.space.generator, EigenGenerator) else [])]

    def models(self) -> dict[str, ReleasedModel]:
        """The public generator with the private latent Gaussians; `rebuild_sampler` draws from them."""
        space, generator = self.space, behind(self.space.generator)
        weights = {f"generator.{name}": value for name, value in generator.state_dict().items()}
        weights |= {f"space.{name}": getattr(space, name) for name in ("centre", "directions", "deviations")}
        weights |= {f"latents.{name}": value for name, value in vars(self.latents).items()}
        description = described(
            "latent_sampler",
            generator=description_of(generator),
            latents=self.settings.latents,
            directions=self.latents.size,
            components=self.settings.components,
            draws=self.settings.draws,
            clip_norm=self.clip_norm,
        )
        return {"generator": ReleasedModel(weights=weights, description=description)}


def source(space: LatentSpace, draws: Draws, count: int, coins: torch.Generator) -> Tensor:
    """What samples are moved from: coordinates (count, d), normal ones or those of the generator's own images."""
    if draws == "gaussian":
        return torch.randn(count, space.size, generator=coins)
    return space.draw(count, coins).cpu()


def rebuild_sampler(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[LatentSpace, ClassLatents]:
    """The generator's coordinates and the Gaussians of a release; Gaussian i is of class i // components.

    Of F findings, Gaussian i is of images that have finding i, and F + i of images that lack it.

    `space.stored(latents.draw(source, chosen, coins))`, with a source of `space.draw` or, where the description says
    draws "gaussian", of normal rows.
    """

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

    try:
        generator = seen_by(rebuild(description["generator"], part("generator.")), description.get("latents", "w"))
        latents = part("latents.")
        one = torch.ones(len(latents["shares"]), 1)  # older releases have neither of these
        latents = {"tail_means": 0 * one, "tails": one} | latents
        return LatentSpace(generator=generator, **part("space.")), ClassLatents(**latents)
    except (KeyError, TypeError) as error:
        raise InputError(f"Not a release of latent: {type(error).__name__}: {error}") from error


def _preference(v: Tensor, slope: Tensor, curve: Tensor) -> Tensor:
    """Logarithms (b,) of how much rows v are preferred."""
    return v @ slope - 0.5 * (v @ curve * v).sum(dim=1)


def _kept_share(logarithms: Tensor) -> Tensor:
    """With which probabilities draws are kept."""
    return logarithms.clamp(max=0).exp()


def _tempered(preference: Tensor) -> tuple[float, Tensor]:
    """The largest power up to 1 with which so many of the draws still count, and the offset to it."""
    low, high = 0.0, 1.0

    def offset(power: float) -> Tensor:
        return (power * preference).logsumexp(dim=0) + math.log(_MOST_WEIGHT / len(preference))

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weights = _kept_share(middle * preference - offset(middle))
        count = float(weights.sum().square() / weights.square().sum())
        low, high = (middle, high) if count > _STILL_COUNT * len(preference) else (low, middle)
    return low, offset(low)


def _least_movement(before: Tensor, after: Tensor) -> Tensor:
    """The symmetric map between centred normals of these covariances: optimal transport (Olkin and Pukelsheim 1982)."""
    root = symmetric_root(before)
    inverse = torch.linalg.inv(root)
    movement: Tensor = inverse @ symmetric_root(root @ after @ root) @ inverse
    return movement
