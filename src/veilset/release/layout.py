"""Which files a release directory holds, and whether they are the ones that its certificate lists."""

import os
import stat
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.release.certificate import Certificate
from veilset.release.pack import size_limit

DATA = "data.npz"
CARD = "card.md"
CERTIFICATE = "certificate.json"
SIGNATURE = "certificate.sig"
MODELS = ("generator", "student", "teacher")

# Far above any real file, and low enough that hashing ends: a hostile release may hold a sparse file of many terabytes.
_LARGEST = {".md": 1 << 22, ".json": 1 << 24, ".safetensors": 1 << 36}
_SHOWN = 10


def weights_file(model: str) -> str:
    """The name of the weights of a model."""
    return f"{model}.safetensors"


def description_file(model: str) -> str:
    """The name of the description that rebuilds a model."""
    return f"{model}.json"


LISTABLE = frozenset({DATA, CARD, *map(weights_file, MODELS), *map(description_file, MODELS)})


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


def entry_problems(path: Path) -> list[str]:
    """Entries that are not plain files. Nothing in the directory should be opened while there are any."""
    problems = []
    with os.scandir(path) as entries:
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                problems.append(f"{entry.name!r} is a symbolic link, which a release never holds.")
            elif not stat.S_ISREG(mode):
                problems.append(f"{entry.name!r} is not a plain file.")
    return sorted(problems)[:_SHOWN]


def file_problems(path: Path, certificate: Certificate) -> list[str]:
    """Files that are missing, altered, too large or not listed; empty when the directory is as certified."""
    problems = _list_problems(set(certificate.files))
    listed = set(certificate.files) | {CERTIFICATE, SIGNATURE}
    unlisted = sorted(name for name in os.listdir(path) if name not in listed)  # noqa: PTH208 (names, not paths)
    problems += [f"{name!r} is in the directory but not in the certificate." for name in unlisted[:_SHOWN]]
    for name, expected in sorted(certificate.files.items()):
        place = path / name
        # A name that is not one of ours may lead out of the directory, so it is never opened.
        if name not in LISTABLE:
            continue
        if not place.is_file():
            problems.append(f"{name} is missing.")
        elif place.stat().st_size > _largest(name, certificate):
            problems.append(f"{name} is larger than anything that the certificate describes. It was not read.")
        elif sha256_of(place) != expected:
            problems.append(f"{name} was altered: its SHA-256 is not the one in the certificate.")
    return problems


def _list_problems(names: set[str]) -> list[str]:
    problems = [f"The certificate lists {name!r}, which a release never holds." for name in sorted(names - LISTABLE)]
    problems += [f"The certificate does not list {name}." for name in (DATA, CARD) if name not in names]
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
    return _LARGEST[Path(name).suffix]
