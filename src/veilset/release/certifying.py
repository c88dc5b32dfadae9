"""From a finished run to its certificate: epsilon is computed from the ledger alone, never copied from the request."""

import math
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from veilset._version import __version__
from veilset.core.errors import InputError, VerificationError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.ledger import Line, check_chain
from veilset.release.certificate import N_IS_PUBLIC, Certificate
from veilset.release.redaction import redact, redact_ledger

SECURE_NOISE = "os-entropy"
OF_OTHERS = "The publisher declares that it is of other people; what it cost them is not counted here."
SEEDED_REASON = (
    "The privacy noise came from a seed instead of the operating system's entropy. "
    "Who knows or guesses the seed can subtract the noise, so nothing is protected."
)


def certify(
    ledger_lines: Sequence[Line],
    *,
    samples: int,
    reasons: Sequence[str] = (),
    warnings: Sequence[str] = (),
    created: str | None = None,
) -> Certificate:
    """The certificate of a run, which repeats what the first line of its ledger says of it.

    `reasons` say why it has no guarantee, e.g. that it ran as published.

    Privacy: the stated epsilon is that of the ledger's events by PLD at the ledger's delta, unit as in its facts,
    relation add/remove-one. Seeded noise or any reason makes the guarantee `none`, and then no epsilon is kept
    anywhere.
    """
    lines = list(ledger_lines)
    events = check_chain(lines)
    header = _header(lines)
    facts, delta = header["facts"], header["delta"]
    problems = ledger_problems(lines, events)
    if problems:
        raise VerificationError(" ".join(problems))
    if header.get("as_published") and not reasons:
        raise VerificationError("The run was as published, so its certificate has to say why that has no guarantee.")
    reasons = [*reasons, *([SEEDED_REASON] if header["noise"] != SECURE_NOISE else [])]
    epsilon = pld = rdp = None
    if not reasons:
        Budget(1.0, delta).check_against(facts["units"])
        pld, rdp = epsilon_of(events, delta, "pld"), epsilon_of(events, delta, "rdp")
        epsilon = pld
        if not (math.isfinite(pld) and math.isfinite(rdp)):
            raise InputError(f"The ledger has no finite epsilon at delta={delta:g}. Choose a larger --delta.")
    # Nothing that names an epsilon may stay when it protects nothing.
    clean = redact if reasons else _unchanged
    return Certificate(
        guarantee="none" if reasons else "dp",
        epsilon=epsilon,
        delta=None if reasons else delta,
        unit=facts["unit"],
        declared_public=clean(facts | {"statement": N_IS_PUBLIC}),
        ledger=tuple(redact_ledger(lines) if reasons else lines),
        accountant={"pld": pld, "rdp": rdp},
        method=header["method"],
        settings=clean(header["settings"]),
        seed=header["seed"],
        budget=None if reasons else header.get("budget"),
        samples=samples,
        versions=_versions(),
        reasons=tuple(map(clean, reasons)),
        warnings=tuple(map(clean, warnings)),
        created=created or datetime.now(UTC).date().isoformat(),  # no time of day: it would tell how long a run took
    )


def planned_events(header: Mapping[str, Any]) -> list[Event]:
    """The events that the header of a ledger says will be spent."""
    plan = header.get("plan")
    if not isinstance(plan, list):
        raise InputError("Expected the ledger's header to hold a plan.")
    return [Event.from_json(item) for item in plan]


def ledger_problems(lines: Sequence[Line], events: Sequence[Event]) -> list[str]:
    """Where the events of a ledger differ from the plan in its header, and steps taken beyond those paid for."""
    problems = []
    planned = planned_events(lines[0]["body"])
    if Counter(planned) != Counter(events):
        problems.append(
            f"The ledger's {len(events)} events are not the {len(planned)} events of its plan, no more and no fewer."
        )
    left: Counter[tuple[str, int | None]] = Counter()
    for event in events:
        if event.source is None:
            left[event.label, event.shard] += event.steps
    for line in lines:
        if line["kind"] == "lease":
            label, shard, steps = (line["body"].get(name) for name in ("label", "shard", "steps"))
            if not isinstance(steps, int) or steps < 1 or not (shard is None or isinstance(shard, int)):
                problems.append(f"Ledger line {line['sequence']} does not say how many steps it leases.")
                continue
            left[str(label), shard] -= steps
    overdrawn = sorted({label for (label, _), steps in left.items() if steps < 0})
    if overdrawn:
        problems.append(f"The ledger leases more steps than were spent for {', '.join(map(repr, overdrawn))}.")
    return problems


def input_problems(certificate: Certificate, events: Sequence[Event]) -> list[str]:
    """Where the releases that a run says it built upon and the events that it carries do not fit."""
    inputs = certificate.header.get("inputs", [])
    forms = {"name": str, "run": str, "certificate_sha256": str, "is_of_others": bool}
    if not isinstance(inputs, list) or not all(
        isinstance(found, dict) and {name: type(value) for name, value in found.items()} == forms for found in inputs
    ):
        return ["The ledger's header does not say which releases the run built upon."]
    problems = []
    if any(event.source is not None for event in events) and all(found["is_of_others"] for found in inputs):
        problems.append("The ledger carries events of another run, but names no release that they are from.")
    if any(found["is_of_others"] for found in inputs) and not any(OF_OTHERS in w for w in certificate.warnings):
        problems.append("The run built upon a release of other people, and the certificate does not say so.")
    return problems


def _header(lines: Sequence[Line]) -> Mapping[str, Any]:
    """What the first line says of the run, which must be all that a certificate repeats."""
    if not lines:
        raise VerificationError("The ledger holds no lines, so there is no run to certify.")
    header: Mapping[str, Any] = lines[0]["body"]
    missing = [name for name in ("facts", "delta", "method", "settings", "seed") if name not in header]
    if missing:
        raise VerificationError(f"The ledger's header does not say {', '.join(missing)} of its run.")
    if header.get("noise") not in (SECURE_NOISE, "seeded"):
        raise VerificationError(f"The ledger says that its noise is {header.get('noise')!r}, which is unknown.")
    return header


def _unchanged(data: Any) -> Any:
    return data


def _versions() -> dict[str, str]:
    versions = {"veilset": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "dp-accounting"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions
