"""Files that appear whole or not at all."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from veilset.core.errors import InputError, VeilsetError

if TYPE_CHECKING:
    from torch import Tensor


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
            path.chmod(0o644)  # some writers leave files that only their owner may read
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_directory(root)


def require_absent(path: Path) -> None:
    """Refuse an output place that exists, before any work is done."""
    if path.exists():
        raise InputError(f"{path} exists already. Choose another --out or move it away; nothing was changed.")


def require_room(path: Path, size: int) -> None:
    """Refuse a place that cannot be written to or has less than `size` bytes free, before any work is done.

    Nothing stays: folders that are missing are not made.
    """
    there = path.parent
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=there)).rmdir()
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise InputError(f"Cannot write to {there}: {error.strerror}. Choose another place.") from error
    if free < size:
        raise InputError(
            f"{there} has {free / 2**20:,.0f} MB free, and {path.name} may need {size / 2**20:,.0f}. Free some "
            "space or choose another place."
        )


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


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to fill; it gets its name only when the block ends well, and vanishes otherwise."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        building = Path(folder) / path.name
        yield building
        with building.open("rb") as file:
            os.fsync(file.fileno())
        require_absent(path)
        building.rename(path)
        fsync_directory(path.parent)


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


def save_tensors(tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Write tensors as safetensors. A full disk is an OSError here, as it is for any other file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Tensors that share memory cannot be stored as such; a copy of each can.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:
        told = re.search(r"os error (\d+)", str(error))
        code = int(told[1]) if told else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
