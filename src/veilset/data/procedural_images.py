"""Drawn pictures: strokes, shapes and clouds made by a program, for when there are no public images.

They stand in where a method needs images of no one: to choose a bandwidth, a scale or a projection. They come from a
random generator and nothing else, so what is computed from them costs no privacy.
"""

import math

import torch
from torch import Tensor

_MOST_PARTS = 4
_POINTS_ON_A_STROKE = 16


def drawn_patterns(count: int, size: int, channels: int, generator: torch.Generator) -> Tensor:
    """`count` pictures in [0, 1], (count, channels, size, size): a third strokes, a third shapes, the rest clouds.

    In colour, the light and the dark of a picture each get a random colour; three in ten keep a black background.
    """
    third = count // 3
    drawn = [_strokes(third, size, generator), _shapes(third, size, generator)] if third else []
    grey = torch.cat([*drawn, _clouds(count - 2 * third, size, generator)])[:, None]
    if channels == 1:
        return grey
    light = torch.rand(count, channels, 1, 1, generator=generator)
    dark = torch.rand(count, channels, 1, 1, generator=generator)
    dark = dark * (torch.rand(count, 1, 1, 1, generator=generator) < 0.7)
    return (grey * light + (1 - grey) * dark).clamp(0, 1)


def _plane(size: int) -> tuple[Tensor, Tensor]:
    """Row and column coordinates of the pixels, from -1 to 1."""
    axis = torch.linspace(-1, 1, size)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    return rows, columns


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(count, 1, 1, generator=generator)


def _parts(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(1, _MOST_PARTS + 1, (count, 1, 1), generator=generator)


def _strokes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """One to four quadratic curves drawn with a round pen."""
    rows, columns = _plane(size)
    parts = _parts(count, generator)
    time = torch.linspace(0, 1, _POINTS_ON_A_STROKE)[None, :, None]
    centre = (torch.rand(count, 1, 2, generator=generator) - 0.5) * 0.6
    nearest = torch.full((count, size, size), 9.0)  # squared distance to the ink
    for part in range(_MOST_PARTS):
        corners = (torch.rand(count, 3, 2, generator=generator) * 2 - 1) * 0.8 + centre
        start, bend, end = corners[:, :1], corners[:, 1:2], corners[:, 2:]
        curve = (1 - time) ** 2 * start + 2 * time * (1 - time) * bend + time**2 * end  # (count, points, 2)
        distance = torch.full_like(nearest, 9.0)
        for point in curve[..., None, None].unbind(1):  # (count, 2, 1, 1)
            distance = torch.minimum(distance, (columns - point[:, 0]) ** 2 + (rows - point[:, 1]) ** 2)
        nearest = torch.where(part < parts, torch.minimum(nearest, distance), nearest)
    pen = _uniform(count, 0.05, 0.2, generator)
    return torch.sigmoid((pen - nearest.sqrt()) * size)


def _shapes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """One to four overlapping ellipses and rounded boxes of their own grey, with a faint texture."""
    rows, columns = _plane(size)
    parts = _parts(count, generator)
    picture = torch.zeros(count, size, size)
    for part in range(_MOST_PARTS):
        x, y = columns - _uniform(count, -0.5, 0.5, generator), rows - _uniform(count, -0.5, 0.5, generator)
        angle = _uniform(count, 0, math.pi, generator)
        along = (x * angle.cos() + y * angle.sin()) / _uniform(count, 0.15, 0.85, generator)
        across = (y * angle.cos() - x * angle.sin()) / _uniform(count, 0.15, 0.85, generator)
        roundness = _uniform(count, 2, 8, generator)
        inside = torch.sigmoid(6 * (1 - along.abs() ** roundness - across.abs() ** roundness))
        shape = inside * _uniform(count, 0.3, 1, generator)
        picture = torch.where(part < parts, torch.maximum(picture, shape), picture)
    texture = 1 + _uniform(count, 0, 0.3, generator) * _fields(count, size, generator)
    return (picture * texture).clamp(0, 1)


def _clouds(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Random fields, from soft gradients to blotches with hard edges."""
    sharpness = _uniform(count, -0.5, 2.5, generator).exp()
    level = torch.randn(count, 1, 1, generator=generator)
    return torch.sigmoid(sharpness * (_fields(count, size, generator) - level))


def _fields(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Gaussian random fields of mean 0 and deviation 1 whose amplitude falls as frequency to the power -1 to -3."""
    frequency = torch.fft.fftfreq(size)
    radius = (frequency[:, None] ** 2 + frequency**2).sqrt().clamp_min(1 / size)
    noise = torch.fft.fft2(torch.randn(count, size, size, generator=generator))
    field: Tensor = torch.fft.ifft2(noise * torch.pow(radius, -_uniform(count, 1, 3, generator))).real
    field = field - field.mean(dim=(1, 2), keepdim=True)
    return field / field.std(dim=(1, 2), keepdim=True)
