"""What a pretrained network sees on an image, as one row whose mean over a class says how the class looks.

Harder et al., "Pre-trained Perceptual Features Improve Differentially Private Image Generation" (DP-MEPF, TMLR 2023),
match the means of such features, and of their squares, between private and generated images. Ours are a coarse picture,
the network's maps at several depths on coarse grids, and the mean of the deepest. The squares say how much the images
of a class differ from each other; means alone would be matched by one image.

Everything fixed comes from public pictures and published weights, and a row depends on its own image alone: so rows may
be clipped and summed over private images.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.models.features.base import Features
from veilset.models.features.code import Code

# Sides of the grids: of the picture, of the first maps, of deeper ones. Fine places are seen where colours are.
_PICTURE_SIDE, _FIRST_SIDE, _SIDE = 16, 8, 4
# Length of the squares' part beside that of the features, which is 1 for each depth.
_SQUARES = 0.5
_LEAST_LENGTH = 1e-4  # pictures that are nearly alike would stretch everything else
_AT_ONCE = 100


class PerceptualEmbedding(nn.Module):
    """Codes (b, code_size) of length 1, and rows (b, width) of length at most 1.

    Args:
        features: with maps at one or several depths.
        public: public pictures in [0, 1], (count, channels, height, width), more of them than `code_size`.
        code_size: length of the code, at most that of the deepest features.
    """

    def __init__(self, features: Features, public: Tensor, *, code_size: int) -> None:
        super().__init__()
        self.features = features
        with torch.no_grad():
            seen = [self._parts(part) for part in torch.split(public, _AT_ONCE)]
            parts = [torch.cat(part) for part in zip(*seen, strict=True)]
            means = [part.mean(dim=0) for part in parts]
            scales = [1 / _length(part - mean) for part, mean in zip(parts, means, strict=True)]
            points = [(part - mean) * scale for part, mean, scale in zip(parts, means, scales, strict=True)]
            squares = [point.square() for point in points]
            square_means = [square.mean(dim=0) for square in squares]
            square_scales = [
                _SQUARES / _length(square - mean) for square, mean in zip(squares, square_means, strict=True)
            ]
        self.widths = [len(mean) for mean in means]
        self.register_buffer("mean", torch.cat(means))
        self.register_buffer("scale", _repeated(scales, self.widths))
        self.register_buffer("square_mean", torch.cat(square_means))
        self.register_buffer("square_scale", _repeated(square_scales, self.widths))
        self.radius = (len(means) * (1 + _SQUARES**2)) ** 0.5  # of public pictures, their root mean square
        deep = torch.cat(points, dim=1)[:, -self._deep_width() :]
        self.code_size = min(code_size, *deep.shape)
        self.directions = Code(nn.Identity(), deep.shape[1], self.code_size)
        self.directions.learn_directions(deep.contiguous())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The codes and the rows; gradients flow to the images."""
        points = self._points(images)
        squares = (points.square() - self.get_buffer("square_mean")) * self.get_buffer("square_scale")
        rows = torch.cat([points, squares], dim=1) / self.radius
        lengths: Tensor = rows.norm(dim=1, keepdim=True)
        return self._code(points), rows / lengths.clamp_min(1.0)

    def code(self, images: Tensor) -> Tensor:
        """The codes alone."""
        return self._code(self._points(images))

    def centred(self, rows: Tensor) -> Tensor:
        """What is summed: the rows, which are around their public mean and cut already."""
        return rows

    def restored(self, means: Tensor) -> Tensor:
        """What generated images are drawn to: the mean rows, which generated images have in the same form."""
        return means

    def _parts(self, images: Tensor) -> list[Tensor]:
        *maps, deepest = self.features.maps(images)
        sides = [_FIRST_SIDE, *[_SIDE] * len(maps)]
        grids = [_on_grid(depth, side) for depth, side in zip(maps, sides, strict=False)]
        return [_on_grid(images, _PICTURE_SIDE), *grids, deepest.mean(dim=(2, 3))]

    def _points(self, images: Tensor) -> Tensor:
        return (torch.cat(self._parts(images), dim=1) - self.get_buffer("mean")) * self.get_buffer("scale")

    def _code(self, points: Tensor) -> Tensor:
        code: Tensor = self.directions(points[:, -self._deep_width() :])
        return code

    def _deep_width(self) -> int:
        """The last two parts: how things are made, and what they are."""
        return sum(self.widths[-2:])


def _on_grid(maps: Tensor, side: int) -> Tensor:
    height, width = (min(side, own) for own in maps.shape[2:])
    return functional.adaptive_avg_pool2d(maps, (height, width)).flatten(1)


def _length(rows: Tensor) -> float:
    """The root mean square length of rows."""
    return float(rows.square().sum(dim=1).mean().sqrt().clamp_min(_LEAST_LENGTH))


def _repeated(values: list[float], widths: list[int]) -> Tensor:
    return torch.cat([torch.full((width,), value) for value, width in zip(values, widths, strict=True)])
