"""Public images as queries of PATE."""

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Records
from veilset.data.tensors import as_floats
from veilset.methods.base import Context
from veilset.methods.shared.queries import Queries
from veilset.models.features.embeddings import ImageEmbedding
from veilset.privacy.vault import PublicFacts

_MOST_PUBLIC = 12_000


def public_queries(public: Records, facts: PublicFacts, embedding: ImageEmbedding, context: Context) -> Queries:
    """Codes of public images; their own labels are not looked at."""
    if tuple(public.shape) != tuple(facts.shape):
        raise InputError(f"Expected public images of {facts.shape}, got {public.shape}. Pass --size.")
    order = numpy_generator(context.seed, "pate public").permutation(len(public.labels))
    rows = np.sort(order[:_MOST_PUBLIC]).astype(np.int64)
    with torch.no_grad():
        parts = [
            embedding.code(as_floats(torch.from_numpy(public.read(part)), context.device)).cpu()
            for part in np.array_split(rows, max(1, len(rows) // 500))
        ]
    return Queries(codes=torch.cat(parts))


def require_all_classes(labels: Tensor, names: tuple[str, ...]) -> None:
    """Refuse answers among which a class is missing: nothing could be learned of it."""
    missing = [name for number, name in enumerate(names) if not bool((labels == number).any())]
    if missing:
        raise VeilsetError(
            f"The teachers' noisy answers to {len(labels)} queries never name {', '.join(missing)}, so no student can "
            "learn it. What was spent stays spent. Set other teachers, more queries or a larger epsilon."
        )
