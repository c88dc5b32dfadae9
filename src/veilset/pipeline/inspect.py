"""What a custodian sees of a source before anything is spent: what was read, what was left out, what to expect.

Privacy: everything here depends on private records without noise. It is for the custodian's screen, touches no budget
and no account, and goes into no release. Neither a group's name nor a tag is in it.
"""

import base64
import html
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.data.tally import Tally
from veilset.evaluate.pictures import png_of, sample_grid
from veilset.methods import METHODS
from veilset.pipeline.checks import few_units
from veilset.pipeline.costs import estimate
from veilset.privacy.vault import PublicFacts

COLUMNS = 12  # images of each class on the page
_TYPICAL_SAMPLES = 10_000
_SHOWN_SIZES = 6


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The findings, as `--json` prints them."""

    records: int
    shape: tuple[int, int, int]
    classes: dict[str, int]  # name of a class or finding -> records
    groups: dict[str, float] | None  # how many, and images for each: least, median, most
    unit: str
    units: int
    found: int
    used: int
    ignored: dict[str, int]
    sizes: dict[str, int]  # as the files hold them -> images
    pixel_rules: dict[str, int]
    findings: bool = False  # several of the classes may be true of one image
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    minutes: dict[str, float] = field(default_factory=dict)  # method -> rough time of a release

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"shape": list(self.shape)}


def inspect(records: Records) -> Inspection:
    """Look at records that were opened."""
    labels, groups = records.labels, records.groups
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=len(records.class_names))
    owned = None if groups is None else np.unique(groups, return_counts=True)[1]
    tally = getattr(records, "tally", None)
    tally = tally if isinstance(tally, Tally) else Tally(len(labels), sizes=Counter({records.shape: len(labels)}))
    unit, units = ("record", len(labels)) if owned is None else ("group", len(owned))
    return Inspection(
        records=len(labels),
        shape=records.shape,
        classes={name: int(count) for name, count in zip(records.class_names, counts, strict=True)},
        groups=None
        if owned is None
        else {
            "groups": len(owned),
            "least": int(owned.min()),
            "median": float(np.median(owned)),
            "most": int(owned.max()),
        },
        unit=unit,
        units=units,
        found=tally.found,
        used=tally.used,
        ignored=dict(tally.ignored),
        sizes={"x".join(map(str, size)): count for size, count in tally.sizes.most_common(_SHOWN_SIZES)},
        pixel_rules=dict(tally.rules),
        notes=list(tally.said),
        findings=labels.ndim == 2,
        warnings=_warnings(unit, units, counts, tally),
        minutes=minutes_of(
            PublicFacts(
                units=units,
                unit="record" if owned is None else "group",
                shape=records.shape,
                class_names=tuple(records.class_names),
            )
        ),
    )


def minutes_of(facts: PublicFacts) -> dict[str, float]:
    """Rough processor minutes of 10,000 images by each method that was measured (pipeline/costs.py)."""
    kinds = {name: METHODS.get(name) for name in METHODS}
    costs = {
        name: estimate(
            name,
            "default",
            facts,
            _TYPICAL_SAMPLES if kind.any_number_of_images else kind.configure().default_samples(facts),
        )
        for name, kind in kinds.items()
    }
    return {name: round(cost.seconds / 60, 1) for name, cost in costs.items() if cost is not None}


def _warnings(unit: str, units: int, counts: np.ndarray[Any, Any], tally: Tally) -> list[str]:
    warnings = []
    few = few_units(unit, units)
    if few is not None:
        warnings.append(few)
    if len(counts) > 1 and counts.min() * 10 < counts.max():
        warnings.append("The smallest class has less than a tenth of the largest: it will be learned worst.")
    if unit == "record":
        warnings.append(
            "No groups are known: each image is protected alone, also where one person has several. Name them with "
            "--groups-file PATIENTS.csv (path,group), with --groups, or with a column group."
        )
    if len(tally.sizes) > 1:
        warnings.append(f"The files hold images of {len(tally.sizes)} different sizes; all were brought to one.")
    return warnings


def check_page(path: Path) -> None:
    """Refuse a place for the page before any work."""
    if path.exists():
        raise InputError(f"{path} exists already. Choose another --page; nothing was changed.")
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"Expected --page FILE.html, got {path}.")


def write_page(path: Path, records: Records, found: Inspection) -> None:
    """A contact sheet of real, private images, for eyes on this machine alone."""
    check_page(path)
    parts = []
    for label, name in enumerate(records.class_names):
        has = records.labels[:, label] == 1 if records.labels.ndim == 2 else records.labels == label
        rows = np.flatnonzero(has)[:COLUMNS]
        if len(rows):
            grid = sample_grid(records.read(rows), np.full(len(rows), label), columns=COLUMNS, zoom=1)
            picture = base64.b64encode(png_of(grid)).decode()
            parts.append(
                f"<h2>{html.escape(name)}: {found.classes[name]} records</h2>\n"
                f'<img alt="Images of the class {html.escape(name)}" src="data:image/png;base64,{picture}">'
            )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # for its owner alone from the first byte
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_PAGE.format(count=found.records, body="\n".join(parts)))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>NOT FOR RELEASE</title>
<meta name="robots" content="noindex">
<style>
body {{ font-family: sans-serif; margin: 2rem; max-width: 70rem; }}
.mark {{ background: #b00020; color: white; padding: .8rem 1rem; font-weight: bold; }}
img {{ max-width: 100%; image-rendering: pixelated; }}
h2 {{ font-size: 1rem; }}
</style></head><body>
<p class="mark">NOT FOR RELEASE. These are private images. Keep this file where they are, and delete it after use.</p>
<h1>What was read: {count} records</h1>
<p>The first images of each class, as methods will see them. Look for names, dates and faces in the pixels.</p>
{body}
</body></html>
"""
