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
from veilset.methods.shared.off_distribution import straying_images
from veilset.methods.shared.shard_teachers import Head, fit_head
from veilset.models.features.embeddings import ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.privacy.events import Event

_AT_ONCE = 500
_KEPT = "data-free-queries.npy"
# Few labels, some of them wrong, need a stronger pull to zero than a whole shard does.
_DECAY_ON_ANSWERS = 3e-3
# Enough images that know their class for a linear head.
_KNOWN = 2000


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Codes that may be asked, and codes of which the class is known without asking.

    Args:
        codes: (m, d), to be asked.
        asked_for: the class (m,) that each image was made for, if any.
        known: codes (n, d) of plain images of the generator, made for classes in turn; None without a generator.
    """

    codes: Tensor
    asked_for: Tensor | None = None
    known: Tensor | None = None

    def head(self, asked: Tensor, found: Tensor) -> Head:
        """A head fitted to the answers `found`, odds (m, K) for codes `asked`, and to what is known.

        The latter is what the class statistics say: no answer is needed for it, and the fewer there are, the more it
        counts. Without it the answers stand alone.
        """
        if self.known is None:
            return fit_head(asked, found, decay=_DECAY_ON_ANSWERS)
        classes = found.shape[1]
        made_for = functional.one_hot(torch.arange(len(self.known)) % classes, classes)
        return fit_head(torch.cat([self.known, asked]), torch.cat([made_for, found]), decay=_DECAY_ON_ANSWERS)

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


def odds_of_votes(counts: Tensor, event: Event) -> Tensor:
    """How likely each class is, (m, K), given noisy counts (m, K) of votes: post-processing.

    With m votes for the class that teachers mean and noise of deviation d on each count, the log-odds of two classes
    are m / d^2 times the difference of their counts. What m is follows from the counts: their mean square is that of
    the votes and K d^2 together.
    """
    variance = 2 * event.noise_multiplier**2
    meant = (counts.square().sum(dim=1).mean() - counts.shape[1] * variance).clamp_min(variance).sqrt()
    return (counts * meant / variance).softmax(dim=1).float()


@torch.no_grad()
def generated_queries(
    generator: ConditionalGenerator, embedding: ImageEmbedding, count: int, off_distribution: float, context: Context
) -> Queries:
    """Codes of images of the generator as it is, of all classes in turn: some to know, and `count` to ask.

    Of the latter a share strays on purpose: where images of two classes meet, an answer tells what the statistics do
    not. They are kept in the workspace: the answers that a resumed run finds there belong to these and to no others.
    """
    place = context.kept(_KEPT)
    classes = torch.arange(_KNOWN + count) % generator.classes
    if place is not None and place.exists():
        codes = torch.from_numpy(np.load(place, allow_pickle=False))
    else:
        coins = torch_generator(context.seed, "data-free queries")
        parts = []
        for made_for, stray in ((classes[:_KNOWN], 0.0), (classes[_KNOWN:], off_distribution)):
            for part in torch.split(made_for, _AT_ONCE):
                pixels = straying_images(generator, part, stray, coins, context.device)
                parts.append(embedding.code((pixels.to(context.device) * 255).round() / 255).cpu())
        codes = torch.cat(parts)
        if place is not None:
            _keep(codes, place)
    return Queries(codes=codes[_KNOWN:], asked_for=classes[_KNOWN:], known=codes[:_KNOWN])


def _keep(codes: Tensor, place: Path) -> None:
    content = io.BytesIO()
    np.save(content, codes.numpy(), allow_pickle=False)
    write_whole(place, content.getvalue())
