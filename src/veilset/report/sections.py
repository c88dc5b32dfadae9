"""From measured numbers to the rows that the page shows."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilset.evaluate.pictures import png_of
from veilset.release.format import Release
from veilset.report.charts import Bar
from veilset.report.inputs import Content, Inputs, interval, number, parts

_MOST_CLASSES = 20
_STRIP = 10

_FIDELITY = {
    "fid": ("FID", "distance of the two sets as Gaussians in feature space"),
    "kid": ("KID", "distance of the two sets by a kernel; 0 means the same distribution"),
    "precision": ("Precision", "synthetic images that look like some image of the set"),
    "recall": ("Recall", "images of the set that look like some synthetic image"),
    "density": ("Density", "how crowded the places are where synthetic images lie"),
    "coverage": ("Coverage", "images of the set with a synthetic neighbour"),
    "diversity": ("Diversity", "mean distance of two synthetic images of one class"),
    "nearest_distance": ("Distance to the nearest image", "in feature space, on average"),
    "nearest_ssim": ("Likeness to the nearest image", "SSIM on average: 1 is a copy"),
    "nearest_ssim_p99": ("Likeness, most alike hundredth", "SSIM that one image in a hundred exceeds"),
}


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class of the release: a strip of samples and its share."""

    name: str
    strip: str
    bar: Bar


def class_rows(release: Release) -> tuple[list[ClassRow], int]:
    """Strips of samples and class balance, and how many classes were left out for space."""
    names = release.certificate.facts.class_names
    several = release.labels.ndim == 2
    counts = release.labels.sum(axis=0) if several else np.bincount(release.labels, minlength=len(names))
    largest = max(1, int(counts.max()))
    rows = []
    for label in range(min(len(names), _MOST_CLASSES)):
        mine = np.flatnonzero(release.labels[:, label] if several else release.labels == label)[:_STRIP]
        strip = ""
        if len(mine):
            picture = np.concatenate([release.images[row] for row in mine], axis=1)
            strip = data_uri(png_of(picture))
        share = counts[label] / len(release)
        bar = Bar(
            label=names[label], value=counts[label] / largest, shown=f"{counts[label]:,}", note=f"{100 * share:.1f} %"
        )
        rows.append(ClassRow(name=names[label], strip=strip, bar=bar))
    return rows, max(0, len(names) - _MOST_CLASSES)


def utility_bars(inputs: Inputs, *, findings: bool = False) -> list[Bar]:
    """Students of the release first, then the reference scores, each with its interval; paid numbers lead.

    The score is the accuracy; of several findings it is the mean AUC, because rare findings make a guess look right.
    """
    if findings:
        return _finding_bars(inputs)
    bars = []
    for evaluation in inputs.evaluations:
        paid = evaluation.get("paid")
        if isinstance(paid, dict):
            bars += _accuracy_bar(paid, f"{paid.get('student', 'a student')}, counted with noise", "paid", "interval")
    for evaluation in inputs.evaluations:
        students = parts([evaluation], "students") or ([evaluation] if "student" in evaluation else [])
        for student in students:
            bars += _accuracy_bar(student, f"{student.get('student', 'a student')} trained on the release", "ours")
    for mark in parts(inputs.evaluations, "reference_scores"):
        kind = "ceiling" if mark.get("name") == "ceiling" else "reference"
        bars += _accuracy_bar(mark, str(mark.get("title") or mark.get("name") or "a reference"), kind)
    return bars


def _finding_bars(inputs: Inputs) -> list[Bar]:
    bars = []
    for student in parts(inputs.evaluations, "students"):
        bars += _area_bar(student, f"{student.get('student', 'a student')} trained on the release", "ours")
    for mark in parts(inputs.evaluations, "reference_scores"):
        kind = "ceiling" if mark.get("name") == "ceiling" else "reference"
        bars += _area_bar(mark, str(mark.get("title") or mark.get("name") or "a reference"), kind)
    return bars


def _area_bar(content: Content, label: str, kind: str = "", note: str = "") -> list[Bar]:
    value, ends = number(content, "auc"), interval(content, "auc_interval")
    low, high = ends or (None, None)
    if value is None:
        return []
    return [Bar(label=label, value=value, low=low, high=high, kind=kind, shown=f"{value:.3f}", note=note)]


def _accuracy_bar(content: Content, label: str, kind: str, name: str = "accuracy_interval") -> list[Bar]:
    value = number(content, "accuracy")
    if value is None:
        return []
    ends = interval(content, name)
    seeds = content.get("seeds")
    spread = number(content, "accuracy_std")
    several = isinstance(seeds, list) and len(seeds) > 1 and spread is not None
    source = content.get("source")
    notes = [f"{len(seeds)} seeds, spread {100 * spread:.1f}"] if several and seeds and spread is not None else []
    if kind == "paid":
        cost = number(content, "epsilon")
        notes.append(f"cost the test set epsilon {cost:.3g}; the interval includes the noise" if cost else "paid for")
    elif isinstance(source, str):
        notes.append(source)
    return [
        Bar(
            label=label,
            value=value,
            low=ends[0] if ends else None,
            high=ends[1] if ends else None,
            kind=kind,
            shown=f"{100 * value:.1f} %",
            note="; ".join(notes),
        )
    ]


def other_scores(inputs: Inputs) -> list[dict[str, str]]:
    """Balanced accuracy, AUC and calibration of each student."""
    return [
        {
            "student": str(student.get("student", "")),
            "balanced": _percent(number(student, "balanced_accuracy")),
            "auc": _plain(number(student, "auc"), ".4f"),
            "calibration": _plain(number(student, "calibration_error"), ".3f"),
        }
        for student in parts(inputs.evaluations, "students")
    ]


def recall_bars(inputs: Inputs) -> list[Bar]:
    """Recall of each class by the first student that tells it."""
    for student in parts(inputs.evaluations, "students"):
        bars = []
        for entry in parts([student], "per_class"):
            value = number(entry, "recall")
            ends = interval(entry, "interval")
            if value is not None:
                low, high = ends or (None, None)
                shown = f"{100 * value:.1f} %"
                count = number(entry, "n")
                note = "" if count is None else f"{count:,.0f} images"
                bars.append(Bar(label=str(entry.get("name")), value=value, low=low, high=high, shown=shown, note=note))
        if bars:
            return bars[:_MOST_CLASSES]
    return []


def finding_bars(inputs: Inputs) -> list[Bar]:
    """The AUC of each finding by the first student that tells it."""
    for student in parts(inputs.evaluations, "students"):
        bars = []
        for entry in parts([student], "per_finding"):
            count, precision = number(entry, "n"), number(entry, "average_precision")
            notes = [] if count is None else [f"{count:,.0f} images have it"]
            notes += [] if precision is None else [f"average precision {precision:.2f}"]
            bars += _area_bar(entry, str(entry.get("name")), note="; ".join(notes))
        if bars:
            return bars[:_MOST_CLASSES]
    return []


def fidelity_tables(inputs: Inputs) -> dict[str, list[dict[str, str]]]:
    """Fidelity, diversity and likeness as rows, by what was compared with."""
    tables: dict[str, list[dict[str, str]]] = {}
    for score in parts(inputs.evaluations, "fidelity"):
        value, ends = number(score, "value"), interval(score, "interval")
        if value is None:
            continue
        name, against = str(score.get("name")), str(score.get("against", "none"))
        title, what = _FIDELITY.get(name, (name, ""))
        better = "higher is better" if score.get("higher_is_better") else "lower is better"
        tables.setdefault(
            "The synthetic images alone" if against == "none" else f"Against {against} images", []
        ).append(
            {
                "title": title,
                "what": f"{what}; {better}" if what else better,
                "value": _digits(value),
                "interval": f"{_digits(ends[0])} to {_digits(ends[1])}" if ends else "not told",
            }
        )
    return tables


def pictures(inputs: Inputs) -> list[dict[str, str]]:
    """Pictures of nearest neighbours; where one shows the private images, too, the one without is left out."""
    found = parts(inputs.evaluations, "pictures")
    inside = any(picture.get("needs_private_data") is not False for picture in found)
    shown = []
    for picture in found:
        try:
            content = base64.b64decode(str(picture.get("png_base64", "")), validate=True)
        except ValueError:
            continue
        if content.startswith(b"\x89PNG") and not (inside and picture.get("name") == "nearest_public"):
            columns = picture.get("columns")
            names = ", ".join(map(str, columns)) if isinstance(columns, list) else ""
            shown.append({"uri": data_uri(content), "caption": str(picture.get("caption", "")), "sets": names})
    return shown


def attack_rows(inputs: Inputs) -> list[dict[str, Any]]:
    """Attacks with a bar from chance to certainty."""
    rows = []
    for attack in parts(inputs.attacks, "attacks"):
        auc = number(attack, "auc")
        intervals = attack["intervals"] if isinstance(attack.get("intervals"), dict) else {}
        low, high = interval(intervals, "auc") or (None, None)
        bar = None if auc is None else Bar(label="", value=auc, low=low, high=high, kind="attack", shown=f"{auc:.3f}")
        rows.append(
            {
                "name": str(attack.get("title") or attack.get("name") or "an attack"),
                "bar": bar,
                "accuracy": _percent(number(attack, "accuracy")),
                "least_accuracy": (interval(intervals, "accuracy") or (0.0, 1.0))[0],
                "tpr": _percent(number(attack, "tpr_at_fpr_0.001")),
                "verdict": str(attack.get("verdict") or ""),
            }
        )
    return rows


def audit_rows(audits: Sequence[Content], *, with_claims: bool) -> list[dict[str, Any]]:
    """Audits: the claim, what was shown to leak at least, and whether they fit. Sabotages are not claims of ours."""
    rows = []
    for content in audits:
        findings = parts([content], "audits") + parts([content], "findings")
        for finding in [content, *findings] if number(content, "lower_bound") is not None else findings:
            bound, claim = number(finding, "lower_bound"), number(finding, "claimed_epsilon")
            share = number(finding, "confidence")
            name = finding.get("name") or finding.get("method") or finding.get("mechanism") or "the mechanism"
            rows.append(
                {
                    "name": str(name),
                    "claim": _plain(claim, ".3g") if with_claims else "none",
                    "bound": _plain(bound, ".3g"),
                    "confidence": _percent(share),
                    "contradicted": finding.get("contradicted") is True,
                }
            )
    return rows


def sabotages(audits: Sequence[Content]) -> tuple[int, int]:
    """How many deliberately broken twins the audits caught, and how many there were."""
    found = parts(audits, "sabotages")
    return sum(twin.get("contradicted") is True for twin in found), len(found)


def data_uri(png: bytes) -> str:
    """A PNG inside the page itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _percent(value: float | None) -> str:
    return "not told" if value is None else f"{100 * value:.1f} %"


def _plain(value: float | None, form: str) -> str:
    return "not told" if value is None else f"{value:{form}}"


def _digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.3g}"
