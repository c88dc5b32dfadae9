"""Pictures for people: a grid of images, one row per class."""

from io import BytesIO
from pathlib import Path

import numpy as np

from veilset.core.files import write_whole
from veilset.core.records import Images, Labels


def sample_grid(images: Images, labels: Labels, columns: int = 10, zoom: int = 2) -> Images:
    """One picture (H, W, C) with up to `columns` images of each class in a row."""
    _, height, width, channels = images.shape
    classes = np.unique(labels)
    grid = np.full((len(classes) * height, columns * width, channels), 255, dtype=np.uint8)
    for row, label in enumerate(classes):
        for column, index in enumerate(np.flatnonzero(labels == label)[:columns]):
            grid[row * height : (row + 1) * height, column * width : (column + 1) * width] = images[index]
    return grid.repeat(zoom, axis=0).repeat(zoom, axis=1)


def write_grid(path: Path, images: Images, labels: Labels) -> None:
    """Write the grid as a PNG."""
    from PIL import Image

    grid = sample_grid(images, labels)
    content = BytesIO()
    Image.fromarray(grid[:, :, 0] if grid.shape[2] == 1 else grid).save(content, format="PNG", optimize=True)
    write_whole(path, content.getvalue())
