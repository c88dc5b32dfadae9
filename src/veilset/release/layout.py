"""Which files a release directory holds, and whether they are the ones that its certificate lists."""

import math
import os
import stat
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.release.certificate import Certificate
from veilset.release.pack import size_limit
from veilset.release.shards import shard_limit

DATA = "data.npz"
TABLE = "train.parquet"  # the same images for Hugging Face `datasets`, where they are not too many
LOADING = ".huggingface.yaml"  # of a release in shards: tells `datasets` which files are the data
MANIFEST, SHARDS = "manifest.json", "shards"  # of a release too large for one file
CARD = "card.md"
CROISSANT = "croissant.json"
LABEL = "label.md"
CERTIFICATE = "certificate.json"
SIGNATURE = "certificate.sig"
MODELS = ("generator", "student", "teacher")

# What is read of a stranger's release at all, so that hashing ends: it may hold a sparse file of many terabytes.
MOST_BYTES = 1 << 32
LARGEST_TEXT = 1 << 22
_LARGEST = {".md": LARGEST_TEXT, ".yaml": LARGEST_TEXT, ".json": LARGEST_TEXT, ".safetensors": MOST_BYTES}
_LARGEST_MANIFEST = 1 << 26
_MOST_ENTRIES = 1000
_MOST_SHARDS = 100_000
_SHOWN = 10
# What file managers, Git and hubs leave in a folder. It is no part of the release, and nothing here reads it.
FOREIGN = {".DS_Store", "Thumbs.db", "desktop.ini", ".gitattributes", ".gitignore", "README.md"}


def weights_file(model: str) -> str:
    """The name of the weights of a model."""
    return f"{model}.safetensors"


def description_file(model: str) -> str:
    """The name of the description that rebuilds a model."""
    return f"{model}.json"


LISTABLE = frozenset(
    {DATA, TABLE, MANIFEST, LOADING, CARD, CROISSANT, LABEL, *map(weights_file, MODELS), *map(description_file, MODELS)}
)


def require_directory(path: Path) -> None:
    """Refuse a path that is no directory."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}. Expected the directory of a release, as written by synthesize.")


def require_release(path: Path) -> None:
    """Refuse a path that is no release at all."""
    require_directory(path)
    if not (path / CERTIFICATE).exists():
        raise InputError(f"{path} is not a release: it holds no {CERTIFICATE}.")


def require_readable(path: Path) -> None:
    """Refuse a release that this user may not read: that is no sign of forgery."""
    places = [path, *(path / name for name in (CERTIFICATE, SIGNATURE, SHARDS, *sorted(LISTABLE)))]
    for place in places:
        mode = os.R_OK | (os.X_OK if place in (path, path / SHARDS) else 0)
        if os.path.lexists(place) and not os.access(place, mode):
            raise InputError(f"{place} is not readable for you. Ask its owner to allow it (chmod a+rX), or copy it.")


def entry_problems(path: Path) -> list[str]:
    """Entries that are not plain files. Nothing in the directory should be opened while there are any."""
    folder = path / SHARDS
    in_shards = is_sharded(path) and folder.is_dir() and not folder.is_symlink()
    problems = _entry_problems(path, _MOST_ENTRIES, {SHARDS} if in_shards else set())
    return problems or (_entry_problems(folder, _MOST_SHARDS, set()) if in_shards else [])


def is_sharded(path: Path) -> bool:
    """Whether a release keeps its images in shards."""
    return os.path.lexists(path / MANIFEST)


def _entry_problems(path: Path, most: int, folders: set[str]) -> list[str]:
    problems = []
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number >= most:
                return [f"The directory holds more than {most} entries, which a release never does."]
            mode = entry.stat(follow_symlinks=False).st_mode
            if entry.name in folders:
                continue
            if stat.S_ISLNK(mode):
                problems.append(f"{entry.name!r} is a symbolic link, which a release never holds.")
            elif not stat.S_ISREG(mode):
                problems.append(f"{entry.name!r} is not a plain file.")
    return sorted(problems)[:_SHOWN]


def foreign_files(path: Path) -> list[str]:
    """Files beside the release's own, and among its shards, that do not speak against it."""
    found = [entry.name for entry in path.iterdir() if entry.name in FOREIGN]
    if (path / SHARDS).is_dir():
        found += [f"{SHARDS}/{entry.name}" for entry in (path / SHARDS).iterdir() if entry.name in FOREIGN]
    return sorted(found)


def file_problems(path: Path, certificate: Certificate, *, most_bytes: float = math.inf) -> list[str]:
    """Files that are missing, altered, too large or not listed; empty when the directory is as certified."""
    problems = _list_problems(set(certificate.files))
    folders = {SHARDS} if MANIFEST in certificate.files else set()
    known = {*certificate.files, *folders, CERTIFICATE, SIGNATURE, *FOREIGN}
    unlisted = sorted(name for name in os.listdir(path) if name not in known)  # noqa: PTH208 (names, not paths)
    problems += [f"{name!r} is in the directory but not in the certificate." for name in unlisted[:_SHOWN]]
    for name, expected in sorted(certificate.files.items()):
        place = path / name
        # A name that is not one of ours may lead out of the directory, so it is never opened.
        if name not in LISTABLE:
            continue
        if not place.is_file():
            problems.append(f"{name} is missing.")
            continue
        size = place.stat().st_size
        most_bytes -= size
        if size > _largest(name, certificate):
            problems.append(f"{name} is larger than anything that the certificate describes. It was not read.")
        elif most_bytes < 0:
            problems.append(f"The files are larger than {MOST_BYTES >> 30} GB, so they are too costly to check.")
            break
        elif sha256_of(place) != expected:
            problems.append(f"{name} was altered: its SHA-256 is not the one in the certificate.")
    return problems


def _list_problems(names: set[str]) -> list[str]:
    strange = sorted(names - LISTABLE)[:_SHOWN]
    problems = [f"The certificate lists {name[:100]!r}, which a release never holds." for name in strange]
    needed = CARD if MANIFEST in names else DATA, CARD
    problems += [f"The certificate does not list {name}." for name in dict.fromkeys(needed) if name not in names]
    if {DATA, MANIFEST} <= names:
        problems.append(f"The certificate lists {DATA} and {MANIFEST}, and a release has one of them.")
    problems += [
        f"The certificate lists {name} without {other}, which it belongs to."
        for name, other in ((TABLE, DATA), (LOADING, MANIFEST))
        if name in names and other not in names
    ]
    problems += [
        f"The certificate lists the weights or the description of the {model}, but not both."
        for model in MODELS
        if (weights_file(model) in names) != (description_file(model) in names)
    ]
    return problems


def _largest(name: str, certificate: Certificate) -> int:
    if name == DATA:
        facts = certificate.facts
        return size_limit(certificate.samples, facts.shape, facts.classes)
    if name == TABLE:
        return shard_limit(certificate.samples, certificate.facts.shape, certificate.facts.classes)
    return _LARGEST_MANIFEST if name == MANIFEST else _LARGEST[Path(name).suffix]
