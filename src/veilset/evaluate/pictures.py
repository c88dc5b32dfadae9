"""Pictures for people: a grid of images, one row per class, and several sets side by side."""

from io import BytesIO
from pathlib import Path

import numpy as np

from veilset.core.files import write_whole
from veilset.core.records import Images, Labels

_GAP = 6


def sample_grid(images: Images, labels: Labels, columns: int = 10, zoom: int = 2) -> Images:
    """One picture (H, W, C) with up to `columns` images of each class in a row."""
    _, height, width, channels = images.shape
    classes = np.unique(labels)
    grid = np.full((len(classes) * height, columns * width, channels), 255, dtype=np.uint8)
    for row, label in enumerate(classes):
        for column, index in enumerate(np.flatnonzero(labels == label)[:columns]):
            grid[row * height : (row + 1) * height, column * width : (column + 1) * width] = images[index]
    return grid.repeat(zoom, axis=0).repeat(zoom, axis=1)


def beside(sets: list[Images], columns: int = 6, rows: int = 8, zoom: int = 2) -> Images:
    """Blocks of `rows` x `columns` images, one block per set, with white gaps between them."""
    height, width, channels = sets[0].shape[1:]
    blocks = []
    for images in sets:
        block = np.full((rows * height, columns * width, channels), 255, dtype=np.uint8)
        for place, image in enumerate(images[: rows * columns]):
            top, left = place // columns * height, place % columns * width
            block[top : top + height, left : left + width] = image
        blocks += [block, np.full((rows * height, _GAP, channels), 255, dtype=np.uint8)]
    return np.concatenate(blocks[:-1], axis=1).repeat(zoom, axis=0).repeat(zoom, axis=1)


def png_of(picture: Images) -> bytes:
    """A picture (H, W, C) as a PNG file."""
    from PIL import Image

    content = BytesIO()
    Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture).save(content, format="PNG", optimize=True)
    return content.getvalue()


def write_grid(path: Path, images: Images, labels: Labels) -> None:
    """Write the grid of a labelled set as a PNG."""
    write_whole(path, png_of(sample_grid(images, labels)))
