"""manifest.json: the shards of a large release, each with its SHA-256. The certificate lists the manifest's own.

So one signature over certificate.json covers every shard, and any shard can be checked without the others.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veilset.core.errors import VerificationError
from veilset.release import strict_json
from veilset.release.certificate import Certificate
from veilset.release.shards import SUFFIXES, ShardForm

FORMAT_VERSION = 1
MOST_SHARDS = 100_000
_SIZE_LIMIT = 1 << 26
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard: which images it holds, how many of each class, and its hash."""

    name: str
    first: int
    count: int
    labels: tuple[int, ...]  # how many images of each class
    size: int  # in bytes
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All shards in order."""

    form: ShardForm
    shards: tuple[Shard, ...]

    def to_bytes(self) -> bytes:
        """The content of manifest.json."""
        listed = [asdict(shard) for shard in self.shards]
        return strict_json.dump({"format_version": FORMAT_VERSION, "form": self.form, "shards": listed})


def shard_name(number: int, total: int, form: ShardForm) -> str:
    """The file of shard `number` (from 0) of `total`."""
    return f"{number:05d}-of-{total:05d}{SUFFIXES[form]}"


def read_shard_entry(data: Any) -> Shard:
    """One shard as it stands in a manifest; what is not exactly of this form raises `VerificationError`."""
    whole = ("first", "count", "size")
    fine = (
        isinstance(data, dict)
        and set(data) == set(Shard.__dataclass_fields__)
        and all(type(data[name]) is int and data[name] >= (name != "first") for name in whole)
        and isinstance(data["name"], str)
        and isinstance(data["labels"], list)
        and all(type(count) is int and count >= 0 for count in data["labels"])
        and isinstance(data["sha256"], str)
        and _SHA256.fullmatch(data["sha256"]) is not None
        and sum(data["labels"]) == data["count"]
    )
    if not fine:
        raise VerificationError("manifest.json: a shard is not described as shards are.")
    return Shard(**(data | {"labels": tuple(data["labels"])}))


def read_manifest(path: Path, certificate: Certificate) -> Manifest:
    """Read a manifest.json strictly, and hold it to the certificate's number of images and classes."""
    data = strict_json.load(path, _SIZE_LIMIT)
    if not isinstance(data, dict) or set(data) != {"format_version", "form", "shards"}:
        raise VerificationError("manifest.json: expected format_version, form and shards, and nothing else.")
    if data["format_version"] != FORMAT_VERSION or data["form"] not in SUFFIXES:
        raise VerificationError("manifest.json: another version of veilset wrote it, and that version can check it.")
    if not isinstance(data["shards"], list) or not 1 <= len(data["shards"]) <= MOST_SHARDS:
        raise VerificationError(f"manifest.json: expected 1 to {MOST_SHARDS} shards.")
    manifest = Manifest(form=data["form"], shards=tuple(map(read_shard_entry, data["shards"])))
    _require_whole(manifest.shards, manifest.form, certificate)
    return manifest


def _require_whole(shards: Sequence[Shard], form: ShardForm, certificate: Certificate) -> None:
    first = 0
    for number, shard in enumerate(shards):
        if shard.name != shard_name(number, len(shards), form) or shard.first != first:
            raise VerificationError(f"manifest.json: shard {number} is not the one that follows.")
        if len(shard.labels) != certificate.facts.classes:
            raise VerificationError(f"manifest.json: {shard.name} counts {len(shard.labels)} classes.")
        first += shard.count
    if first != certificate.samples:
        raise VerificationError(f"manifest.json: expected {certificate.samples} images, its shards hold {first}.")
