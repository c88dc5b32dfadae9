"""Find the latent of an image: an inversion network, and gradient descent from its answer (the paper's Section 4.1).

The network is trained on pairs (image, latent) that the generator makes, and stopped by other such pairs; no private
image plays a part. The descent treats every image alone: the loss is a sum over images, Adam works on each number by
itself, every image starts from its own answer or from the same middle, and nothing stops early. Batches are filled up
to one size, so that an image's path does not depend on its company to the last bit, which a descent would amplify. So
the whole search may be the row function of a Gaussian sum.

Privacy: `LatentSearch.__call__` is a function of one image and public numbers; it keeps and averages nothing.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.methods.latent.distance import DistanceName, distance_named
from veilset.methods.latent.space import LatentSpace
from veilset.models import SMALLEST_SIDE, build_network
from veilset.models.generators.eigen import EigenGenerator
from veilset.privacy.shapes import filled
from veilset.training.settings import rate_share

SearchName = Literal["ff", "opt", "opt_a", "opt_b", "average"]

_HELD_OUT = 512
_LOOK_EVERY = 100
_PATIENCE = 4
_TOGETHER = 32  # images of one descent
_PUBLIC_SAMPLES = 2000
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """One way to find latents: the paper's tuple (start, steps, rate, penalty).

    Args:
        start: "network" (the inversion network's answer) or "average" (the middle of the latents).
        steps: of descent.
        learning_rate: of Adam, in coordinates of deviation 1.
        penalty: weight of the mean square of the coordinates, against the distance per image.
    """

    start: Literal["network", "average"] = "network"
    steps: int = 0
    learning_rate: float = 0.1
    penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.start not in ("network", "average"):
            raise InputError(f"Expected start network or average, got {self.start!r}.")
        if self.steps < 0 or not self.learning_rate > 0 or self.penalty < 0:
            raise InputError(
                "Expected steps >= 0, learning_rate > 0 and penalty >= 0, "
                f"got {self.steps}, {self.learning_rate} and {self.penalty}."
            )


# FF and OPT are the paper's; it gives no numbers for its two penalties, so these are ours: a weak and a strong one.
SEARCHES: dict[SearchName, SearchConfig] = {
    "ff": SearchConfig(),
    "opt": SearchConfig(steps=500),
    "opt_a": SearchConfig(steps=100, penalty=0.02),
    "opt_b": SearchConfig(steps=100, penalty=0.1),
    "average": SearchConfig(start="average", steps=500, penalty=0.02),
}


@dataclass(frozen=True, kw_only=True)
class InversionConfig:
    """How the inversion network is trained.

    Args:
        steps: at most so many; training ends when held-out samples stop improving.
        batch: generated images of a step.
        learning_rate: its peak.
        width: of the network's first stage.
    """

    steps: int = 2000
    batch: int = 64
    learning_rate: float = 0.003
    width: int = 32

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.width) < 1 or not self.learning_rate > 0:
            raise InputError(
                "Expected steps, batch and width of at least 1 and learning_rate > 0, "
                f"got {self.steps}, {self.batch}, {self.width} and {self.learning_rate}."
            )


def train_inversion(
    space: LatentSpace,
    config: InversionConfig,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> nn.Module:
    """A network from images of the generator to their coordinates (the paper's Equation 1), its best held-out state.

    A generator that knows the way back is taken at its word, and nothing is trained.
    """
    generator = space.generator
    if isinstance(generator, EigenGenerator):
        return _Encoder(space, generator)
    device = space.centre.device
    side = generator.size
    if side < SMALLEST_SIDE:
        raise InputError(f"Expected images of at least {SMALLEST_SIDE} pixels a side, got {side}. Pass --size 32.")
    network = build_network(
        "convnet", shape=(side, side, generator.channels), classes=space.size, width=config.width, seed=seed
    ).to(device)
    if checkpoint is not None and checkpoint.exists():
        network.load_state_dict(torch.load(checkpoint, map_location=device, weights_only=True))
        return network.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=1e-3)
    held_out = space.draw(_HELD_OUT, torch_generator(seed, "inversion held out"))
    shown = space.stored(held_out).to(device).float() / 255
    best, kept, waited = float("inf"), network.state_dict(), 0
    with progress.task("training the inversion network", config.steps) as task:
        for step in range(config.steps):
            v = space.draw(config.batch, torch_generator(seed, f"inversion step {step}"))
            with torch.no_grad():
                images = space.images(v)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * rate_share(step, config.steps, "cosine")
            loss = functional.mse_loss(network(images), v)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            task.advance()
            if (step + 1) % _LOOK_EVERY and step + 1 < config.steps:
                continue
            error = _held_out_error(network, shown, held_out)
            if error < best:
                best, waited = error, 0
                kept = {name: value.detach().clone() for name, value in network.state_dict().items()}
            else:
                waited += 1
                if waited == _PATIENCE:
                    break
    network.load_state_dict(kept)
    if checkpoint is not None:
        content = io.BytesIO()
        torch.save(kept, content)
        write_whole(checkpoint, content.getvalue())
    return network.eval().requires_grad_(False)


class _Encoder(nn.Module):
    """The way back that a generator has itself, in coordinates."""

    def __init__(self, space: LatentSpace, generator: EigenGenerator) -> None:
        super().__init__()
        self.space, self.generator = space, generator

    def forward(self, images: Tensor) -> Tensor:
        return self.space.coordinates(self.generator.encode(images))


@torch.no_grad()
def _held_out_error(network: nn.Module, images: Tensor, v: Tensor) -> float:
    found = torch.cat([network(part) for part in torch.split(images, _TOGETHER * 4)])
    return float(functional.mse_loss(found, v))


class LatentSearch:
    """From images to coordinates, each image alone."""

    def __init__(
        self,
        space: LatentSpace,
        network: nn.Module | None,
        config: SearchConfig,
        distance: DistanceName = "wavelets",
    ) -> None:
        if config.start == "network" and network is None:
            raise InputError("A search that starts from the inversion network needs one.")
        self.space, self.network, self.config = space, network, config
        generator = space.generator
        self._distance = distance_named(distance, generator.size, generator.channels).to(space.centre.device)

    @property
    def batch(self) -> int:
        """How many images to search for at once: full descents, and few of them where one is long."""
        return _TOGETHER if self.config.steps else 3 * _TOGETHER

    def __call__(self, images: Tensor) -> Tensor:
        """Coordinates (b, d) of 8-bit images (b, H, W, C), on the CPU.

        Privacy: row i depends on image i and public numbers alone.
        """
        pixels = images.to(self.space.centre.device).permute(0, 3, 1, 2).float() / 255
        return torch.cat([self._found(part) for part in torch.split(pixels, _TOGETHER)]).cpu()

    def _found(self, pixels: Tensor) -> Tensor:
        """Start and descent.

        The batch is filled up with blanks, in new memory of one layout (kernels are chosen by that, too), so that every
        image meets the same arithmetic.
        """
        whole = filled(pixels, _TOGETHER)
        with torch.no_grad():
            v: Tensor
            if self.config.start == "average" or self.network is None:
                v = whole.new_zeros(_TOGETHER, self.space.size)
            else:
                v = self.network(whole)
        return (v if self.config.steps == 0 else self._descend(whole, v))[: len(pixels)]

    def _descend(self, pixels: Tensor, start: Tensor) -> Tensor:
        """Equation 2 by Adam."""
        with torch.no_grad():
            wanted = self._distance.features(pixels)
        v = start.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([v], lr=self.config.learning_rate)
        with torch.enable_grad():
            for step in range(self.config.steps):
                for group in optimizer.param_groups:
                    group["lr"] = self.config.learning_rate * rate_share(step, self.config.steps, "cosine")
                distance = self._distance(self._distance.features(self.space.images(v)), wanted)
                loss = (distance + self.config.penalty * v.square().mean(dim=1)).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        return v.detach()


def public_answers(search: LatentSearch, public: Records | None, seed: int) -> Tensor:
    """What the search finds for public images, or for the generator's own where there are none.

    The network has seen generated images only, and answers more timidly where an image is not quite one of them.
    Public images show by how much; the generator was made to have their population at mean 0 and covariance 1.
    """
    space = search.space
    count = _PUBLIC_SAMPLES if search.config.steps == 0 else max(256, 4 * space.size)
    if public is not None:
        require_shape(public, (space.generator.size, space.generator.size, space.generator.channels))
        order = numpy_generator(seed, "latent public images").permutation(len(public.labels))
        pictures = torch.from_numpy(public.read(np.sort(order[:count]).astype(np.int64)))
    if public is None or len(pictures) < 2 * space.size:
        v = space.draw(count, torch_generator(seed, "latent public samples"))
        pictures = space.stored(v).permute(0, 2, 3, 1)
    return torch.cat([search(part) for part in torch.split(pictures, _AT_ONCE)])


def require_shape(public: Records, shape: tuple[int, int, int]) -> None:
    """Refuse public images of another shape."""
    if tuple(public.shape) != tuple(shape):
        raise InputError(f"Expected public images of {tuple(shape)}, got {public.shape}. Pass --size.")


def search_named(name: str) -> SearchConfig:
    """The search called `name` in `SEARCHES`."""
    if name not in get_args(SearchName):
        raise InputError(f"Expected search to be one of {', '.join(SEARCHES)}, got {name!r}.")
    return SEARCHES[name]  # type: ignore[index]
