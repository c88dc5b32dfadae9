"""What condensation asks of private images: one sum over the classes, of embeddings or of gradients.

Each image goes through the one transformation of its round, by itself, and stands in the block of its own class.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import VeilsetError
from veilset.data.tensors import to_inputs
from veilset.dpsgd.clipping import ClippedGradients
from veilset.dpsgd.exact import block_sum
from veilset.dpsgd.passes import cross_entropy
from veilset.privacy.rows import in_fixed_batches
from veilset.privacy.session import ClippedSum
from veilset.training.augment import AugmentConfig, augment

EMBEDDING_PART, COUNT_PART = math.sqrt(0.9 - 1e-6), math.sqrt(0.1)
"""Parts of a row: its embedding, its count of one. A hair below 1 together, so that rounding cannot lengthen it."""

# Only what moves pixels about: it does the same to every image of a step without looking at any.
_ALIKE = AugmentConfig(erase=0.0, contrast=0.0, brightness=0.0, noise=0.0)
_EMBEDDED_AT_ONCE = 64


def class_rows(network: nn.Module, classes: int, seed: int) -> ClippedSum:
    """Sums (classes, d + 1) of embeddings of length at most one, each beside a part that counts.

    Privacy: unit one image; relation add/remove-one; sensitivity 1 in L2 over the whole sum, because a row is no longer
    than that and stands in one block; event one step of the condensation's; assumes that `network` treats every image
    alone.
    """

    def rows(images: Tensor, labels: Tensor) -> list[Tensor]:
        with torch.no_grad():
            found = in_fixed_batches(
                lambda part: unit_rows(network(alike(to_inputs(part), seed))), (images,), _EMBEDDED_AT_ONCE
            )
        found = torch.cat([EMBEDDING_PART * found, torch.full((len(found), 1), COUNT_PART)], dim=1)
        return [block_sum(found, labels, classes, 1.0)]

    return rows


def class_gradients(network: nn.Module, classes: int, clip_norm: float, seed: int) -> ClippedSum:
    """Sums (classes, weights) of gradients, each clipped and in the block of its class.

    Privacy: unit one image; relation add/remove-one; sensitivity `clip_norm` in L2 over the whole sum; event one step
    of the condensation's; assumes what `ClippedGradients` assumes, which it tries on random images first.
    """
    gradients = ClippedGradients(network, cross_entropy, clip_norm)

    def blocks(images: Tensor, labels: Tensor) -> list[Tensor]:
        inputs = in_fixed_batches(lambda part: alike(to_inputs(part), seed), (images,), _EMBEDDED_AT_ONCE)
        sums = [gradients.sum(inputs[labels == label], labels[labels == label]) for label in range(classes)]
        return [torch.stack([torch.cat([part.flatten() for part in block]) for block in sums])]

    return blocks


def unit_rows(found: Tensor) -> Tensor:
    """What a network without its head saw, as rows of length one; nothing, or nothing finite, stays zero."""
    return torch.nan_to_num(functional.normalize(found.flatten(1), dim=1, eps=1e-6), nan=0.0)


def alike(inputs: Tensor, seed: int) -> Tensor:
    """Every image (b, C, H, W) under one transformation, drawn from the seed: siamese augmentation."""
    if not len(inputs):
        return inputs
    one = inputs.reshape(1, -1, *inputs.shape[2:])
    return augment(one, _ALIKE, torch.Generator().manual_seed(seed)).reshape(inputs.shape)


def require_alone(network: nn.Module, shape: tuple[int, int, int]) -> None:
    """Refuse a network that mixes the images of a batch; tried on random ones."""
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(3)
    rows = class_rows(network, 3, seed=0)
    together = rows(images, labels)[0]
    alone = torch.stack([rows(images[k : k + 1], labels[k : k + 1])[0][k] for k in range(3)])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise VeilsetError("The network mixes the images of a batch, so a row bounds nothing. Use another network.")
