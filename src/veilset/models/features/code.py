"""A short code of fixed features, whose directions come from pictures of no one.

A private head pays for every weight with noise, so the thousands of features are first projected on the principal
directions of public pictures: drawn ones (data/procedural_images.py), and public images where there are any. Where
features come in parts (wavelets beside a pretrained network), public pictures bring each part to one length first.
The code depends on its own image alone and on nothing private.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError

# Directions of little public variance are stretched by this power of it: 0 is plain PCA, 1 whitens.
_WHITENING = 0.5
# Of the iteration: how many times more rows and numbers there must be, directions to spare, and rounds.
_MANY_MORE, _SPARE, _ITERATIONS = 4, 64, 3


class Code(nn.Module):
    """Features of `extractor` seen along public directions, scaled to length 1: images -> (b, directions).

    Privacy: a row depends on its own image and on public pictures only.
    """

    def __init__(self, extractor: nn.Module, features: int, directions: int) -> None:
        super().__init__()
        self.extractor, self.directions = extractor, directions
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("projection", torch.zeros(features, directions))

    def forward(self, images: Tensor) -> Tensor:
        """The code of each image; gradients flow to the images."""
        return functional.normalize(self.project(self.extractor(images)), dim=1)

    def project(self, features: Tensor) -> Tensor:
        """Features seen along the public directions, before they are brought to length 1."""
        projected: Tensor = (features - self.get_buffer("centre")) @ self.get_buffer("projection")
        return projected

    @torch.no_grad()
    def learn_directions(self, rows: Tensor) -> None:
        """Take centre and directions from the features (N, features) of public pictures, whose memory is used up."""
        if len(rows) <= self.directions:
            raise InputError(f"Expected more than {self.directions} public pictures, got {len(rows)}.")
        centre = rows.mean(dim=0)
        scales = _scales_of_parts(rows.sub_(centre), getattr(self.extractor, "parts", ()))
        variances, directions = principal_directions(rows if scales is None else rows.mul_(scales), self.directions)
        stretch = (variances / variances[0]).clamp_min(1e-6) ** (-_WHITENING / 2)
        self.get_buffer("centre").copy_(centre)
        projection = directions * stretch
        self.get_buffer("projection").copy_(projection if scales is None else scales[:, None] * projection)


def _scales_of_parts(rows: Tensor, parts: Sequence[int]) -> Tensor | None:
    """What each number (d,) of centred rows is multiplied by, so that all parts are of length 1 on average."""
    if len(parts) < 2:
        return None
    lengths = [part.square().sum(dim=1).mean().sqrt() for part in torch.split(rows, list(parts), dim=1)]
    return torch.cat([(1 / length.clamp_min(1e-6)).repeat(width) for length, width in zip(lengths, parts, strict=True)])


def principal_directions(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Variances (count,) and directions (d, count) of centred rows (N, d), by the smaller square matrix."""
    fewer_rows = rows.shape[0] < rows.shape[1]
    square = rows @ rows.T if fewer_rows else rows.T @ rows
    values, vectors = torch.linalg.eigh(square.double())
    values, vectors = values.flip(0)[:count].clamp_min(1e-12), vectors.flip(1)[:, :count].to(rows.dtype)
    variances = (values / len(rows)).to(rows.dtype)
    return variances, functional.normalize(rows.T @ vectors, dim=0) if fewer_rows else vectors


def leading_directions(rows: Tensor, count: int, coins: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same, by subspace iteration from random rows (Halko, Martinsson and Tropp 2011) where there are many more.

    The smaller square matrix of 8,000 rows takes minutes to take apart; a thousand of its directions take seconds.
    """
    if min(rows.shape) < _MANY_MORE * count:
        return principal_directions(rows, count)
    basis = torch.randn(rows.shape[1], count + _SPARE, generator=coins).to(rows)
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis))[0]
    within, turns = principal_directions(rows @ basis, count)
    return within, basis @ turns
