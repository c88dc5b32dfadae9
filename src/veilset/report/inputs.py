"""The files a report is made of besides the release: evaluations, attacks and audits.

Other versions may write more than we know, so unknown keys are passed over; what a section needs and does not find is
told to the reader instead of being guessed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError

Content = Mapping[str, Any]

_LARGEST = 1 << 26
_KINDS = {
    "evaluation": (("students", "accuracy", "paid"), "veilset evaluate ... --out FILE"),
    "attack": (("attacks",), "veilset attack ... --out FILE"),
    "audit": (("lower_bound", "audits", "findings", "sabotages"), "veilset audit ... --out FILE"),
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What was measured, beside the release."""

    evaluations: Sequence[Content] = field(default_factory=tuple)
    attacks: Sequence[Content] = field(default_factory=tuple)
    audits: Sequence[Content] = field(default_factory=tuple)


def read_inputs(
    evaluations: Sequence[Path], attacks: Sequence[Path], audits: Sequence[Path], certificate_sha256: str
) -> Inputs:
    """Read all files; an evaluation of another release is refused."""
    read = Inputs(
        evaluations=[_read(path, "evaluation") for path in evaluations],
        attacks=[_read(path, "attack") for path in attacks],
        audits=[_read(path, "audit") for path in audits],
    )
    for path, content in zip((*evaluations, *attacks), (*read.evaluations, *read.attacks), strict=True):
        measured = content.get("release")
        found = measured.get("certificate_sha256") if isinstance(measured, dict) else None
        if found is not None and found != certificate_sha256:
            raise InputError(f"{path} was measured on another release. Measure this one, or leave the file out.")
    return read


def public_part(inputs: Inputs) -> Inputs:
    """What of the inputs may be published: what was paid for, and what was measured without private data.

    Everything is kept out unless it says itself that it needed no private data: a missing word is no permission.
    """
    evaluations = []
    for content in inputs.evaluations:
        kept: dict[str, Any] = {"extractor": content.get("extractor")}
        for name in ("fidelity", "pictures"):
            kept[name] = [part for part in _parts(content, name) if part.get("needs_private_data") is False]
        paid = content.get("paid")
        if isinstance(paid, dict) and paid.get("needs_private_data") is False:
            kept["paid"] = paid
        evaluations.append(kept)
    # An audit plays its game with made-up records, so it is public unless it says otherwise.
    audits = [
        audit
        for audit in inputs.audits
        if not audit.get("not_for_release", False) and not audit.get("needs_private_data", False)
    ]
    return Inputs(evaluations=evaluations, attacks=(), audits=audits)


def number(content: Content, *names: str) -> float | None:
    """The first of these keys that holds a finite number."""
    for name in names:
        value = content.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
            return float(value)
    return None


def interval(content: Content, name: str) -> tuple[float, float] | None:
    """Two numbers in order."""
    value = content.get(name)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
        return float(min(value)), float(max(value))
    return None


def parts(contents: Sequence[Content], name: str) -> list[Content]:
    """The entries of a list called `name` over all files."""
    return [part for content in contents for part in _parts(content, name)]


def _parts(content: Content, name: str) -> list[Content]:
    value = content.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _read(path: Path, kind: str) -> Content:
    keys, command = _KINDS[kind]
    hint = f"Make one with: {command}"
    if not path.is_file():
        raise InputError(f"There is no {kind} file at {path}. {hint}")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is too large for the {kind} file of a release.")
    text = path.read_bytes().decode("utf-8", "replace")
    if not text.strip():
        raise InputError(f"{path} is empty: the {kind} did not finish. {hint}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no {kind} file: {error}. {hint}") from error
    if not isinstance(content, dict) or not any(key in content for key in keys):
        raise InputError(f"{path} is no {kind} file: it has none of {', '.join(keys)}. {hint}")
    return content
