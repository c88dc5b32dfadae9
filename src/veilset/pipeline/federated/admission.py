"""How a site comes into a federation: it asks, the server's keeper admits it, and the invitation says where to go.

A site makes its key at home and never sends it. Its request says what the custodian declares, signed with that key, as
a certificate signing request does. The keeper gathers requests into one agreement (`agreement.py`) and sends everybody
an invitation: the agreement, the server's address and the authority that vouches for the server. Address and authority
may change later without touching the agreement, so a new certificate costs no privacy and no new plan.

Nothing in a request or an invitation is secret. Both are read as hostile input.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.pipeline.federated.agreement import Agreement, Member
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts, Unit
from veilset.release.statements import (
    fingerprint_of,
    is_signed,
    load_public,
    load_site_key,
    message_of,
    new_site_key,
    public_of,
    signature_of,
)

KEY, REQUEST = "site.key", "request.json"
_FORMAT = 1
_LONGEST = 1 << 22
_LONGEST_NAME = 64
_NUMBER_LENGTH = 32
_SAME = ("veilset", "flwr", "torch")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a custodian declares to join: all of it will be public."""

    name: str
    key: str
    units: int
    unit: Unit
    epsilon: float
    delta: float
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    share_out: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name(self.name)
        load_public(self.key)
        Budget(self.epsilon, self.delta).check_against(self.units)
        if self.unit not in ("record", "group") or self.units < 1:
            raise InputError("Expected a number of units that are records or groups.")
        if self.share_out:
            require_number(self.share_out)
            if self.unit != "group":
                raise InputError("Only groups are shared out between sites, and this request is for records.")

    @property
    def member(self) -> Member:
        """As it stands in an agreement, but for the noise, which follows from all sites."""
        return Member(
            name=self.name,
            key=self.key,
            units=self.units,
            epsilon=self.epsilon,
            delta=self.delta,
            share_out=self.share_out,
        )

    @property
    def fingerprint(self) -> str:
        """Of its key, to compare by telephone."""
        return fingerprint_of(self.key)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Request":
        """Read a request; one that its own key did not sign raises."""
        found = _parsed(content, "a request to join", {"format", "request", "signature"})
        said = found["request"]
        if not isinstance(said, dict) or not is_signed(message_of(said), found["signature"], str(said.get("key"))):
            raise InputError("This request is not signed by the key that it names. Ask the site to make it again.")
        try:
            height, width, channels = map(int, said["shape"])
            return cls(
                name=str(said["name"]),
                key=str(said["key"]),
                units=int(said["units"]),
                unit=cast("Unit", str(said["unit"])),
                epsilon=float(said["epsilon"]),
                delta=float(said["delta"]),
                shape=(height, width, channels),
                class_names=tuple(map(str, said["class_names"])),
                share_out=str(said["share_out"]),
                versions={str(name): str(value) for name, value in said["versions"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"This is not a request to join: {type(error).__name__} {error}.") from error


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """For one site: where the server is, who vouches for it, and what all have agreed on."""

    site: str
    address: str
    authority: str  # certificates in PEM
    agreement: Agreement

    def to_bytes(self) -> bytes:
        """The content of an invitation's file."""
        said = {"format": _FORMAT, **vars(self), "agreement": self.agreement.to_bytes().decode()}
        return json.dumps(said, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> "Invitation":
        """Read `to_bytes` back; anything else raises."""
        found = _parsed(content, "an invitation", {"format", "site", "address", "authority", "agreement"})
        if not all(isinstance(found[name], str) for name in ("site", "address", "authority", "agreement")):
            raise InputError("This is not an invitation: expected texts.")
        host_and_port(found["address"], "an address in the invitation as")
        agreement = Agreement.from_bytes(found["agreement"].encode())
        return cls(site=found["site"], address=found["address"], authority=found["authority"], agreement=agreement)

    def check(self, request: Request) -> None:
        """Refuse an agreement that is not about what this site declared, or that other code would carry out.

        Privacy: the server writes the agreement, so epsilon, delta, units and key are compared with the site's own.
        """
        agreement, member = self.agreement, self.agreement.member(request.name)
        if self.site != request.name:
            raise InputError(
                f"This invitation is for the site {self.site}, and the request at home is of {request.name}."
            )
        for name, own in asdict(request.member).items():
            if name != "noise" and getattr(member, name) != own:
                raise InputError(
                    f"The agreement says {name} {getattr(member, name)} of this site, and its request says {own}. "
                    "Do not start; ask the server's keeper to admit the request as it is."
                )
        ours = (request.unit, tuple(request.shape), tuple(request.class_names))
        if ours != (agreement.unit, tuple(agreement.shape), tuple(agreement.class_names)):
            raise InputError("The agreement is about another unit, other image shapes or classes than the request.")
        for name, other in version_differences(agreement.versions).items():
            if name != "torch":
                raise InputError(f"The agreement was made with {name} {other}, and this site has {versions()[name]}.")
        agreement.plan_of(member)  # raises where it would cost more than was declared


def make_request(
    home: Path,
    facts: PublicFacts,
    *,
    name: str,
    epsilon: float,
    delta: float | None,
    key: bytes | None = None,
    share_out: str = "",
) -> Request:
    """Make a site's key, unless it has one, and write its request; both stay in `home`, and only the latter is sent."""
    if facts.findings:
        raise InputError("A federation takes images with one class each, and these have findings.")
    require_name(name)
    if (home / REQUEST).exists():
        raise InputError(f"{home / REQUEST} exists already. Choose another --home; one home is for one federation.")
    secret, public = new_site_key() if key is None else (key, public_of(load_site_key(key)))
    request = Request(
        name=name,
        key=public,
        units=facts.units,
        unit=facts.unit,
        epsilon=epsilon,
        delta=Budget.for_units(epsilon, delta, facts.units, facts.unit).delta,
        shape=facts.shape,
        class_names=facts.class_names,
        share_out=share_out,
        versions=versions(),
    )
    home.mkdir(parents=True, exist_ok=True)
    write_secret(home / KEY, secret)
    said = json.loads(json.dumps(asdict(request)))
    signature = signature_of(message_of(said), load_site_key(secret))
    write_whole(home / REQUEST, _written({"format": _FORMAT, "request": said, "signature": signature}))
    return request


def read_request(path: Path) -> Request:
    """A request's file."""
    return Request.from_bytes(_read(path, "Make it with: veilset federate join-request"))


def read_invitation(path: Path) -> Invitation:
    """An invitation's file."""
    return Invitation.from_bytes(_read(path, "Ask the server's keeper for it: veilset federate admit"))


def host_and_port(address: str, option: str) -> tuple[str, int]:
    """`HOST:PORT` as two; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or not port.isdecimal() or not 0 < int(port) < 1 << 16 or (":" in bare) != (bare != host):
        raise InputError(f"Expected {option} HOST:PORT, got {address!r}.")
    return bare, int(port)


def require_name(name: str) -> None:
    """Refuse a name that is not fit for files and logs."""
    fits = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and len(name) <= _LONGEST_NAME
    if not fits:
        raise InputError(f"Expected a site name of letters, digits, - and _, got {name!r}.")


def require_number(share_out: str) -> None:
    """Refuse what is not the random number of a share-out."""
    if len(share_out) != _NUMBER_LENGTH or not set(share_out) <= set("0123456789abcdef"):
        raise InputError(f"Expected the number of a share-out, got {share_out[:80]!r}.")


def versions() -> dict[str, str]:
    """Of what decides how a question is worked out and how it travels."""
    found = {"python": platform.python_version()}
    for name in _SAME:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def version_differences(theirs: Mapping[str, str]) -> dict[str, str]:
    """Versions of the other end that are not this one's."""
    own = versions()
    return {name: theirs[name] for name in _SAME if name in theirs and theirs[name] != own[name]}


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(content)


def _read(path: Path, advice: str) -> bytes:
    if not path.is_file():
        raise InputError(f"There is no file {path}. {advice}")
    with path.open("rb") as file:
        return file.read(_LONGEST)


def _written(content: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(content), indent=1, sort_keys=True).encode() + b"\n"


def _parsed(content: bytes, what: str, keys: set[str]) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise InputError(f"This is not {what}: {error}.") from error
    if not isinstance(found, dict) or set(found) != keys or found["format"] != _FORMAT:
        raise InputError(f"This is not {what} of this version of veilset.")
    return found
