"""`.npz` packs: `images` and `labels`, or `SPLIT_images` and `SPLIT_labels`. Nothing in them is ever unpickled.

The zip directory and each array's header are checked before anything is unpacked, so that neither a
decompression bomb nor a header that promises terabytes gets hold of the memory.
"""

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Groups
from veilset.core.registry import unknown_name
from veilset.data.archives.listing import ONE_CLASS
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.findings import labelled
from veilset.data.guards import LARGEST_BYTES, refuse_bomb
from veilset.data.images import ImageSet

_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError, RuntimeError)


def read_npz(
    path: Path,
    split: str | None,
    *,
    labels: str = "labels",
    groups: str | None = None,
    classes: tuple[str, ...] | None = None,
    reading: Reading = PLAIN,
    needs_classes: bool = True,
    largest_bytes: int = LARGEST_BYTES,
) -> ImageSet:
    """The records of one split of a pack; without a split, its `images` and `labels`.

    Labels of two dimensions are findings. Their names are those of an array beside them, `attr_names` for `attrs`.
    """
    try:
        with zipfile.ZipFile(path) as pack:
            members = {
                info.filename.removesuffix(".npy"): info for info in pack.infolist() if info.filename.endswith(".npy")
            }
            prefix = _prefix(path, split, list(members))
            needed = {"images": prefix + "images"} | ({"groups": prefix + groups} if groups else {})
            if needs_classes or prefix + labels in members:
                needed["labels"] = prefix + labels
            for name in needed.values():
                if name not in members:
                    raise unknown_name(f"array of {path.name}", name, list(members))
            called = next((name for name in _names_of(labels, prefix) if name in members), None)
            infos = {what: members[name] for what, name in (needed | ({"names": called} if called else {})).items()}
            sizes = [(info.file_size, info.compress_size) for info in infos.values()]
            refuse_bomb(str(path), sum(size for size, _ in sizes), sum(size for _, size in sizes), largest_bytes)
            arrays = {what: _read_array(pack, info, path) for what, info in infos.items()}
    except _DAMAGE as error:
        raise InputError(f"{path} is damaged or not an .npz pack ({error}). Copy it again or re-create it.") from error
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
    images = arrays["images"]
    who = _groups(arrays["groups"]) if groups else None
    if "labels" not in arrays:
        return ImageSet(images, np.zeros(len(images), np.int64), (ONE_CLASS,), who)
    values = _column(arrays["labels"])
    columns = [str(name) for name in arrays["names"].ravel()] if called and values.ndim == 2 else None
    found = labelled(values, classes, columns, reading)
    if len(found.rows) < len(values):  # --uncertain drop
        images, who = images[found.rows], None if who is None else who[found.rows]
    return ImageSet(images, found.labels, found.names, who)


def _names_of(labels: str, prefix: str) -> list[str]:
    """What an array with the names of findings may be called."""
    stems = dict.fromkeys((labels, labels.removesuffix("s")))
    return [f"{before}{stem}_names" for before in dict.fromkeys((prefix, "")) for stem in stems]


def _prefix(path: Path, split: str | None, names: list[str]) -> str:
    splits = [name.removesuffix("_images") for name in names if name.endswith("_images")]
    if split is None and "images" in names:
        return ""
    if split in splits:
        return f"{split}_"
    if split is not None and "images" in names and not splits:
        raise InputError(f"{path} has no splits, and so no {split!r}: it is one set. Pass {path} alone.")
    if not splits:
        raise InputError(
            f"{path} has no arrays called images and labels, or SPLIT_images and SPLIT_labels. "
            f"It holds: {', '.join(names) or 'nothing'}."
        )
    wanted = "" if split is None else f" {split!r}"
    raise InputError(
        f"Expected a split{wanted} of {path.name} among {', '.join(splits)}. Pass {path}:{splits[0]}, for example."
    )


def _read_array(pack: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    with pack.open(info) as member:
        version = npy.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = npy.read_array_header_2_0(member)
        else:
            raise InputError(f"{info.filename} of {path} has npy version {version}; 1.0 and 2.0 are read.")
        if dtype.hasobject:
            raise InputError(
                f"{info.filename} of {path} holds Python objects, which only pickle can read and may run code. "
                "Save it as a plain array."
            )
        promised = int(np.prod(shape, dtype=object)) * dtype.itemsize
        held = info.file_size - member.tell()
        if promised != held:
            raise InputError(
                f"{info.filename} of {path} promises {promised:,} bytes and holds {held:,}. Re-create the pack."
            )
    with pack.open(info) as member:
        array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
    return array


def _column(labels: NDArray[Any]) -> NDArray[Any]:
    # MedMNIST packs hold labels of shape (N, 1).
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _groups(groups: NDArray[Any]) -> Groups:
    return _column(groups)
