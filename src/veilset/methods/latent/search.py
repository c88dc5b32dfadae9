"""Find the latent of an image: an inversion network, and gradient descent from its answer (the paper's Section 4.1).

The network knows generated images only (inversion.py). The descent treats every image alone: the loss is a sum over
images, Adam works on each number by itself, every image starts from its own answer or from the same middle, and nothing
stops early. An image's path must not depend on its company or its place to the last bit, which a descent would amplify.
So batches are filled up to one size, and that size is one at which, on this machine, random images get the same bits
everywhere. So the whole search may be the row function of a Gaussian sum.

Privacy: `LatentSearch.__call__` is a function of one image and public numbers; it keeps and averages nothing.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.tensors import as_floats
from veilset.methods.latent.choices import DistanceName, SearchSettings
from veilset.methods.latent.distance import distance_named
from veilset.methods.latent.space import LatentSpace
from veilset.privacy.rows import filled
from veilset.training.settings import rate_share

_MOST_TOGETHER = 32  # images of one descent
_TRIED_STEPS = 10  # of a descent in a trial; a bit that moves does so in the first ones
_PUBLIC_SAMPLES = 2000
_AT_ONCE = 500


class LatentSearch:
    """From images to coordinates, each image alone."""

    def __init__(
        self,
        space: LatentSpace,
        network: nn.Module | None,
        settings: SearchSettings,
        distance: DistanceName = "wavelets",
    ) -> None:
        if settings.start == "network" and network is None:
            raise InputError("A search that starts from the inversion network needs one.")
        self.space, self.network, self.settings = space, network, settings
        height, width, channels = space.generator.shape
        self._distance = distance_named(distance, max(height, width), channels).to(space.centre.device)

    @property
    def batch(self) -> int:
        """How many images to search for at once: full descents, and few of them where one is long."""
        return _MOST_TOGETHER if self.settings.steps else 3 * _MOST_TOGETHER

    def __call__(self, images: Tensor) -> Tensor:
        """Coordinates (b, d) of 8-bit images (b, H, W, C), on the CPU.

        Privacy: row i depends on image i and public numbers alone.
        """
        pixels = as_floats(images, self.space.centre.device)
        steps = self.settings.steps
        return torch.cat([self._found(part, self.together, steps) for part in torch.split(pixels, self.together)]).cpu()

    @cached_property
    def together(self) -> int:
        """How many images are searched for together: the most at which no answer depends on its place or company.

        Kernels may treat the last rows of a matrix otherwise than the first, and which do depends on the processor. So
        it is tried here, once, on random images and in the first steps of a descent; a single image has no company.
        """
        shape = (_MOST_TOGETHER, *self.space.generator.shape)
        images = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        pixels = as_floats(images, self.space.centre.device)
        size = _MOST_TOGETHER
        while size > 1 and not self._is_alone(pixels[:size]):
            size //= 2
        return size

    def _is_alone(self, pixels: Tensor) -> bool:
        """Whether images of one batch are found to the same bits elsewhere in it, beside blanks, and at every place."""

        def found(batch: Tensor) -> Tensor:
            return self._found(batch, len(batch), min(self.settings.steps, _TRIED_STEPS))

        beside_blanks = pixels.clone()
        beside_blanks[::2] = 0
        answers = found(pixels)
        return (
            torch.equal(found(pixels.flip(0)).flip(0), answers)
            and torch.equal(found(beside_blanks)[1::2], answers[1::2])
            and torch.equal(found(pixels[:1].expand_as(pixels)), answers[:1].expand_as(answers))
        )

    def _found(self, pixels: Tensor, together: int, steps: int) -> Tensor:
        """Start and descent.

        The batch is filled up with blanks, in new memory of one layout (kernels are chosen by that, too), so that every
        image meets the same arithmetic.
        """
        whole = filled(pixels, together)
        with torch.no_grad():
            v: Tensor
            if self.settings.start == "average" or self.network is None:
                v = whole.new_zeros(together, self.space.size)
            else:
                v = self.network(whole)
        return (v if steps == 0 else self._descend(whole, v, steps))[: len(pixels)]

    def _descend(self, pixels: Tensor, start: Tensor, steps: int) -> Tensor:
        """Equation 2 by Adam."""
        with torch.no_grad():
            wanted = self._distance.features(pixels)
        v = start.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([v], lr=self.settings.learning_rate)
        with torch.enable_grad():
            for step in range(steps):
                for group in optimizer.param_groups:
                    group["lr"] = self.settings.learning_rate * rate_share(step, steps, "cosine")
                distance = self._distance(self._distance.features(self.space.images(v)), wanted)
                loss = (distance + self.settings.penalty * v.square().mean(dim=1)).sum()
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
    count = _PUBLIC_SAMPLES if search.settings.steps == 0 else max(256, 4 * space.size)
    if public is not None:
        require_shape(public, space.generator.shape)
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
