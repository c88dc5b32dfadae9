"""An eigen generator of PUBLIC images: their mean, their principal directions and where each of them lies."""

import numpy as np
import torch

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.tensors import as_floats
from veilset.methods.latent.generators.recipes import eigen_size
from veilset.models.features.code import leading_directions
from veilset.models.generators.eigen import EigenGenerator

_MOST_PICTURES = 8000  # kept in the generator, mirrored ones included
_MOST_NUMBERS = 10**8  # of the pictures together: 400 MB while they are looked at, fewer pictures of 224 pixels
_FEWEST_PICTURES = 16


def fit_eigen(
    public: Records, *, mirrored: bool = False, seed: int = 0, device: str = "cpu", progress: Progress = SILENT
) -> EigenGenerator:
    """The generator, in evaluation mode; of many public images some are chosen at random."""
    height, width, channels = public.shape
    if len(public.labels) < _FEWEST_PICTURES:
        raise InputError(f"Expected at least {_FEWEST_PICTURES} public images, got {len(public.labels)}.")
    coins = numpy_generator(seed, "eigen pictures")
    most = max(_FEWEST_PICTURES, min(_MOST_PICTURES, _MOST_NUMBERS // (height * width * channels)))
    count = min(len(public.labels), most // 2 if mirrored else most)
    rows = np.sort(coins.permutation(len(public.labels))[:count]).astype(np.int64)
    with progress.task("finding the principal directions of public images", 1) as task:
        pixels = as_floats(torch.from_numpy(public.read(rows)), device)
        pictures = torch.cat([pixels, pixels.flip(3)]) if mirrored else pixels
        # Noise picks a picture by its place, so places must mean nothing.
        flat = pictures[torch.from_numpy(coins.permutation(len(pictures)))].flatten(1)
        mean = flat.mean(dim=0)
        if not bool((flat != flat[0]).any()):
            raise InputError(
                "The public images are all the same, so they say nothing of what images can be. Use others."
            )
        count = min(eigen_size(public.shape), len(flat) - 1)
        variances, directions = leading_directions(flat - mean, count, torch_generator(seed, "eigen directions"))
        generator = EigenGenerator(height, channels, directions.shape[1], len(flat), width).to(device)
        generator.mean.copy_(mean)
        generator.directions.copy_(directions)
        generator.deviations.copy_(variances.sqrt())
        generator.codes.copy_((flat - mean) @ directions)
        generator.settle(torch_generator(seed, "eigen average"))
        task.advance()
    return generator.eval().requires_grad_(False)
