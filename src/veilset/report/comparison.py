"""Tables and plots of a comparison, with published numbers beside ours and whether their epsilon holds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from veilset.report.plots import Point, Series, plot
from veilset.report.published import Published, published_for
from veilset.report.templates import style, template

Line = Mapping[str, Any]

HOLDS = {"yes": "its epsilon holds", "unchecked": "epsilon unchecked", "no": "its epsilon does NOT hold"}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One method on one dataset at one epsilon, over its seeds."""

    name: str
    dataset: str
    epsilon: float
    accuracies: tuple[float, ...]  # percent
    seconds: float
    peak_mb: float
    guarantee: str

    @property
    def mean(self) -> float:
        """The mean accuracy in percent."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 for one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    @property
    def shown(self) -> str:
        """Mean and spread, and how many seeds are behind them."""
        count = len(self.accuracies)
        return f"{self.mean:.1f} ± {self.spread:.1f} ({count})" if count > 1 else f"{self.mean:.1f} (1)"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One dataset and epsilon: our methods, and the best published numbers of each standing."""

    dataset: str
    epsilon: float
    ours: dict[str, Result]
    best: Mapping[str, Published]
    all_published: list[Published]


def rows_of(lines: Sequence[Line], published_names: Mapping[str, str]) -> list[Row]:
    """The table of a comparison; `published_names` maps our datasets to those of the published numbers."""
    groups: dict[tuple[str, float, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((str(line["dataset"]), float(line["epsilon"]), str(line["name"])), []).append(line)
    rows: dict[tuple[str, float], dict[str, Result]] = {}
    for (dataset, epsilon, name), group in groups.items():
        rows.setdefault((dataset, epsilon), {})[name] = Result(
            name=name,
            dataset=dataset,
            epsilon=epsilon,
            accuracies=tuple(100 * float(line["accuracy"]) for line in group),
            seconds=statistics.fmean(float(line["seconds"]) for line in group),
            peak_mb=max(float(line["peak_mb"]) for line in group),
            guarantee="dp" if all(line.get("guarantee") == "dp" for line in group) else "none",
        )
    table = []
    for (dataset, epsilon), ours in rows.items():
        known = published_for(published_names.get(dataset, dataset), epsilon)
        best: dict[str, Published] = {}
        for each in known:  # best first
            best.setdefault(each.holds, each)
        table.append(Row(dataset=dataset, epsilon=epsilon, ours=ours, best=best, all_published=known))
    return table


def markdown(title: str, rows: Sequence[Row], lines: Sequence[Line]) -> str:
    """The comparison as Markdown: accuracies, cost, and every published number."""
    names = _names(rows)
    parts = [f"# {title}", _told(lines), "## Accuracy on the real test set, percent: mean ± spread (seeds)"]
    parts.append(_table(["dataset", "epsilon", *names, *(f"best published, {text}" for text in HOLDS.values())], [
        [row.dataset, f"{row.epsilon:g}", *(row.ours[n].shown if n in row.ours else "" for n in names),
         *(_best(row, holds) for holds in HOLDS)]
        for row in rows
    ]))  # fmt: skip
    parts += ["## Cost of a release", _table(["dataset", "epsilon", "method", "seconds", "peak MB"], [
        [row.dataset, f"{row.epsilon:g}", result.name, f"{result.seconds:.0f}", f"{result.peak_mb:.0f}"]
        for row in rows for result in row.ours.values()
    ])]  # fmt: skip
    published = [(row, number) for row in rows for number in row.all_published]
    if published:
        parts += ["## Published at the same epsilon", _table(
            ["dataset", "epsilon", "method", "accuracy", "does its epsilon hold?", "source"],
            [[row.dataset, f"{row.epsilon:g}", each.method, f"{each.accuracy:.1f}", _standing(each), each.source]
             for row, each in published],
        )]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def html(title: str, rows: Sequence[Row], lines: Sequence[Line], plots: Mapping[str, str]) -> str:
    """The comparison as one self-contained page."""
    return template("comparison.html").render(
        style=style(),
        title=title,
        told=_told(lines),
        rows=rows,
        names=_names(rows),
        holds=HOLDS,
        best=_best,
        standing=_standing,
        plots=[Markup(picture) for picture in plots.values()],
    )


def plots_of(rows: Sequence[Row]) -> dict[str, str]:
    """File names and SVG texts of the plots, two for each dataset."""
    pictures = {}
    for dataset in dict.fromkeys(row.dataset for row in rows):
        mine = [row for row in rows if row.dataset == dataset]
        names = _names(mine)
        results = {name: [row.ours[name] for row in mine if name in row.ours] for name in names}
        published: dict[str, list[Point]] = {}
        for row in mine:
            for each in row.all_published:
                point = Point(x=row.epsilon, y=each.accuracy, note=f", {_standing(each)}, {each.source}")
                published.setdefault(each.method, []).append(point)
        over_epsilon = [
            Series(name=name, points=[Point(x=r.epsilon, y=r.mean, spread=r.spread) for r in found])
            for name, found in results.items()
        ]
        marks = [Series(name=name, points=points, joined=False) for name, points in published.items()]
        ticks = sorted({row.epsilon for row in mine})
        rings = "; rings are published numbers" if marks else ""
        pictures[f"{dataset}-epsilon.svg"] = plot(
            f"{dataset}: accuracy over epsilon", f"epsilon (log scale){rings}", [*over_epsilon, *marks], ticks=ticks
        )
        over_seconds = [
            Series(
                name=name,
                points=[
                    Point(x=max(r.seconds, 0.1), y=r.mean, spread=r.spread, note=f", epsilon {r.epsilon:g}")
                    for r in found
                ],
            )
            for name, found in results.items()
        ]
        pictures[f"{dataset}-seconds.svg"] = plot(
            f"{dataset}: accuracy over time", "seconds for one release (log scale)", over_seconds
        )
    return pictures


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.ours))


def _best(row: Row, holds: str) -> str:
    found = row.best.get(holds)
    return "" if found is None else f"{found.accuracy:.1f} ({found.method})"


def _standing(each: Published) -> str:
    return f"{each.holds}: {each.note}" if each.note else str(each.holds)


def _told(lines: Sequence[Line]) -> str:
    students = ", ".join(sorted({str(line.get("student")) for line in lines}))
    commits = ", ".join(sorted({str(line.get("commit")) for line in lines}))
    seeded = any(line.get("guarantee") != "dp" for line in lines)
    text = (
        f"Students ({students}) saw only the release and are scored on the real test set, last epoch, nothing chosen "
        f"by it. Measured at commit {commits}."
    )
    return text + (" Some runs have no guarantee (seeded noise or as published)." if seeded else "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
