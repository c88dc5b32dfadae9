"""What a release guarantees, for whom, and from which events: certificate.json.

The form is strict: exactly these keys, of these types. A checksum over the content finds careless edits; only a
signature (signing.py) finds those of a person who computes the checksum again.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from veilset.core.errors import VerificationError
from veilset.privacy.ledger import Line
from veilset.privacy.vault import PublicFacts, describe
from veilset.release import strict_json

FORMAT_VERSION = 2
RELATION = "add/remove-one"
N_IS_PUBLIC = (
    "The number of units, the image shape and the class names are declared public by the custodian; "
    "the guarantee does not cover them."
)

MOST_SAMPLES, MOST_UNITS, LONGEST_SIDE = 10**9, 10**12, 10**5
LARGEST_NUMBER = 1e300
"""An int above no longer fits a float; nothing in a certificate comes near."""

Guarantee = Literal["dp", "none"]

_CHECKSUM = "content_sha256"
_SIZE_LIMIT = 1 << 25
_LINE_TYPES = {"sequence": int, "kind": str, "body": dict, "previous": str, "hash": str}


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The certificate of a release. `files` is filled when the release is saved."""

    guarantee: Guarantee
    epsilon: float | None
    delta: float | None
    unit: str
    declared_public: Mapping[str, Any]
    ledger: tuple[Line, ...]
    accountant: Mapping[str, float | None]
    method: str
    settings: Mapping[str, Any]
    seed: int | None
    budget: Mapping[str, float] | None
    samples: int
    versions: Mapping[str, str]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    created: str
    files: Mapping[str, str] = field(default_factory=dict)
    relation: str = RELATION
    format_version: int = FORMAT_VERSION

    @property
    def facts(self) -> PublicFacts:
        """What the custodian declared public."""
        return describe(self.declared_public)

    @property
    def header(self) -> Mapping[str, Any]:
        """What the first line of the ledger says of the run."""
        header: Mapping[str, Any] = self.ledger[0]["body"]
        return header

    @property
    def label_temperature(self) -> float:
        """The temperature that soft labels were made at: 1 where the settings name none."""
        found = self.settings.get("label_temperature", 1.0)
        if not isinstance(found, int | float) or not 0 < found < math.inf:
            raise _malformed(f"expected label_temperature > 0, found {found!r}")
        return float(found)

    @property
    def student_network(self) -> str | None:
        """The network that is recommended for students, where the settings name one."""
        found = self.settings.get("student_network")
        if found is not None and not isinstance(found, str):
            raise _malformed(f"expected student_network to be a name, found {found!r}")
        return found

    @property
    def student_changes(self) -> Mapping[str, Any] | None:
        """The changes to images that students are to make in training, where the settings name any."""
        found = self.settings.get("student_changes")
        if found is not None and not isinstance(found, Mapping):
            raise _malformed(f"expected student_changes to be a table, found {found!r}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The certificate as JSON-ready data, with its checksum."""
        content: dict[str, Any] = strict_json.normalised(asdict(self))
        return content | {_CHECKSUM: _checksum(content)}

    def to_bytes(self) -> bytes:
        """The content of certificate.json."""
        return strict_json.dump(self.to_json())

    @classmethod
    def from_json(cls, data: Any) -> "Certificate":
        """Read `to_json` back; what is not exactly of this form raises `VerificationError`."""
        if not isinstance(data, dict):
            raise _malformed("expected a mapping")
        content = {key: value for key, value in data.items() if key != _CHECKSUM}
        if content.get("format_version") != FORMAT_VERSION:
            found = content.get("format_version")
            raise _malformed(
                f"expected format_version {FORMAT_VERSION}, found {found!r}; another version of veilset wrote it, and "
                "that version can check it"
            )
        if data.get(_CHECKSUM) != _checksum(content):
            raise _malformed("its content does not match its checksum; it was altered")
        _check_form(content)
        sequences = {name: tuple(content[name]) for name in ("ledger", "reasons", "warnings")}
        return cls(**(content | sequences))


def read_certificate(path: Path) -> Certificate:
    """Read a certificate.json strictly."""
    return Certificate.from_json(strict_json.load(path, _SIZE_LIMIT))


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _malformed(what: str) -> VerificationError:
    return VerificationError(f"certificate.json: {what}.")


def _check_form(content: Mapping[str, Any]) -> None:
    expected = set(Certificate.__dataclass_fields__)
    if set(content) != expected:
        missing, extra = sorted(expected - set(content)), sorted(set(content) - expected)
        raise _malformed(f"missing keys {missing}, unknown keys {extra}")
    for name in ("unit", "relation", "method", "created"):
        _require(isinstance(content[name], str), name, "text")
    for name in ("reasons", "warnings"):
        _require(_is_list_of(content[name], str), name, "a list of texts")
    for name in ("declared_public", "settings"):
        _require(isinstance(content[name], dict), name, "a mapping")
    for name in ("files", "versions"):
        _require(_is_map_of(content[name], str), name, "a mapping of texts")
    for name in ("epsilon", "delta"):
        _require(content[name] is None or _is_number(content[name]), name, "a number or null")
    _require(content["guarantee"] in ("dp", "none"), "guarantee", "dp or none")
    _require(
        _is_whole(content["samples"]) and 0 < content["samples"] <= MOST_SAMPLES,
        "samples",
        f"a whole number from 1 to {MOST_SAMPLES}",
    )
    _require(content["seed"] is None or _is_whole(content["seed"]), "seed", "a whole number or null")
    _require(content["budget"] is None or _is_budget(content["budget"]), "budget", "epsilon and delta, or null")
    _require(_is_accountant(content["accountant"]), "accountant", "pld and rdp")
    _require(_is_ledger(content["ledger"]), "ledger", "the lines of a ledger")
    _check_facts(content)


def _check_facts(content: Mapping[str, Any]) -> None:
    facts = content["declared_public"]
    plain = (
        _is_whole(facts.get("units"))
        and 0 < facts["units"] <= MOST_UNITS
        and facts.get("unit") in ("record", "group")
        and _is_list_of(facts.get("shape"), int)
        and len(facts["shape"]) == 3
        and all(0 < size <= LONGEST_SIDE for size in facts["shape"])
        and _is_list_of(facts.get("class_names"), str)
        and len(facts["class_names"]) > 0
        and facts.get("findings", True) is True
    )
    _require(plain, "declared_public", "units, unit, shape and class_names (and findings: true, where it is there)")
    _require(facts["unit"] == content["unit"], "unit", f"{facts['unit']!r} as in declared_public")
    _require(content["relation"] == RELATION, "relation", RELATION)


def _require(holds: bool, name: str, expected: str) -> None:
    if not holds:
        raise _malformed(f"expected {name} to be {expected}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _is_map_of(value: Any, kind: type) -> bool:
    return isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())


def _is_budget(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"epsilon", "delta"} and all(map(_is_number, value.values()))


def _is_accountant(value: Any) -> bool:
    numbers = isinstance(value, dict) and set(value) == {"pld", "rdp"}
    return numbers and all(number is None or _is_number(number) for number in value.values())


def _is_ledger(value: Any) -> bool:
    return (
        _is_list_of(value, dict)
        and len(value) > 0
        and all(
            set(line) == set(_LINE_TYPES) and all(type(line[key]) is kind for key, kind in _LINE_TYPES.items())
            for line in value
        )
    )
