"""label.md: one page on what protects whom, along the differential privacy pyramid of NIST SP 800-226.

The pyramid stands on how the data was collected and kept, and carries at its top the parameters and the unit. A strong
top on a weak base protects nobody, so the label names each storey, and says plainly which of them are the publisher's.

https://doi.org/10.6028/NIST.SP.800-226
"""

from collections import Counter
from collections.abc import Sequence

from veilset.privacy.events import Event
from veilset.privacy.ledger import check_chain
from veilset.release.about import UNSAID, About
from veilset.release.certificate import Certificate
from veilset.release.meaning import Meaning, meaning_of
from veilset.release.metadata.wording import LIMITS, NOT_COVERED, UNITS, rounded_up, what_it_is

_NOISE = (
    "Noise is drawn from the operating system's entropy; sums are exact or their rounding is bounded and paid for; "
    "results are rounded, so that low bits of floating-point numbers tell nothing. A release carries a date and no "
    "clock."
)
_SECURITY = (
    "Private images are read where they lie and are never copied. Access to that machine, to its backups and to the "
    "accounts of this software is for the custodian to guard; differential privacy does not."
)


def label_text(certificate: Certificate, about: About) -> str:
    """The label of a release, in Markdown."""
    meaning = meaning_of(certificate)
    rows = _protected(certificate, about, meaning) if meaning is not None else _unprotected(certificate)
    parts = [
        f"# Privacy label: {_cell(about.title)}",
        what_it_is(certificate),
        "\n".join(["| | |", "|---|---|", *(f"| **{name}** | {_cell(text)} |" for name, text in rows)]),
        "## Not covered",
        "\n".join(f"- {_cell(point)}" for point in (*(NOT_COVERED if meaning is not None else ()), *LIMITS)),
        "The rows follow the differential privacy pyramid of NIST SP 800-226, from its top to its base. "
        "`certificate.json` holds the ledger from which anyone can compute the first row again: `veilset verify`."
        if meaning is not None
        else "`certificate.json` says what was computed and why there is no guarantee.",
    ]
    return "\n\n".join(parts) + "\n"


def _protected(certificate: Certificate, about: About, meaning: Meaning) -> list[tuple[str, str]]:
    facts = certificate.facts
    return [
        (
            "Parameters",
            f"epsilon {rounded_up(meaning.epsilon)}, delta {meaning.delta:g}. The best attacker who could only toss a "
            f"coin before is right at most {meaning.right_of_100} times out of 100.",
        ),
        (
            "Unit",
            f"{UNITS[certificate.unit]}, added or removed ({certificate.relation}); {facts.units} units, a number that "
            "is declared public.",
        ),
        ("Algorithm", f"{certificate.method} of Veilset {certificate.versions.get('veilset', '')}."),
        ("Mechanisms", mechanisms(check_chain(certificate.ledger))),
        ("Accounting", "Privacy loss distributions (PLD), cross-checked by Renyi differential privacy (RDP)."),
        (
            "Usefulness and bias",
            "Not part of the guarantee. Small classes and small groups suffer first from noise. "
            + (" ".join(certificate.warnings) or "The run gave no warning."),
        ),
        ("Trust", trust(certificate)),
        ("Implementation", _NOISE),
        ("Security and access", _SECURITY),
        ("Data collection", f"What was collected, and with whose consent: {about.description or UNSAID}."),
    ]


def _unprotected(certificate: Certificate) -> list[tuple[str, str]]:
    return [
        ("Guarantee", "**None.** Treat these images like the private data."),
        ("Reasons", " ".join(certificate.reasons)),
        ("Algorithm", f"{certificate.method} of Veilset {certificate.versions.get('veilset', '')}."),
        ("Security and access", _SECURITY),
    ]


def trust(certificate: Certificate) -> str:
    """Who sees private images."""
    if "sites" in certificate.header:
        return "Federated: each site holds its own images and adds its own noise. Server and readers are not trusted."
    return "Central: one custodian holds the private images and adds the noise. Readers need not be trusted."


def mechanisms(events: Sequence[Event]) -> str:
    """The events of a ledger in words; shards that are alike are named once."""
    said = []
    for (label, noise, rate, count, bands), shards in Counter(
        (e.label, e.noise_multiplier, e.sampling_rate, e.count, e.bands) for e in events
    ).items():
        sampled = "" if rate == 1 else f", each unit taken with probability {rate:.3g}"
        times = "" if count == 1 else f", {count} times"
        apart = "" if shards == 1 else f", on each of {shards} disjoint shards"
        over = "" if bands == 1 else f", as {count * bands} steps whose noise is correlated over {bands}"
        said.append(f"{label}: Gaussian, noise multiplier {noise:.4g}{sampled}{times}{over}{apart}")
    return "; ".join(said) + "."


def _cell(text: str) -> str:
    """A text on one line that ends no cell and opens no tag."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line.replace("|", "\\|").replace("<", "&lt;")
