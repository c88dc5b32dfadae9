"""The report of one release: one HTML file that needs nothing else, in a public and an internal version."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veilset._version import __version__
from veilset.core.files import sha256_of
from veilset.methods import METHODS
from veilset.release import layout
from veilset.release.certificate import Certificate
from veilset.release.format import Release, load_release
from veilset.release.meaning import Meaning, meaning_of
from veilset.release.metadata.wording import rounded_up
from veilset.release.verify import Verification, verify_release
from veilset.report import sections
from veilset.report.charts import guess_dots
from veilset.report.inputs import Inputs, parts, public_part, read_inputs
from veilset.report.templates import style, template
from veilset.report.timeline import timeline

_UNITS = {"record": ("image", "images"), "group": ("person", "people")}
_WEAK_EPSILON = 10.0


def write_report(
    path: Path,
    *,
    evaluations: Sequence[Path] = (),
    attacks: Sequence[Path] = (),
    audits: Sequence[Path] = (),
    internal: bool = False,
) -> str:
    """The report of the release at `path` as HTML text. A release that does not verify raises."""
    layout.require_release(path)
    verification = verify_release(path)
    verification.raise_if_failed()
    inputs = read_inputs(evaluations, attacks, audits, sha256_of(path / layout.CERTIFICATE))
    return render(load_release(path), verification, inputs if internal else public_part(inputs), path, internal)


def render(release: Release, verification: Verification, inputs: Inputs, path: Path, internal: bool) -> str:
    """The page; `inputs` hold nothing that its readers may not see."""
    certificate = release.certificate
    meaning = meaning_of(certificate)
    one, many = _UNITS[certificate.unit]
    audits = sections.audit_rows(inputs.audits, with_claims=meaning is not None)
    attacks = sections.attack_rows(inputs)
    classes, hidden_classes = sections.class_rows(release)
    height, width, channels = certificate.facts.shape
    return template("report.html").render(
        style=style(),
        internal=internal,
        certificate=certificate,
        facts=certificate.facts,
        shape=f"{height} × {width} pixels, {'colour' if channels == 3 else 'grey'}",
        one=one,
        many=many,
        created=certificate.created[:10],
        meaning=meaning,
        epsilon=rounded_up(meaning.epsilon, 3) if meaning else "",
        odds=_odds(meaning) if meaning else "",
        dots=guess_dots(meaning.right_of_100, f"one {one}") if meaning else "",
        warnings=warnings_of(certificate, meaning, audits, attacks, verification, internal=internal),
        classes=classes,
        hidden_classes=hidden_classes,
        steps=timeline(certificate),
        utility=sections.utility_bars(inputs, findings=certificate.facts.findings),
        skipped=parts(inputs.evaluations, "reference_scores_skipped"),
        other_scores=sections.other_scores(inputs),
        recalls=sections.recall_bars(inputs),
        finding_scores=sections.finding_bars(inputs),
        fidelity=sections.fidelity_tables(inputs),
        extractors=sorted({str(e["extractor"]) for e in inputs.evaluations if e.get("extractor")}),
        pictures=sections.pictures(inputs),
        attacks=attacks,
        audits=audits,
        sabotages=sections.sabotages(inputs.audits),
        method=_method(certificate),
        settings=json.dumps(dict(certificate.settings), indent=2, sort_keys=True),
        files=sorted(certificate.files.items()),
        fingerprint=sha256_of(path / layout.CERTIFICATE),
        signed_by=verification.signed_by,
        version=__version__,
    )


def warnings_of(
    certificate: Certificate,
    meaning: Meaning | None,
    audits: Sequence[dict[str, Any]],
    attacks: Sequence[dict[str, Any]],
    verification: Verification,
    *,
    internal: bool,
) -> list[tuple[str, str]]:
    """What a reader must know first: (grade, text), the gravest first."""
    found = []
    if meaning is None:
        found.append(("grave", "These images carry no privacy guarantee. Treat them like the private data."))
        found += [("grave", reason) for reason in certificate.reasons]
    found += [
        ("grave", f"An audit contradicts the claim of {audit['name']}: it leaks more than was stated.")
        for audit in audits
        if audit["contradicted"]
    ]
    found += [
        ("grave", f"The attack {attack['name']!r} is right more often than the guarantee allows. Find out why.")
        for attack in attacks
        if meaning is not None and attack["least_accuracy"] > meaning.best_guess
    ]
    if meaning is not None and meaning.epsilon > _WEAK_EPSILON:
        found.append(
            ("caution", f"Epsilon {rounded_up(meaning.epsilon, 3)} is large; the promise to one unit is weak.")
        )
    found += [("caution", warning) for warning in certificate.warnings]
    if verification.signed_by is None:
        found.append(("note", "The release is not signed: the hashes show that it is whole, not who made it."))
    if internal:
        text = (
            "This is the internal version. It holds numbers measured on private data without noise: do not publish it."
        )
        found.insert(0, ("caution", text))
    return found


def _odds(meaning: Meaning) -> str:
    return rounded_up(math.exp(meaning.epsilon), 3) if meaning.epsilon < 15 else "more than a million"


def _method(certificate: Certificate) -> dict[str, str]:
    """Title and paper where the method is one of ours; a foreign release has its name alone."""
    if certificate.method not in METHODS:
        return {"name": certificate.method, "title": certificate.method, "paper": ""}
    method = METHODS.get(certificate.method)
    return {"name": certificate.method, "title": method.title, "paper": method.paper}
