"""A patient who is at several sites, kept at one: keyed pseudonyms, and an office that shares patients out.

Sites agree on a key and name their patients by HMAC under it. An office without the key (none of the sites, and not the
server's keeper) sees all lists, draws for each patient one of the sites that hold it, and tells every site which of its
own patients to keep. Whoever is on no list, as a patient who came later, takes part nowhere. So the office learns how
many patients sites have in common and no name; a site learns of its own patients which ones another site keeps. Neither
has noise and both stay inside: what is published is the number of the share-out, drawn at random, and what every site
declares anyway.

Privacy: the unit is a patient with all records at all sites. Who keeps a patient depends on that patient's own holders
and on the random number, so taking one patient away everywhere moves no other, and touches the data of one site alone:
the largest epsilon of the sites holds for each patient, instead of a sum. This rests on the word of the sites and of
the office, and the certificate says so.
"""

import hashlib
import hmac
import json
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.pipeline.federated.admission import require_name, require_number, write_secret
from veilset.pipeline.federated.parts import Part

SHARE_OUT = "share_out.json"  # in a site's home
_FORMAT = 1
_KEY_BYTES = 32
_LONGEST = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Pseudonyms:
    """The patients of one site, for the office alone."""

    site: str
    names: tuple[str, ...]

    def save(self, path: Path) -> None:
        """Write it for its owner's eyes."""
        write_secret(path, _written({"pseudonyms": asdict(self)}))

    @classmethod
    def load(cls, path: Path) -> "Pseudonyms":
        """Read `save` back; anything else raises."""
        said = _read(path, "pseudonyms", "Make it with: veilset federate pseudonyms")
        found = cls(site=str(said.get("site")), names=_hashes_in(said.get("names"), path))
        require_name(found.site)
        return found


@dataclass(frozen=True, kw_only=True)
class ShareOut:
    """What one site is told: the share-out's random number, and whom to keep. At home, with the key, too."""

    site: str
    number: str
    keep: tuple[str, ...]
    key: str = ""

    def save(self, path: Path) -> None:
        """Write it for its owner's eyes."""
        write_secret(path, _written({"share_out": asdict(self)}))

    @classmethod
    def load(cls, path: Path) -> "ShareOut":
        """Read `save` back; anything else raises."""
        said = _read(path, "share_out", "Ask the office for it: veilset federate share-out")
        found = cls(
            site=str(said.get("site")),
            number=str(said.get("number")),
            keep=_hashes_in(said.get("keep"), path),
            key=str(said.get("key", "")),
        )
        require_number(found.number)
        return found


def share_out_at(home: Path) -> ShareOut | None:
    """What this site keeps of a share-out that it took part in."""
    return ShareOut.load(home / SHARE_OUT) if (home / SHARE_OUT).exists() else None


def new_key(path: Path) -> None:
    """A new key, for one site to make and to hand to the others."""
    if path.exists():
        raise InputError(f"{path} exists already. All sites need the same key; leave --new-key out to use it.")
    write_secret(path, secrets.token_hex(_KEY_BYTES).encode() + b"\n")


def read_key(path: Path) -> bytes:
    """The key that all sites share."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. One site makes the key with --new-key and hands it to the others.")
    return key_from(path.read_text(encoding="ascii", errors="replace").strip(), str(path))


def key_from(text: str, where: str) -> bytes:
    """A key as it is written down."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise InputError(f"{where} holds no key of {_KEY_BYTES} bytes. One site makes it with --new-key.")
    return key


def pseudonyms_of(records: Records, site: str, key: bytes) -> Pseudonyms:
    """The patients of these records under the key, in an order that says nothing."""
    require_name(site)
    return Pseudonyms(site=site, names=tuple(sorted(set(_named(records, key)))))


def share_out(sites: Sequence[Pseudonyms]) -> list[ShareOut]:
    """Each patient to one of the sites that hold it, by a draw that looks at this patient alone."""
    if len(sites) < 2 or len({site.site for site in sites}) != len(sites):
        raise InputError("Expected the pseudonyms of two or more sites with different names.")
    number = secrets.token_hex(16)
    holders: dict[str, list[str]] = {}
    for site in sites:
        for name in site.names:
            holders.setdefault(name, []).append(site.site)
    keeper = {name: min(held, key=lambda site: _draw(number, site, name)) for name, held in holders.items()}
    return [
        ShareOut(site=site.site, number=number, keep=tuple(name for name in site.names if keeper[name] == site.site))
        for site in sites
    ]


def kept_at(records: Records, told: ShareOut) -> Part:
    """The records of the patients that stay at this site."""
    inside = set(told.keep)
    named = _named(records, key_from(told.key, SHARE_OUT))
    rows = np.flatnonzero([name in inside for name in named])
    if len(rows) == 0:
        raise InputError("Every patient of this site is kept at another one, or came after the lists were made.")
    return Part(records, rows)


def _named(records: Records, key: bytes) -> list[str]:
    """The pseudonym of each record's patient; spaces around a name and forms of the same letter do not count."""
    if records.groups is None:
        raise InputError("Only groups have names that sites can compare. Say whose each image is: --groups-file.")
    known: dict[Any, str] = {}
    for group in records.groups.tolist():
        if group not in known:
            text = unicodedata.normalize("NFKC", str(group)).strip()
            known[group] = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return [known[group] for group in records.groups.tolist()]


def _draw(number: str, site: str, name: str) -> bytes:
    return hashlib.sha256(f"{number}/{site}/{name}".encode()).digest()


def _hashes_in(found: object, path: Path) -> tuple[str, ...]:
    size = 2 * hashlib.sha256().digest_size
    if not isinstance(found, list) or not all(isinstance(name, str) and len(name) == size for name in found):
        raise InputError(f"{path} holds no list of pseudonyms.")
    return tuple(found)


def _written(content: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": _FORMAT, **content}, indent=1).encode() + b"\n"


def _read(path: Path, what: str, advice: str) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"There is no file {path}. {advice}")
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LONGEST))
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not isinstance(found.get(what), dict):
        raise InputError(f"{path} holds no {what.replace('_', '-')}. {advice}")
    said: dict[str, Any] = found[what]
    return said
