"""Two plots of a comparison as SVG files of their own: accuracy over epsilon, and over seconds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import escape

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 150, 40, 56
# Told apart by colour, marker and the label at the line's end; the colours are Okabe and Ito's, for all eyes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8a6d00", "#56677a", "#882255", "#117733")
_STYLE = (
    "text{font:13px system-ui,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif;fill:#1b2430}"
    ".t{font-size:15px;font-weight:600}.g{stroke:#dcd9d0}.p{fill:none;stroke:#7a828d}.b{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e9e6df}.g{stroke:#303842}.b{fill:#1a2027}.p{stroke:#a9b1bb}}"
)
_LABEL_GAP = 16


Place = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value with its spread; `note` is told to who hovers or listens."""

    x: float
    y: float
    spread: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one method; `joined` points are connected, others are marks of published numbers."""

    name: str
    points: Sequence[Point]
    joined: bool = True


def plot(title: str, x_title: str, series: Sequence[Series], *, ticks: Sequence[float] = ()) -> str:
    """A plot with a logarithmic x axis and accuracy in percent on the y axis."""
    points = [point for each in series for point in each.points]
    xs, ys = [point.x for point in points], [point.y for point in points]
    low_x, high_x = min(xs) / 1.35, max(xs) * 1.35
    low_y, high_y = _rounded(min(ys), max(ys))

    def place_x(value: float) -> float:
        share = math.log(value / low_x) / math.log(high_x / low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def place_y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_frame(title, x_title, ticks or _log_ticks(low_x, high_x), place_x, place_y, low_y, high_y)]
    labels = []
    ours = [each for each in series if each.joined]
    for number, each in enumerate(ours):
        colour = _COLOURS[number % len(_COLOURS)]
        ordered = sorted(each.points, key=lambda point: point.x)
        path = " ".join(f"{place_x(p.x):.1f},{place_y(p.y):.1f}" for p in ordered)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [_mark(point, place_x(point.x), place_y, colour) for point in ordered]
        labels.append((place_y(ordered[-1].y), each.name, colour))
    for each in series:
        if not each.joined:
            parts += [
                f'<circle class="p" cx="{place_x(p.x):.1f}" cy="{place_y(p.y):.1f}" r="3.5">'
                f"<title>{escape(each.name)} (published) {p.y:.1f} %{escape(p.note)}</title></circle>"
                for p in each.points
            ]
    parts += _labels(labels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(_told(title, ours))}"><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def _mark(point: Point, x: float, place_y: Place, colour: str) -> str:
    y, up, down = place_y(point.y), place_y(point.y + point.spread), place_y(point.y - point.spread)
    whisker = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up:.1f}" y2="{down:.1f}" stroke="{colour}"/>' if point.spread else ""
    )
    told = f"<title>{point.y:.1f} %{escape(point.note)}</title>"
    return f'{whisker}<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">{told}</circle>'


def _frame(
    title: str, x_title: str, ticks: Sequence[float], place_x: Place, place_y: Place, low: float, high: float
) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<rect class="b" width="{_WIDTH}" height="{_HEIGHT}"/><text class="t" x="16" y="24">{escape(title)}</text>'
    ]
    step = (high - low) / 4
    for value in (low + step * number for number in range(5)):
        y = place_y(value)
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g} %</text>')
    for value in ticks:
        x = place_x(value)
        parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(x_title)}</text>')
    return "".join(parts)


def _labels(labels: list[tuple[float, str, str]]) -> list[str]:
    """Names at the lines' ends, moved apart where they would overlap."""
    parts, last = [], -math.inf
    for y, name, colour in sorted(labels):
        last = max(y, last + _LABEL_GAP)
        x = _WIDTH - _RIGHT + 12
        parts.append(f'<circle cx="{x}" cy="{last:.1f}" r="4.5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="{last + 4:.1f}">{escape(name)}</text>')
    return parts


def _rounded(low: float, high: float) -> tuple[float, float]:
    """An axis of four equal, round steps that holds the values."""
    for step in (0.5, 1, 2, 5, 10, 15, 20, 25):
        start = math.floor((low - 0.1 * (high - low) - 0.2) / step) * step
        if start + 4 * step >= high + 0.1 * (high - low) + 0.2:
            return max(0.0, start), max(0.0, start) + 4 * step
    return 0.0, 100.0


def _log_ticks(low: float, high: float) -> list[float]:
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digit in (1, 2, 5)
    ]
    return [tick for tick in ticks if low <= tick <= high]


def _told(title: str, series: Sequence[Series]) -> str:
    lines = [
        f"{each.name}: " + ", ".join(f"{point.y:.1f} % at {point.x:g}" for point in each.points) for each in series
    ]
    return f"{title}. " + "; ".join(lines)
