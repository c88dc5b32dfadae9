"""What a site of a federation signs: the events that it spent, for whom, under which agreement.

The joint certificate of a federation carries one statement for each site, in the header of its ledger, and lists the
site's events as a shard of the partition "sites". The site's own certificate, with its whole ledger, is part of the
statement. A reader checks without the sites: each signature by the key that stands beside it, the events against the
shard, and the site's certificate against its ledger. Whose key it is, the reader knows by its fingerprint, or by the
public keys that the sites handed out.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError, VeilsetError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.ledger import check_chain
from veilset.release.certificate import Certificate
from veilset.release.certifying import ledger_problems

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

PARTITION = "sites"
_KEYS = {"name", "units", "key", "statement", "signature"}
_STATED = {"site", "agreement", "unit", "units", "epsilon", "delta", "events", "certificate"}
_MOST_SITES = 10_000
_MOST_WORK = 5e6  # in points of `accounting.Work`, for one site
_LARGEST_EPSILON = 1e4


def new_site_key() -> tuple[bytes, str]:
    """A new key pair of a site, made where it stays: the private key and the public one, in OpenSSH's form."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    own = generate_private_key(SECP384R1())
    secret = own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return secret, public_of(own)


def public_of(key: "EllipticCurvePrivateKey") -> str:
    """The public key of a private one, in OpenSSH's form."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def load_site_key(content: bytes) -> "EllipticCurvePrivateKey":
    """A site's private key without a password, in OpenSSH's form or in PEM."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    load = load_ssh_private_key if b"BEGIN OPENSSH" in content else load_pem_private_key
    try:
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"Cannot read the site's key: {error}. Expected OpenSSH's form or PEM.") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise InputError("Expected an elliptic-curve key.")
    return key


def fingerprint_of(public: str) -> str:
    """A short name for a site's public key, to compare by eye or telephone."""
    return "ec:" + hashlib.sha256(" ".join(public.split()[:2]).encode()).hexdigest()[:32]


def signature_of(message: bytes, key: "EllipticCurvePrivateKey") -> str:
    """The signature of a message, in hexadecimal digits."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    return key.sign(message, ECDSA(SHA256())).hex()


def is_signed(message: bytes, signature: Any, public: str) -> bool:
    """Whether the owner of a public key, in OpenSSH's form, signed the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        load_public(public).verify(bytes.fromhex(signature), message, ECDSA(SHA256()))
    except (InvalidSignature, TypeError, ValueError, InputError):
        return False
    return True


def load_public(public: str) -> "EllipticCurvePublicKey":
    """A site's public key, in OpenSSH's form."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(public.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"Not a public key in OpenSSH's form: {error}.") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError("Expected an elliptic-curve public key.")
    return key


def message_of(statement: Mapping[str, Any]) -> bytes:
    """What is signed of a statement."""
    return json.dumps(dict(statement), sort_keys=True, separators=(",", ":")).encode()


def statement_problems(header: Mapping[str, Any], events: Sequence[Event]) -> list[str]:
    """Where the statements in the header of a joint ledger do not hold; nothing for a run that was no federation."""
    sites = header.get("sites")
    if sites is None:
        return []
    if not isinstance(sites, list) or len(sites) > _MOST_SITES:
        return ["The ledger's header does not list the sites of its federation."]
    if any(event.partition != PARTITION for event in events):
        return ["A federation's ledger holds events that are no site's."]
    problems = []
    for shard, found in enumerate(sites):
        if not isinstance(found, dict) or set(found) != _KEYS:
            return ["The ledger's header does not list the sites of its federation."]
        if found["statement"] is not None:
            spent = [replace(event, partition=None, shard=None) for event in events if event.shard == shard]
            problems += _problems(found, spent, header)
    return problems


def statement_notes(header: Mapping[str, Any]) -> list[str]:
    """For the reader: who signed, and who did not."""
    notes = []
    for found in header.get("sites") or []:
        if found["statement"] is None:
            notes.append(f"The site {found['name']} signed nothing; its events are those of the agreement.")
        else:
            notes.append(f"The site {found['name']} signed its events with {fingerprint_of(found['key'])}.")
    return notes


def _problems(found: Mapping[str, Any], spent: Sequence[Event], header: Mapping[str, Any]) -> list[str]:
    name, statement = found["name"], found["statement"]
    if not isinstance(statement, dict) or set(statement) != _STATED or not isinstance(found["key"], str):
        return [f"The statement of the site {name!r} is not of the form expected."]
    problems = []
    if not is_signed(message_of(statement), found["signature"], found["key"]):
        problems.append(f"The statement of the site {name!r} is not signed by its key.")
    if [event.to_json() for event in spent] != statement["events"]:
        problems.append(f"The events of the site {name!r} are not those that it signed.")
    if (statement["site"], statement["units"]) != (name, found["units"]):
        problems.append(f"The statement of the site {name!r} is of another site or other units.")
    if statement["agreement"] != header.get("agreement"):
        problems.append(f"The site {name!r} signed under another agreement.")
    return problems or [f"The certificate of the site {name!r}: {why}" for why in _certificate_problems(statement)]


def _certificate_problems(statement: Mapping[str, Any]) -> list[str]:
    """The site's own certificate against the rest of its statement and against its own ledger."""
    try:
        certificate = Certificate.from_json(statement["certificate"])
        events = check_chain(certificate.ledger)
        problems = ledger_problems(certificate.ledger, events)
        stated = (certificate.guarantee, certificate.epsilon, certificate.delta, certificate.unit)
        if stated != ("dp", statement["epsilon"], statement["delta"], statement["unit"]):
            problems.append("it states other numbers than its site signed.")
        if sorted(map(repr, events)) != sorted(repr(Event.from_json(event)) for event in statement["events"]):
            problems.append("its ledger holds other events than its site signed.")
        if certificate.header.get("agreement") != statement["agreement"]:
            problems.append("its ledger is of another agreement.")
        if problems or certificate.epsilon is None or certificate.delta is None:
            return problems or ["it has no epsilon."]
        cost = epsilon_of(events, certificate.delta, "rdp", most_work=_MOST_WORK)
        if cost <= _LARGEST_EPSILON:
            cost = epsilon_of(events, certificate.delta, "pld", most_work=_MOST_WORK)
        if not certificate.epsilon >= cost * (1 - 1e-6) - 1e-9:
            problems.append(f"it states epsilon {certificate.epsilon:g}, its ledger's events cost {cost:.6g}.")
    except (VeilsetError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return [str(error) or type(error).__name__]
    return problems


def unknown_signers(header: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Sites of a joint ledger that did not sign, or with a key that is not among these public keys."""
    known = {fingerprint_of(key) for key in keys}
    sites = header.get("sites")
    if not isinstance(sites, list):
        return ["It is not of a federation, so no site has signed it."]
    return [
        f"The site {found['name']} has signed with none of the given keys."
        for found in sites
        if found["statement"] is None or fingerprint_of(found["key"]) not in known
    ]
