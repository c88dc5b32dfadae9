"""Files that appear whole or not at all."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from veilset.core.errors import InputError, VeilsetError


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_directory(path: Path) -> None:
    """Make renames and new names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fsync_tree(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_directory(root)


def require_absent(path: Path) -> None:
    """Refuse an output place that exists, before any work is done."""
    if path.exists():
        raise InputError(f"{path} exists already. Choose another --out or move it away; nothing was changed.")


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill; it gets its name only when the block ends well, and vanishes otherwise."""
    require_absent(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InputError(f"Cannot write to {path.parent}: {error.strerror}. Choose another --out.") from error
    try:
        yield building
        _fsync_tree(building)
        building.chmod(0o755)
        require_absent(path)
        building.rename(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise VeilsetError(f"Could not write {path}: {error.strerror}. Nothing was left behind.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    building = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        building.chmod(0o644)
        building.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise VeilsetError(f"Could not write {path}: {error.strerror}. Nothing was left behind.") from error
    finally:
        building.unlink(missing_ok=True)
