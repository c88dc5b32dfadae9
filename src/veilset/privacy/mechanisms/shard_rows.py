"""The rows of shards, laid out so that any of them can be drawn by class in tensors of a public shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ShardRows:
    """The rows of all shards in one list, shard by shard and within it class by class.

    Privacy: how long the list is, and where a shard lies in it, depends on private sizes. What `drawn` returns does
    not: its shape is public, and the numbers of a shard are its own rows or zeros.
    """

    rows: Tensor  # (n + 1, d), the last of zeros
    starts: Tensor  # (shards, classes)
    counts: Tensor  # (shards, classes)

    @classmethod
    def of(cls, shards: Sequence[tuple[Tensor, Tensor]], *, classes: int, width: int) -> "ShardRows":
        """From rows (m, d) and labels (m,) of each shard, whose order is kept within a class."""
        parts = [rows[labels.argsort(stable=True)] for rows, labels in shards]
        counts = torch.stack([torch.bincount(labels, minlength=classes) for _, labels in shards])
        ends = counts.flatten().cumsum(0)
        return cls(
            rows=torch.cat([*parts, torch.zeros(1, width)]),
            starts=(ends - counts.flatten()).view_as(counts),
            counts=counts,
        )

    def drawn(self, asked: slice, wanted: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
        """One row (s, b, d) of each class `wanted` (b,) for each shard `asked`, and (s, b) whether it has that class.

        `coins` (s, b), numbers in [0, 1), say which of the class; a shard without it gives zeros.
        """
        counts = self.counts[asked][:, wanted]
        places = self.starts[asked][:, wanted] + torch.minimum((coins * counts).long(), counts - 1)
        known = counts > 0
        return self.rows[torch.where(known, places, len(self.rows) - 1)], known

    def held(self, asked: slice) -> Tensor:
        """(s, classes): which classes the shards have."""
        return self.counts[asked] > 0
