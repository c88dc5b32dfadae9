"""WebDataset: tar shards in which the files of one sample follow each other under one stem.

A sample has an image (png, jpg, ...), and a class in a file `cls` or in its `json`; `--labels` and `--groups` name
other keys of the json. Shards are listed once, by their headers; of the images nothing stays in memory.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.data.archives.listing import ONE_CLASS, Request
from veilset.data.archives.table import values_of
from veilset.data.classes import index_labels
from veilset.data.decoding import UndecodableError
from veilset.data.groups import checked_groups
from veilset.data.streaming import Picture, StreamedImages, picture_of

_IMAGES = ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "ppm", "pgm")
_LARGEST_IMAGE = 2**28
_LARGEST_TEXT = 2**20


@dataclass(slots=True)
class _Sample:
    """Where the image of a sample lies, and what its other files say."""

    shard: int
    name: str  # of the image in its shard
    offset: int
    size: int
    label: str
    group: str | None


def is_webdataset(path: Path) -> bool:
    """Whether this is a tar shard, or a folder with tar shards and no folders."""
    return path.suffix == ".tar" or (path.is_dir() and bool(shard_files(path)))


def shard_files(folder: Path) -> list[Path]:
    """The tar shards of a folder, or of its `shards` sub-folder."""
    return sorted(folder.glob("*.tar")) or sorted(folder.glob("shards/*.tar"))


def open_webdataset(path: Path, split: str | None, request: Request) -> StreamedImages:
    """Check every image of a shard, or of a folder of shards, once and keep them open for reading by row."""
    if split is not None:
        raise InputError(f"{path} has no splits; {split!r} does not apply. Name a folder of shards for each.")
    files = [path] if path.is_file() else shard_files(path)
    samples = [sample for number, file in enumerate(files) for sample in _listed(number, file, request)]
    if not samples:
        raise InputError(f"{path} holds no images. Expected tar shards with an image and a class for each sample.")
    values = values_of([sample.label for sample in samples])
    indices, class_names = index_labels(values, request.classes)
    who: NDArray[Any] | None = None
    if request.groups is not None:
        who = checked_groups(values_of([str(sample.group) for sample in samples]), len(indices))
    rows = request.limit.rows(
        indices, class_names, who, lambda: [f"{files[s.shard].name}:{s.name}".encode() for s in samples]
    )
    return StreamedImages(
        _Images(files, [samples[row] for row in rows]),
        indices[rows],
        class_names,
        None if who is None else who[rows],
        request.form,
        request.progress,
        skip_bad=request.reading.skip_bad,
    )


class _Images:
    """Images by row, each read from its place in its shard."""

    def __init__(self, files: list[Path], samples: list[_Sample]) -> None:
        self._files, self._samples = files, samples

    def name(self, row: int) -> str:
        sample = self._samples[row]
        return f"{sample.name} in {self._files[sample.shard].name}"

    def picture(self, row: int) -> Picture:
        sample = self._samples[row]
        if sample.size > _LARGEST_IMAGE:
            raise UndecodableError(f"a file of {sample.size >> 20} MB")
        with self._files[sample.shard].open("rb") as file:
            file.seek(sample.offset)
            return picture_of(file.read(sample.size))


def _listed(number: int, path: Path, request: Request) -> Iterator[_Sample]:
    """The samples of one shard."""
    stem, parts = "", dict[str, tuple[str, int, int, bytes]]()
    try:
        with tarfile.open(path, "r:") as shard:
            for entry in shard:
                shard.members = []  # type: ignore[attr-defined]  # it would keep one for every entry
                if not entry.isreg():
                    continue
                folder, _, name = entry.name.rpartition("/")
                own, _, ending = name.partition(".")
                if f"{folder}/{own}" != stem:
                    yield from _sample(number, path, parts, request)
                    stem, parts = f"{folder}/{own}", {}
                is_text = ending in ("cls", "json") and entry.size <= _LARGEST_TEXT
                content = shard.extractfile(entry) if is_text else None
                parts[ending.lower()] = (
                    entry.name,
                    entry.offset_data,
                    entry.size,
                    b"" if content is None else content.read(),
                )
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as a tar file: {error}. Shards must not be compressed.") from error
    yield from _sample(number, path, parts, request)


def _sample(
    number: int, path: Path, parts: dict[str, tuple[str, int, int, bytes]], request: Request
) -> Iterator[_Sample]:
    images = [parts[ending] for ending in _IMAGES if ending in parts]
    if not images:
        return  # a file beside the samples
    name, offset, size, _ = images[0]
    if len(images) > 1:
        raise InputError(f"{name} in {path.name} has {len(images)} images in one sample, and one is expected.")
    about = _json(parts["json"][3], name, path) if "json" in parts else {}
    wanted = request.labels or "label"
    if request.labels is None and "cls" in parts:
        label: Any = parts["cls"][3].decode("utf-8", "replace").strip()
    elif wanted in about:
        label = about[wanted]
    elif not request.needs_classes:
        label = ONE_CLASS
    else:
        raise InputError(f"{name} in {path.name} has no class: expected a file .cls, or {wanted!r} in its .json.")
    if isinstance(label, bool) or not isinstance(label, int | str) or str(label) == "":
        raise InputError(f"{name} in {path.name}: expected a class number or a name, got {label!r}.")
    group = None
    if request.groups is not None:
        if not isinstance(about.get(request.groups), int | str):
            raise InputError(f"{name} in {path.name} has no {request.groups!r} in its .json to group by.")
        group = str(about[request.groups])
    yield _Sample(number, name, offset, size, str(label), group)


def _json(content: bytes, name: str, path: Path) -> dict[str, Any]:
    try:
        about = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The .json of {name} in {path.name} cannot be read: {error}.") from error
    if not isinstance(about, dict):
        raise InputError(f"The .json of {name} in {path.name} does not hold a table of names and values.")
    return about
