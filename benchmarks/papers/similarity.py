"""How a release looks: FID to held-out real images, and how like its images are to their nearest private ones.

Privacy: reads private images, so its numbers are for the data holder and never part of a release.
"""

from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from papers.cells import Cell  # isort: skip
from papers.data import private_and_scored  # isort: skip
from papers.utility import made  # isort: skip

from veilset.core.randomness import numpy_generator
from veilset.evaluate.similarity.dissimilarity import nearest
from veilset.evaluate.similarity.features import extractor_named
from veilset.evaluate.similarity.fidelity import frechet_distance

_LOOKED_AT = 500  # images whose neighbours are looked for


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """FID as `value`; beside it the mean SSIM to the nearest private image, and the FID of the private ones."""
    release, _, scored, about = made(cell, seed, validate=validate)
    private, _ = private_and_scored(cell.private, cell.units, validate=validate)
    count = min(len(release), len(scored), len(private))
    extract = extractor_named("auto", private.shape[2], private.shape[0])
    rows = np.sort(numpy_generator(seed, "similarity").permutation(len(private))[:count])
    real, synthetic, of_private = (
        extract(images) for images in (scored.images[:count], release.images[:count], private.images[rows])
    )
    near = nearest(release.images[:_LOOKED_AT], synthetic[:_LOOKED_AT], private.images[rows], of_private)
    return {
        "metric": "fid",
        "value": round(frechet_distance(real, synthetic), 2),
        "fid_of_private": round(frechet_distance(real, of_private), 2),
        "nearest_ssim": round(float(near.likeness.mean()), 4),
        "extractor": extract.name,
        "compared": count,
        **about,
    }
