"""The picture of each method's idea: docs/images/ideas/NAME.svg, drawn from a few words.

    python scripts/website/ideas.py          # draws all of them again

Left of the line are private things. The line is noise: what crosses it is a noisy sum and is paid for. Right of it all
is post-processing, and the lower box is public from the start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images" / "ideas"
WIDTH, BOX, HEIGHT, ROW = 760, 150, 54, 84
LEFT, LINE, RIGHT = 16, 300, (348, 548)
INK, PRIVATE, FREE, PUBLIC = "#263238", "#fbe0dd", "#d9efe9", "#e8eaf6"


@dataclass(frozen=True)
class Idea:
    """Words of the boxes: what is private, what crosses the line, what follows from it, and what is public."""

    private: str
    crosses: str
    follows: str
    released: str
    public: str


IDEAS = {
    "imgsyn": Idea(
        "private images train a teacher", "noisy gradients (DP-SGD)", "teacher labels and shapes the images",
        "images of something else, soft labels", "public photographs",
    ),
    "merf": Idea(
        "random features of each image", "one noisy mean per class", "generator learns to match the means",
        "images that look alike", "drawn patterns fix the scales",
    ),
    "dfd": Idea(
        "private images train a teacher", "noisy gradients (DP-SGD)", "generator and student learn from the teacher",
        "generated images and a student", "no image needed",
    ),
    "pate": Idea(
        "many teachers on disjoint parts", "noisy votes", "student learns from the winning labels",
        "labelled images and a student", "images to vote on, or a generator",
    ),
    "dpgan": Idea(
        "a critic compares real and generated", "noisy gradients of the critic", "generator learns from the critic",
        "generated images", "random frequencies of the critic",
    ),
    "dpaf": Idea(
        "features of each image, first layer fixed", "noisy sums of features",
        "upper layers and generator learn from sums", "generated images", "a public first layer",
    ),
    "sanitized_gan": Idea(
        "one critic for each part of the data", "noisy answer of the critics", "generator follows the answers",
        "generated images", "codes of images, by formula",
    ),
    "latent": Idea(
        "place of each image in a latent space", "noisy mean and covariance", "draw new places",
        "images of the public generator", "a generator of public images",
    ),
    "pldk": Idea(
        "what random networks see of each class", "noisy class sums", "a few images learn to look alike to networks",
        "ten images per class and a student", "public images or noise to start from",
    ),
    "evolve": Idea(
        "each image votes for its nearest candidate", "noisy votes", "vary the winners and ask again",
        "candidates that survived", "a public generator or pool",
    ),
}  # fmt: skip


def _lines(words: str, most: int = 21) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(left: int, top: int, words: str, colour: str) -> Iterator[str]:
    yield (
        f'<rect x="{left}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="8" fill="{colour}" stroke="{INK}" '
        f'stroke-opacity=".35"/>'
    )
    yield from _text(left + BOX // 2, top + HEIGHT // 2, words)


def _text(middle: int, centre: int, words: str, most: int = 21) -> Iterator[str]:
    lines = _lines(words, most)
    for number, line in enumerate(lines):
        y = centre + 4 + 15 * number - 15 * (len(lines) - 1) // 2
        yield f'<text x="{middle}" y="{y}" text-anchor="middle">{escape(line)}</text>'


def _arrow(x1: int, y1: int, x2: int, y2: int) -> str:
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{INK}" fill="none" stroke-width="1.5" marker-end="url(#a)"/>'


def drawn(name: str, idea: Idea) -> str:
    """The picture as SVG."""
    top, below, height = 46, 46 + ROW, 46 + ROW + HEIGHT + 16
    middle = top + HEIGHT // 2
    said = f"{idea.private}; {idea.crosses} cross the line of noise; {idea.follows}; released: {idea.released}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}" role="img">',
        f"<title>The idea of {name}: {escape(said)}.</title>",
        '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff" rx="8"/>',
        f'<path d="M{LINE} 12V{height - 12}" stroke="#c62828" stroke-width="2" stroke-dasharray="5 4"/>',
        f'<text x="{LEFT}" y="26" font-weight="bold">private</text>',
        f'<text x="{LINE + 12}" y="26" font-weight="bold">free: nothing here reads private images</text>',
        *_box(LEFT, top, idea.private, PRIVATE),
        _arrow(LEFT + BOX, middle, RIGHT[0], middle),
        *_text((LEFT + BOX + LINE) // 2, middle - 26, idea.crosses, 18),
        *_box(RIGHT[0], top, idea.follows, FREE),
        _arrow(RIGHT[0] + BOX, middle, RIGHT[1], middle),
        *_box(RIGHT[1], top, idea.released, FREE),
        *_box(RIGHT[0], below, idea.public, PUBLIC),
        _arrow(RIGHT[0] + BOX // 2, below, RIGHT[0] + BOX // 2, top + HEIGHT),
        f'<text x="{RIGHT[0] + BOX + 12}" y="{below + HEIGHT // 2 + 4}" fill="#5c6bc0">public from the start</text>',
        f'<text x="{LINE - 8}" y="{height - 18}" text-anchor="end" fill="#c62828">clip, sum, add noise</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, idea in IDEAS.items():
        (FOLDER / f"{name}.svg").write_text(drawn(name, idea), encoding="utf-8")


if __name__ == "__main__":
    main()
