"""The README's picture: private images | what was released | how a student of the release does on real images.

    python benchmarks/strip.py

Nothing is measured here. The released images are the picture that imgsyn's benchmark drew of a release whose noise came
from the operating system, and the score is that of the same run, by its line of benchmarks/results. (merf's benchmark
seeds its noise, so its pictures are of no release with a guarantee.) The private images are MNIST's, which anyone may
show.
"""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from releases import REPOSITORY, load
from tables.cells import Cell
from veilset.core.files import write_whole
from veilset.core.records import Images
from veilset.evaluate.pictures import png_of, sample_grid

PICTURES = REPOSITORY / "docs" / "images"
COLUMNS, GAP, HEAD, PANEL, ZOOM = 10, 28, 44, 330, 2
INK, SOFT, TEAL = (30, 30, 30), (110, 110, 110), (0, 121, 107)
_TEST: dict[str, Any] = {"scored_on": "test", "epsilon": 1.0, "seed": 0, "settings": {}}
# Methods, their pictures, and the scores of the runs that drew them.
ROWS = (
    (
        "imgsyn",
        "imgsyn-mnist-from-fashion-mnist-eps1.png",
        Cell(
            results="imgsyn.jsonl",
            where={**_TEST, "private": "mnist", "date": "2026-11-17T11:01:17Z"},
            value="students.convnet.accuracy",
        ),
    ),
)


def _text(draw: ImageDraw.ImageDraw, place: tuple[int, int], words: str, size: int, ink: tuple[int, ...] = INK) -> None:
    draw.text(place, words, font=ImageFont.load_default(size), fill=ink)


def _panel(draw: ImageDraw.ImageDraw, left: int, top: int, score: float) -> None:
    """The score in large letters, with a bar."""
    _text(draw, (left, top + 30), f"{score:.1f} %", 76, TEAL)
    _text(draw, (left, top + 126), "of real test images right", 24)
    _text(draw, (left, top + 166), "A small network (convnet)", 20, SOFT)
    _text(draw, (left, top + 192), "that saw the release alone.", 20, SOFT)
    width = PANEL - 20
    draw.rectangle((left, top + 236, left + width, top + 254), fill=(225, 230, 230))
    draw.rectangle((left, top + 236, left + int(width * score / 100), top + 254), fill=TEAL)


def drawn(private: Images, rows: list[tuple[str, Images, float]]) -> Images:
    """The strip: one row for each release, beside the same private images."""
    height, width = private.shape[:2]
    canvas = Image.new("RGB", (2 * width + 3 * GAP + PANEL, len(rows) * (height + HEAD + GAP) - GAP), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (method, released, score) in enumerate(rows):
        top, second, third = number * (height + HEAD + GAP), width + GAP, 2 * (width + GAP)
        _text(draw, (0, top + 12), "private: never leaves", 20)
        _text(draw, (second, top + 12), f"released: {method}, epsilon 1", 20)
        _text(draw, (third, top + 12), "a student's score", 20)
        for left, images in ((0, private), (second, released)):
            canvas.paste(Image.fromarray(images[:, :, 0]), (left, top + HEAD))
        _panel(draw, third, top + HEAD, score)
    return np.asarray(canvas)


def main(out: Path = PICTURES / "strip.png") -> None:
    """Draw it."""
    train, _ = load("mnist", validate=False)
    rows = []
    for method, picture, cell in ROWS:
        ((_, score, _),) = cell.found()
        pixels = np.asarray(Image.open(PICTURES / picture).convert("L"))[::ZOOM, ::ZOOM, None]
        rows.append((method, pixels, score))
    private = sample_grid(train.read(np.arange(1000)), train.labels[:1000], COLUMNS, zoom=1)
    write_whole(out, png_of(drawn(private, rows)))


if __name__ == "__main__":
    main()
