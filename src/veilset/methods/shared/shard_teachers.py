"""Many teachers, one for each shard of the vault (dfd and pate).

A teacher is a linear head on the fixed code of an image (models/features/embeddings.py), fitted to its own shard
without noise. It never leaves the session: `Session.ensemble` holds it and gives out noisy sums. From those sums a
single head is fitted (queries.py), which is post-processing, and that head then guides generator and student.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.models.features.embeddings import ImageEmbedding

Head = tuple[Tensor, Tensor]
"""Weight (d, K) and bias (K,)."""

# Codes have length 1, so logits need weights of some length before a fit can be sure of anything.
_LOGIT_SCALE = 10.0
_FIT_STEPS = 60


def fit_head(codes: Tensor, targets: Tensor, *, decay: float = 1e-3) -> Head:
    """Multinomial regression of target probabilities (m, K) on codes (m, d), full-batch, the same every time."""
    weight = torch.zeros(codes.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    inputs = codes.float() * _LOGIT_SCALE
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=_FIT_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(inputs @ weight + bias, targets.float()) + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach() * _LOGIT_SCALE, bias.detach()


def shard_trainer(classes: int) -> Callable[[Tensor, Tensor], Head]:
    """The training callback of one shard; a class that the shard lacks gets few votes and is no error."""

    def train(codes: Tensor, labels: Tensor) -> Head:
        return fit_head(codes, functional.one_hot(labels, classes))

    return train


def scores(head: Head, codes: Tensor) -> Tensor:
    """Logits (m, K) of codes (m, d)."""
    return codes.float() @ head[0] + head[1]


class CodeClassifier(nn.Module):
    """Images to logits: the fixed code, then a head."""

    def __init__(self, embedding: ImageEmbedding, head: Head) -> None:
        super().__init__()
        self.embedding = embedding
        self.register_buffer("weight", head[0])
        self.register_buffer("bias", head[1])

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b, K) of images in [0, 1], (b, C, H, W)."""
        return self.embedding.code(images) @ self.get_buffer("weight") + self.get_buffer("bias")
