"""How near a release comes to private and public images: fidelity, diversity, nearest neighbours, and pictures."""

import base64
from typing import Any

import numpy as np

from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import numpy_generator
from veilset.core.records import Images, Labels, Records, Rows
from veilset.evaluate.pictures import beside, png_of
from veilset.evaluate.similarity.dissimilarity import dissimilarity, nearest
from veilset.evaluate.similarity.features import Extractor, Features
from veilset.evaluate.similarity.fidelity import FidelityScore, Reference, diversity, fidelity
from veilset.evaluate.utility.reference_scores import in_shape

_MOST_FEATURES = 5000
_MOST_NEIGHBOURS = 500
_GRID = 48


def likeness(
    images: Images,
    labels: Labels,
    extractor: Extractor,
    *,
    private: Records | None = None,
    public: Records | None = None,
    progress: Progress = SILENT,
) -> tuple[list[FidelityScore], list[dict[str, Any]]]:
    """The scores of synthetic images against each set that is given, and pictures of nearest neighbours.

    Privacy: what is compared with `private` reads it without noise and is marked so; it is for the custodian alone.
    """
    rows = _drawn(len(images))
    images, labels = images[rows], labels[rows]
    features = extractor(images)
    scores = [
        FidelityScore(name="diversity", higher_is_better=True, against="none", measured=diversity(features, labels))
    ]
    neighbours: dict[str, Images] = {}
    references: list[tuple[Reference, Records | None]] = [("private", private), ("public", public)]
    for name, records in references:
        if records is not None:
            progress.note(f"comparing with {name} images by {extractor.name}")
            found, neighbours[name] = _compared(name, records, extractor, images, features)
            scores += found
    return scores, _pictures(images[:_MOST_NEIGHBOURS], neighbours)


def _compared(
    name: Reference, records: Records, extractor: Extractor, images: Images, features: Features
) -> tuple[list[FidelityScore], Images]:
    """The scores against one set, and its nearest image to each of the first synthetic ones."""
    height, width, channels = images.shape[1:]
    others = in_shape(records, (height, width, channels), _drawn(len(records.labels)))
    other_features = extractor(others)
    found = nearest(images[:_MOST_NEIGHBOURS], features[:_MOST_NEIGHBOURS], others, other_features)
    return fidelity(other_features, features, name) + dissimilarity(found, name), others[found.rows]


def _pictures(images: Images, neighbours: dict[str, Images]) -> list[dict[str, Any]]:
    """Grids side by side, image by image: with private ones for the custodian, and without for everyone."""
    pictures = []
    sets = {"private": neighbours.get("private"), "synthetic": images, "public": neighbours.get("public")}
    for name, wanted in (
        ("nearest_internal", ("private", "synthetic", "public")),
        ("nearest_public", ("synthetic", "public")),
    ):
        kept = {key: sets[key] for key in wanted if sets[key] is not None}
        if len(kept) > 1 and (name == "nearest_public" or "private" in kept):
            picture = png_of(beside([part[:_GRID] for part in kept.values() if part is not None]))
            pictures.append(
                {
                    "name": name,
                    "columns": list(kept),
                    "caption": f"{' | '.join(kept)}: each synthetic image with its nearest in the other set",
                    "png_base64": base64.b64encode(picture).decode(),
                    "needs_private_data": "private" in kept,
                }
            )
    return pictures


def _drawn(count: int) -> Rows:
    """Rows to compare, by position: what is measured on private ones stays with the custodian."""
    return np.sort(numpy_generator(0, "evaluation/rows").permutation(count)[:_MOST_FEATURES])
