"""Small pictures as inline SVG. Colours come from the page's style sheet, so they follow light and dark."""

from dataclasses import dataclass

from markupsafe import Markup, escape

_DOT, _STEP, _PER_ROW = 3.4, 10, 10


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row of a bar chart, all numbers as shares of the axis."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = "ours"
    shown: str = ""
    note: str = ""

    @property
    def picture(self) -> Markup:
        """The bar and its whisker; the numbers stand beside it as text, so it is hidden from readers of screens."""
        # Widths are shares of a box that is stretched to the column, so strokes must not scale with it.
        whisker = ""
        if self.low is not None and self.high is not None:
            low, high = _within(self.low), _within(self.high)
            line = 'class="whisker" vector-effect="non-scaling-stroke"'
            ends = "".join(f'<line {line} x1="{end:.2f}" x2="{end:.2f}" y1="3" y2="9"/>' for end in (low, high))
            whisker = f'<line {line} x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6"/>{ends}'
        return Markup(
            '<svg class="bar" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
            f'<rect class="track" width="100" height="12"/><rect class="fill {escape(self.kind)}" '
            f'width="{_within(self.value):.2f}" height="12"/>{whisker}</svg>'
        )


def guess_dots(right: int, subject: str) -> Markup:
    """100 guesses as dots: right by luck, right thanks to the release at most, wrong."""
    dots = []
    for place in range(100):
        kind = "luck" if place < 50 else "gain" if place < right else "wrong"
        x, y = _STEP * (place % _PER_ROW) + _STEP / 2, _STEP * (place // _PER_ROW) + _STEP / 2
        dots.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{_DOT}"/>')
    text = (
        f"One hundred dots, one for each guess whether {subject} was in the data. Fifty are right by tossing a coin, "
        f"at most {right - 50} more thanks to this release, and at least {100 - right} stay wrong."
    )
    return Markup(
        f'<svg class="dots" viewBox="0 0 100 100" role="img" aria-label="{escape(text)}">' + "".join(dots) + "</svg>"
    )


def _within(share: float) -> float:
    return 100 * min(1.0, max(0.0, share))
