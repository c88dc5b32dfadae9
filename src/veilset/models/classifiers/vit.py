"""ViT-tiny (Touvron et al., DeiT, 2021) with fixed positions and an averaged output (Beyer et al., 2022).

Positions are sines and cosines of the patch's place, so one network takes any image size and nothing of it depends on
other records.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError

_DIMENSION = 192
_HEADS = 3
_SLOWEST = 10_000.0


def patch_side(size: int) -> int:
    """Pixels of a patch's side: 16 on large images as in the paper, else an eighth of the image."""
    return 16 if size >= 128 else max(2, (size + 4) // 8)


def grid_positions(rows: int, columns: int, dimension: int) -> Tensor:
    """(rows * columns, dimension) sines and cosines of each patch's row and column."""
    quarter = dimension // 4
    rates = torch.exp(-math.log(_SLOWEST) * torch.arange(quarter) / (quarter - 1))
    vertical, horizontal = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * rates for place in (vertical, horizontal)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


class Attention(nn.Module):
    """Self-attention over the patches of one image."""

    def __init__(self, dimension: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(dimension, 3 * dimension)
        self.output = nn.Linear(dimension, dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, patches, dimension), each mixed with those it attends to."""
        batch, patches, dimension = tokens.shape
        packed = self.queries_keys_values(tokens).reshape(batch, patches, 3, self.heads, -1)
        queries, keys, values = packed.permute(2, 0, 3, 1, 4)  # each (batch, heads, patches, dimension / heads)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, patches, dimension))
        return output


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a LayerNorm and beside a shortcut."""

    def __init__(self, dimension: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dimension)
        self.attention = Attention(dimension, heads)
        self.norm2 = nn.LayerNorm(dimension)
        self.perceptron = nn.Sequential(
            nn.Linear(dimension, 4 * dimension), nn.GELU(), nn.Linear(4 * dimension, dimension)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the next block."""
        tokens = tokens + self.attention(self.norm1(tokens))
        result: Tensor = tokens + self.perceptron(self.norm2(tokens))
        return result


class ViTTiny(nn.Module):
    """A transformer on patches: 12 blocks, 192 wide, 3 heads. Its norm is LayerNorm, which mixes no records."""

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group", depth: int = 12) -> None:
        super().__init__()
        if norm != "group":
            raise InputError(f"vit-tiny has LayerNorm, which works per record as norm=group does; got norm={norm!r}.")
        if depth < 1:
            raise InputError(f"Expected a depth of at least 1, got {depth}.")
        self.patch = patch_side(size)
        self.embedding = nn.Conv2d(channels, _DIMENSION, self.patch, stride=self.patch)
        self.blocks = nn.Sequential(*(Block(_DIMENSION, _HEADS) for _ in range(depth)))
        self.norm = nn.LayerNorm(_DIMENSION)
        self.head = nn.Linear(_DIMENSION, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        height, width = images.shape[-2:]
        # Sides that the patch does not divide are filled with zeros rather than cut.
        padded = functional.pad(images, (0, -width % self.patch, 0, -height % self.patch))
        maps: Tensor = self.embedding(padded)
        positions = grid_positions(maps.shape[2], maps.shape[3], _DIMENSION).to(maps)
        tokens = maps.flatten(2).transpose(1, 2) + positions
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return logits
