"""A release in shards, read: one shard after the other, all into arrays, or some of them to check."""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import VeilsetError
from veilset.core.files import sha256_of
from veilset.privacy.vault import PublicFacts
from veilset.release import layout
from veilset.release.certificate import Certificate, read_certificate
from veilset.release.manifest import Manifest, Shard, read_manifest
from veilset.release.metadata.croissant import NPZ, PARQUET, TAR, DataFile
from veilset.release.pack import Pack
from veilset.release.shards import ShardForm, read_shard, shard_limit
from veilset.training.threads import usable_cores

_IN_MEMORY = 2**30  # bytes of images; more are kept in a file that goes with the process
_WORTH_PROCESSES = 2**27  # bytes of shards; below, starting processes takes longer than checking
_SHOWN = 10
MOST_DESCRIBED = 5000  # shards in a Croissant description, which would be too long to read; the manifest has all


@dataclass(frozen=True)
class _Task:
    """One shard to check, with all that it takes: it may go to another process."""

    folder: Path
    form: ShardForm
    shard: Shard
    facts: PublicFacts

    def pack(self) -> Pack:
        """Its images."""
        shard, facts = self.shard, self.facts
        place = self.folder / shard.name
        return read_shard(place, self.form, facts.shape, facts.classes, first=shard.first, count=shard.count)


def stream_packs(path: str | Path) -> Iterator[Pack]:
    """The images of a release in shards, shard by shard, each checked against its hash; only one is in memory."""
    path = Path(path)
    certificate = read_certificate(path / layout.CERTIFICATE)
    for task in _tasks(path, certificate, read_manifest(path / layout.MANIFEST, certificate)):
        problems = _problems(task)
        if problems:
            raise VeilsetError(f"{path} is not as it was published. " + " ".join(problems))
        yield task.pack()


def read_sharded(path: Path, certificate: Certificate) -> Pack:
    """All images of a release in shards. Large ones lie in a file of the disk that goes when nobody holds them."""
    manifest = read_manifest(path / layout.MANIFEST, certificate)
    facts, total = certificate.facts, certificate.samples
    images = _room((total, *facts.shape), np.uint8)
    labels, soft = np.empty(total, np.int64), None
    for task in _tasks(path, certificate, manifest):
        pack, rows = task.pack(), slice(task.shard.first, task.shard.first + task.shard.count)
        images[rows], labels[rows] = pack.images, pack.labels
        if pack.soft_labels is not None:
            soft = _room((total, facts.classes), np.float32) if soft is None else soft
            soft[rows] = pack.soft_labels
        elif soft is not None:
            raise VeilsetError(f"{task.shard.name} has no soft labels, and earlier shards have.")
    return Pack(images=images, labels=labels, soft_labels=soft)


def data_file(folder: Path, name: str, form: str) -> DataFile:
    """A file of a release's images, as its Croissant description names it."""
    place = folder / name
    return DataFile(name=name, sha256=sha256_of(place), size=place.stat().st_size, format=form)


def shard_files(manifest: Manifest) -> list[DataFile]:
    """The shards of a manifest, as a Croissant description names them."""
    form = TAR if manifest.form == "webdataset" else PARQUET
    return [
        DataFile(name=f"{layout.SHARDS}/{shard.name}", sha256=shard.sha256, size=shard.size, format=form)
        for shard in manifest.shards[:MOST_DESCRIBED]
    ]


def data_files(path: Path, certificate: Certificate) -> list[DataFile]:
    """The files of a release's images."""
    if layout.MANIFEST not in certificate.files:
        tables = [data_file(path, layout.TABLE, PARQUET)] if layout.TABLE in certificate.files else []
        return [data_file(path, layout.DATA, NPZ), *tables]
    return shard_files(read_manifest(path / layout.MANIFEST, certificate))


def shard_problems(
    path: Path, certificate: Certificate, manifest: Manifest, chosen: Sequence[int], *, whole: bool
) -> list[str]:
    """What is wrong with these shards, each checked on its own, several at once; `whole` reads their images, too."""
    every = _tasks(path, certificate, manifest)
    tasks = [every[number] for number in chosen]
    check = _problems_within if whole else _problems
    workers = min(usable_cores(), len(tasks))
    if workers < 2 or sum(task.shard.size for task in tasks) < _WORTH_PROCESSES:
        found = map(check, tasks)
        return [problem for problems in found for problem in problems][:_SHOWN]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [problem for problems in pool.map(check, tasks) for problem in problems][:_SHOWN]


def _tasks(path: Path, certificate: Certificate, manifest: Manifest) -> list[_Task]:
    folder, facts = path / layout.SHARDS, certificate.facts
    return [_Task(folder, manifest.form, shard, facts) for shard in manifest.shards]


def _problems(task: _Task) -> list[str]:
    """The file of a shard against the manifest."""
    shard, place = task.shard, task.folder / task.shard.name
    if place.is_symlink() or not place.is_file():
        return [f"{shard.name} is missing."]
    if place.stat().st_size != shard.size or shard.size > shard_limit(
        shard.count, task.facts.shape, task.facts.classes
    ):
        return [f"{shard.name} is not of the size that it should be. It was not read."]
    if sha256_of(place) != shard.sha256:
        return [f"{shard.name} was altered: its SHA-256 is not the one in the manifest."]
    return []


def _problems_within(task: _Task) -> list[str]:
    """As `_problems`, and the images and labels themselves."""
    problems = _problems(task)
    if problems:
        return problems
    try:
        pack = task.pack()
    except (VeilsetError, MemoryError) as error:
        return [str(error) or f"{task.shard.name} is too large to read."]
    counts = np.bincount(pack.labels, minlength=task.facts.classes)
    return [] if tuple(counts) == task.shard.labels else [f"{task.shard.name} has other labels than the manifest says."]


def _room(shape: tuple[int, ...], kind: type[Any]) -> NDArray[Any]:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
    if size <= _IN_MEMORY:
        return np.empty(shape, kind)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return np.asarray(np.memmap(file, dtype=kind, mode="r+", shape=shape))
