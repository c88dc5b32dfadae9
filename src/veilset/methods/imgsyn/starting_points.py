"""Where imgsyn's images start, and the public pictures that fix the statistic's scales. None of them is private."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.core.randomness import derive_seed, numpy_generator
from veilset.data.tensors import as_floats
from veilset.methods.base import Context, Fitted
from veilset.methods.imgsyn.config import ImgsynSettings
from veilset.methods.shared.choices import Start, Variation
from veilset.methods.shared.starting_images import Batch, public_pictures, starting_images
from veilset.privacy.vault import Public, PublicFacts

# Public pictures that fix centres, scales and the bound of the statistic's rows.
_PICTURES, _AT_ONCE = 1000, 100


@dataclass(frozen=True, kw_only=True)
class StartingPoints:
    """Starting images: public ones, noise, drawn patterns, or those of a private generator."""

    settings: ImgsynSettings
    facts: PublicFacts
    public: Public | None
    look_alikes: Fitted | None
    context: Context

    def batches(self, count: int, seed: int, variation: Variation) -> Batch:
        """Batches of at least `count` images."""
        size, seed = self.settings.batch, derive_seed(seed, "imgsyn start")
        if self.look_alikes is not None:
            drawn = self.look_alikes.sample(math.ceil(count / size) * size, seed).images
            return lambda number, size: as_floats(torch.from_numpy(drawn[number * size : (number + 1) * size]))
        kind, blur = self._kind(), self.settings.blur
        return starting_images(kind, self.facts.shape, self.public, variation=variation, blur=blur, seed=seed)

    def pictures(self) -> Iterator[Tensor]:
        """Public pictures for centres, scales and the bound, or what stands in for them."""
        seed, shape, device = self.context.seed, self.facts.shape, self.context.device
        if self.public is not None:
            order = numpy_generator(seed, "imgsyn pictures").permutation(len(self.public.labels))[:_PICTURES]
            for start in range(0, len(order), _AT_ONCE):
                yield public_pictures(self.public, shape, order[start : start + _AT_ONCE]).to(device)
            return
        drawn = starting_images("drawn", shape, None, variation="none", blur=3, seed=derive_seed(seed, "pictures"))
        for number in range(_PICTURES // _AT_ONCE):
            yield drawn(number, _AT_ONCE).to(device)

    def _kind(self) -> Start:
        wanted = self.settings.start
        if wanted == "auto" or wanted == "merf":
            return "drawn" if self.public is None else "public"
        return wanted
