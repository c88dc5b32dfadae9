"""Whether a release is what it says: every hash, the ledger's chain, epsilon computed again, the signature.

A release may come from anyone, so whatever is wrong with it becomes a line in `problems`. Work and memory are bounded;
what would take more is a problem, too: "too costly to check". Only a release that this user may not read raises.
"""

import json
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import VeilsetError, VerificationError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.ledger import check_chain
from veilset.release import layout, strict_json
from veilset.release.certificate import Certificate, read_certificate
from veilset.release.certifying import SECURE_NOISE, input_problems, ledger_problems
from veilset.release.format import model_names, read_description
from veilset.release.manifest import read_manifest
from veilset.release.pack import read_pack, stored_pack_problems
from veilset.release.redaction import states_epsilon
from veilset.release.sharded import shard_problems
from veilset.release.signing import check_signature, load_public_key
from veilset.release.statements import statement_notes, statement_problems
from veilset.release.table import can_read_tables, loading_text, table_problems

# The stated epsilon may be this much above the computed one (another version of the accountant, wider buckets) ...
_ABOVE = 1e-3
# ... and below it by rounding alone.
_BELOW = 1e-6
# Beyond this nothing is protected, and computing a privacy loss distribution would only cost time.
_LARGEST_EPSILON = 1e4
# In points of `accounting.Work`: a few seconds, and 300 MB.
_MOST_WORK = 5e6
_LONGEST_HEADER = 1 << 22  # of a file of weights

_HOSTILE = (VeilsetError, ArithmeticError, LookupError, TypeError, ValueError, OSError, MemoryError, RecursionError)
"""What a check of hostile input may raise; each becomes a problem."""


@dataclass(kw_only=True)
class Verification:
    """The outcome. Of a release with problems nothing is stated: its numbers mean nothing."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    certificate: Certificate | None = field(default=None, repr=False)
    pld: float | None = None
    rdp: float | None = None
    signed_by: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return not self.problems and self.certificate is not None

    @property
    def guarantee(self) -> str | None:
        """`dp` or `none`; None when the release is not what it says."""
        return None if self._vouched is None else self._vouched.guarantee

    @property
    def epsilon(self) -> float | None:
        """The certified epsilon."""
        return None if self._vouched is None else self._vouched.epsilon

    @property
    def delta(self) -> float | None:
        """The certified delta."""
        return None if self._vouched is None else self._vouched.delta

    @property
    def unit(self) -> str | None:
        """Whom the guarantee protects: one record or one group."""
        return None if self._vouched is None else self._vouched.unit

    @property
    def relation(self) -> str | None:
        """Which datasets count as neighbours."""
        return None if self._vouched is None else self._vouched.relation

    @property
    def recomputed(self) -> dict[str, float | None]:
        """Epsilon computed from the ledger by each accountant; None where there is no finite one."""
        found = {"pld": self.pld, "rdp": self.rdp}
        return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}

    def to_json(self) -> dict[str, Any]:
        """The keys that scripts rely on."""
        names = (
            "ok",
            "guarantee",
            "epsilon",
            "delta",
            "unit",
            "relation",
            "recomputed",
            "problems",
            "signed_by",
            "notes",
        )
        return {name: getattr(self, name) for name in names}

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` with all problems, if there are any."""
        if not self.ok:
            raise VerificationError("The release is not what it says. " + " ".join(self.problems))

    @property
    def _vouched(self) -> Certificate | None:
        return self.certificate if self.ok else None


def verify_release(
    path: str | Path, public_key: str | Path | None = None, *, sample: int | None = None
) -> Verification:
    """Check a release directory; with a public key, also that its owner signed it.

    Of a release in shards all shards are checked, or, with `sample`, so many of them, drawn at random; the others need
    not be there.

    >>> import veilset as vs
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit("builtin:digits:train")
    >>> path = release.save("release")
    >>> found = vs.verify("release")
    >>> found.ok, found.guarantee, found.unit
    (True, 'dp', 'record')
    """
    path = Path(path)
    trusted = None if public_key is None else load_public_key(Path(public_key))
    layout.require_directory(path)
    layout.require_readable(path)
    result = Verification()
    # Links and pipes are never opened, so nothing else is tried while there are any.
    if not _run(result, lambda: layout.entry_problems(path)):
        return result
    if not (path / layout.CERTIFICATE).exists():
        result.problems.append(f"{layout.CERTIFICATE} is missing.")
        return result
    try:
        certificate = read_certificate(path / layout.CERTIFICATE)
    except _HOSTILE as error:
        result.problems.append(str(error))
        return result
    result.certificate = certificate
    result.notes += [f"{name} lies beside the release and is no part of it." for name in layout.foreign_files(path)]

    def signature() -> list[str]:
        place = path / layout.SIGNATURE
        if place.exists():
            result.signed_by = check_signature((path / layout.CERTIFICATE).read_bytes(), place, trusted)
        return [] if place.exists() or trusted is None else ["A key was given, but the release is not signed."]

    _run(result, signature)
    if _run(result, lambda: layout.file_problems(path, certificate, most_bytes=layout.MOST_BYTES)):
        if _run(result, lambda: _content(path, certificate)):
            _run(result, lambda: _loading(path, certificate, result))
        if layout.MANIFEST in certificate.files:
            _run(result, lambda: _shards(path, certificate, sample, result))
    _run(result, lambda: _header(certificate))
    claim_is_sound = _run(result, lambda: _guarantee(certificate))
    events: list[Event] = []

    def ledger() -> list[str]:
        events.extend(check_chain(certificate.ledger))
        found = statement_problems(certificate.header, events)
        if not found:
            result.notes += statement_notes(certificate.header)
        return found + ledger_problems(certificate.ledger, events) + input_problems(certificate, events)

    # No epsilon is computed for what has no guarantee, whatever it claims.
    if _run(result, ledger) and claim_is_sound and certificate.guarantee == "dp":
        _run(result, lambda: _epsilon(certificate, events, result))
    return result


def _run(result: Verification, check: Callable[[], list[str]]) -> bool:
    try:
        found = check()
    except _HOSTILE as error:
        found = [str(error) or type(error).__name__]
    result.problems += found
    return not found


def _header(certificate: Certificate) -> list[str]:
    """The certificate against the first line of its ledger."""
    header, facts = certificate.header, certificate.header.get("facts")
    if not isinstance(facts, dict):
        return ["The ledger's header does not say what is declared public."]
    declared = {name: value for name, value in certificate.declared_public.items() if name != "statement"}
    problems = [
        f"The certificate's {name} is not the one in the ledger's header."
        for name in sorted(declared.keys() | facts.keys())
        if not _same(declared.get(name), facts.get(name))
    ]
    # A release without a guarantee names no budget, in its ledger neither.
    names = ("method", "settings", "seed", *(("delta", "budget") if certificate.guarantee == "dp" else ()))
    problems += [
        f"The certificate's {name} is not the one in the ledger's header."
        for name in names
        if not _same(header.get(name), getattr(certificate, name))
    ]
    return problems


def _same(one: Any, other: Any) -> bool:
    """Equal to the last type: 1 is not 1.0, and not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _guarantee(certificate: Certificate) -> list[str]:
    numbers = (certificate.epsilon, certificate.delta, *certificate.accountant.values())
    problems = []
    if certificate.guarantee == "none":
        if any(number is not None for number in numbers) or certificate.budget is not None:
            problems.append("A release without a guarantee states an epsilon or a delta.")
        bodies = [line["body"] for line in certificate.ledger]
        if states_epsilon([bodies, certificate.settings, certificate.reasons, certificate.warnings]):
            problems.append("A release without a guarantee names a budget in its settings, ledger or reasons.")
        if not certificate.reasons:
            problems.append("A release without a guarantee gives no reason.")
        return problems
    if any(number is None for number in numbers):
        problems.append("A guarantee needs epsilon and delta and both accountants' values.")
    if certificate.reasons:
        problems.append("The certificate claims a guarantee and gives reasons why there is none.")
    if certificate.header.get("noise") != SECURE_NOISE:
        noise = certificate.header.get("noise")
        problems.append(f"Expected noise from {SECURE_NOISE} for a guarantee, the ledger says {noise!r}.")
    if certificate.header.get("as_published"):
        problems.append("The ledger says that the run was as published, which has no guarantee.")
    units = certificate.facts.units
    if certificate.delta is not None and not 0 < certificate.delta < 1 / units:
        problems.append(f"Expected 0 < delta < 1/{units}, found {certificate.delta:g}.")
    return problems


def _epsilon(certificate: Certificate, events: list[Event], result: Verification) -> list[str]:
    """Epsilon from the ledger alone, by both accountants, against the certificate."""
    delta, stated, accountant = certificate.delta, certificate.epsilon, certificate.accountant
    if delta is None or stated is None:
        return ["The ledger's epsilon cannot be computed: a number is missing."]
    try:
        # The library divides by zero on its way to infinity.
        with np.errstate(all="ignore"):
            result.rdp = epsilon_of(events, delta, "rdp", most_work=_MOST_WORK)
            if not result.rdp <= _LARGEST_EPSILON:
                return [f"The ledger's events cost epsilon {result.rdp:.3g}, which protects nothing."]
            result.pld = epsilon_of(events, delta, "pld", most_work=_MOST_WORK)
    except _HOSTILE as error:
        return [f"The ledger's epsilon cannot be computed. {error}"]
    problems = []
    for name, claim, computed in (
        ("epsilon", stated, result.pld),
        ("pld", accountant["pld"], result.pld),
        ("rdp", accountant["rdp"], result.rdp),
    ):
        if claim is None or not computed * (1 - _BELOW) - 1e-9 <= claim <= computed * (1 + _ABOVE) + 1e-9:
            problems.append(f"The certificate states {name} {claim}, the ledger's events cost {computed:.6g}.")
    # Renyi DP is the looser bound. Below PLD by more than the width of PLD's buckets, one of the two is wrong.
    if result.rdp < result.pld * 0.99 - 1e-3:
        problems.append(f"The accountants disagree: RDP {result.rdp:.6g} is below PLD {result.pld:.6g}.")
    return problems


def _content(path: Path, certificate: Certificate) -> list[str]:
    """The files themselves, once their hashes are right."""
    from safetensors import SafetensorError, safe_open

    facts = certificate.facts
    problems = []
    if layout.DATA in certificate.files:
        problems = stored_pack_problems(
            path / layout.DATA, facts.shape, facts.classes, certificate.samples, findings=facts.findings
        )
    texts: list[Any] = [(path / layout.CARD).read_text(encoding="utf-8")]
    if layout.LABEL in certificate.files:
        texts.append((path / layout.LABEL).read_text(encoding="utf-8"))
    if layout.CROISSANT in certificate.files:
        texts.append(strict_json.load(path / layout.CROISSANT, layout.LARGEST_TEXT))
    for name in model_names(certificate):
        texts.append(read_description(path, name))
        try:
            _require_short_header(path / layout.weights_file(name))
            with safe_open(path / layout.weights_file(name), framework="numpy") as weights:
                weights.keys()
        except SafetensorError as error:
            problems.append(f"{layout.weights_file(name)} cannot be read: {error}.")
    if certificate.guarantee == "none" and states_epsilon(texts):
        problems.append("A release without a guarantee names an epsilon in its card, its label or a description.")
    return problems


def _loading(path: Path, certificate: Certificate, result: Verification) -> list[str]:
    """What other tools read in place of data.npz or the manifest must hold, or lead to, the same images."""
    problems = []
    if layout.LOADING in certificate.files:
        form = read_manifest(path / layout.MANIFEST, certificate).form
        if (path / layout.LOADING).read_text(encoding="utf-8") != loading_text(form):
            problems.append(f"{layout.LOADING} leads elsewhere than to the shards.")
    if layout.TABLE in certificate.files:
        if not can_read_tables():
            result.notes.append(
                f"{layout.TABLE} was not compared with {layout.DATA}, because pyarrow is not installed. Install it "
                "with: pip install 'veilset[data]'"
            )
        else:
            problems += table_problems(path / layout.TABLE, read_pack(path / layout.DATA), certificate.facts)
    return problems


def _shards(path: Path, certificate: Certificate, sample: int | None, result: Verification) -> list[str]:
    """The shards that the manifest lists, or some of them."""
    manifest = read_manifest(path / layout.MANIFEST, certificate)
    total = len(manifest.shards)
    chosen = range(total) if sample is None else sorted(secrets.SystemRandom().sample(range(total), min(sample, total)))
    if len(chosen) < total:
        result.notes.append(f"{len(chosen)} of {total} shards were checked, drawn at random; the others were not read.")
    folder = path / layout.SHARDS
    strange = {entry.name for entry in folder.iterdir()} - {shard.name for shard in manifest.shards} - layout.FOREIGN
    problems = [f"{name!r} is among the shards but not in the manifest." for name in sorted(strange)[:10]]
    return problems + shard_problems(path, certificate, manifest, chosen, whole=True)


def _require_short_header(path: Path) -> None:
    """Refuse weights whose list of tensors is longer than any real one; it would be read into memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST_HEADER:
        raise VerificationError(f"The header of {path.name} is {length} bytes long, which is too costly to check.")
