"""What the shard teachers of dfd and pate are asked about, and the head that is fitted to their noisy answers."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.files import write_whole
from veilset.core.randomness import torch_generator
from veilset.methods.base import Context
from veilset.methods.shared.shard_teachers import Head, fit_head
from veilset.models.features.embeddings import ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator

_AT_ONCE = 500
_KEPT = "data-free-queries.npy"
# Few labels, some of them wrong, need a stronger pull to zero than a whole shard does.
_DECAY_ON_ANSWERS = 3e-3
# An answer counts as much as this many images of which only the class is known that they were made for.
_ANSWER_WEIGHT = 3.0

FEWEST_QUERIES_MADE = 2000
"""Enough images that know their class for a linear head; the teachers are asked about some of them."""


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Codes (m, d) that may be asked, and the class (m,) that their images were made for, if any."""

    codes: Tensor
    asked_for: Tensor | None = None

    def head(self, asked: Tensor, found: Tensor, classes: int) -> Head:
        """A head fitted to the answers `found` for codes `asked`, and to the classes that images were made for.

        The latter are what the class statistics say: no answer is needed for it, and the fewer there are, the more it
        counts. Without such classes the answers stand alone.
        """
        targets = _ANSWER_WEIGHT * functional.one_hot(found, classes)
        if self.asked_for is None:
            return fit_head(asked, targets / _ANSWER_WEIGHT, decay=_DECAY_ON_ANSWERS)
        known = functional.one_hot(self.asked_for[:FEWEST_QUERIES_MADE], classes)
        codes = torch.cat([self.codes[:FEWEST_QUERIES_MADE], asked])
        return fit_head(codes, torch.cat([known, targets]), decay=_DECAY_ON_ANSWERS)

    def spread(self, count: int, coins: torch.Generator) -> Tensor:
        """`count` row numbers, from all asked classes in turn where they are known."""
        order = torch.randperm(len(self.codes), generator=coins)
        if self.asked_for is not None:
            own = self.asked_for[order]
            place = torch.zeros_like(own)
            for label in set(own.tolist()):
                place[own == label] = torch.arange(int((own == label).sum()))
            order = order[place.argsort(stable=True)]
        return order[:count]


@torch.no_grad()
def generated_queries(
    generator: ConditionalGenerator, embedding: ImageEmbedding, count: int, context: Context
) -> Queries:
    """Codes of images of the generator as it is, of all classes in turn; at least `FEWEST_QUERIES_MADE`.

    They are kept in the workspace: the answers that a resumed run finds there belong to these and to no others.
    """
    place = context.kept(_KEPT)
    classes = torch.arange(max(FEWEST_QUERIES_MADE, count)) % generator.classes
    if place is not None and place.exists():
        return Queries(codes=torch.from_numpy(np.load(place, allow_pickle=False)), asked_for=classes)
    coins = torch_generator(context.seed, "data-free queries")
    parts = []
    for part in torch.split(classes, _AT_ONCE):
        latents = torch.randn(len(part), generator.latent_size, generator=coins)
        pixels = generator(latents.to(context.device), part.to(context.device))
        parts.append(embedding.code((pixels * 255).round() / 255).cpu())
    codes = torch.cat(parts)
    if place is not None:
        _keep(codes, place)
    return Queries(codes=codes, asked_for=classes)


def _keep(codes: Tensor, place: Path) -> None:
    content = io.BytesIO()
    np.save(content, codes.numpy(), allow_pickle=False)
    write_whole(place, content.getvalue())
