"""Several findings per image (evolve, imgsyn, latent, merf): rows of one sum, and what is read off it and released.

Each finding divides the images into two kinds, those that have it and those that lack it; F findings make 2F kinds, in
this order: has the first, ..., has the last, lacks the first, ..., lacks the last. An image is of F kinds at once. Its
row stands in a block of its own for all images and in the block of every finding that it has, all of it divided by the
root of the number of those blocks. Who lacks a finding is what all have less what its block has.

Privacy: unit as in the vault; relation add/remove-one; sensitivity that of the row, because the blocks of an image are
one vector as long as its row, and the session clips them as one; event that of the sum; assumes nothing else.
"""

import math

import numpy as np
import torch
from torch import Tensor

from veilset.core.records import Labels
from veilset.methods.shared.class_counts import sensible_counts

_LIKELY = 0.5


def in_all_blocks(rows: Tensor, findings: Tensor) -> Tensor:
    """Rows (b, d) and findings (b, F) of 0 and 1 as one vector (b, (1 + F) d) each, no longer than the row."""
    has = torch.cat([torch.ones_like(findings[:, :1]), findings], dim=1).to(rows)
    return (has[:, :, None] * (rows / has.sum(dim=1, keepdim=True).sqrt())[:, None, :]).flatten(1)


def sums_of_kinds(released: Tensor, findings: int) -> Tensor:
    """From a noisy sum ((1 + F) d,) of such vectors to the sums (2F, d) of the kinds."""
    blocks = released.reshape(1 + findings, -1)
    return torch.cat([blocks[1:], blocks[:1] - blocks[1:]])


def counts_of_kinds(noisy: Tensor, units: int) -> Tensor:
    """Noisy counts (2F,) of the kinds, none of them next to nothing. They are weighted as the rows are."""
    return sensible_counts(noisy, units, findings=True)


def shares_of_findings(counts: Tensor) -> Tensor:
    """The share of the images (F,) that have each finding."""
    has, lacks = counts.chunk(2)
    return has / (has + lacks)


def shares_of_kinds(counts: Tensor) -> Tensor:
    """How often to draw each kind (2F,): every finding alike, having and lacking it by its own share."""
    has = shares_of_findings(counts)
    return torch.cat([has, 1 - has]) / len(has)


def noise_of_kinds(kinds: int) -> Tensor:
    """The deviation of the noise on a kind's sums, in that of the release: lacking is the difference of two blocks."""
    return torch.tensor([1.0, math.sqrt(2)], dtype=torch.float64).repeat_interleave(kinds // 2)


def as_aims(kinds: Tensor, findings: int) -> Tensor:
    """What a generator is asked for, (b, F): 1 to have the finding of this kind, -1 to lack it, 0 for all others."""
    sign = torch.where(kinds < findings, 1.0, -1.0)
    return torch.nn.functional.one_hot(kinds % findings, findings) * sign[:, None]


def as_labels(found: Tensor) -> Labels:
    """Zeros and ones (b, F) of probabilities: a finding counts as seen from one half."""
    return (found.numpy() >= _LIKELY).astype(np.int64)


def has_and_lacks(found: Tensor) -> Tensor:
    """Probabilities (b, 2F) of the kinds from those of the findings (b, F)."""
    return torch.cat([found, 1 - found], dim=1)
