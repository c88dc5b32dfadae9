"""Units of work: which images one process makes, and how it makes them.

The images of a run come in blocks of about a thousand, each with its class quota and its seed, and a unit is a range of
blocks. So an image does not depend on how many units there are or on who makes it, and a unit that died is made again
to the same bytes. That holds for one version of the software on one kind of processor: every block is made by one
thread, because the last bits of a sum change with the number of threads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from veilset.core.errors import InputError, VerificationError
from veilset.core.files import fsync_directory, sha256_of, write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.methods.base import Fitted
from veilset.pipeline.scale.run_folder import SamplingRun
from veilset.release import layout, strict_json
from veilset.release.manifest import MOST_SHARDS, Shard, read_shard_entry, shard_name
from veilset.release.pack import Pack
from veilset.release.shards import ShardForm, write_shard

_BLOCK = 1000  # images, rounded up to a multiple of the classes
_SIZE_LIMIT = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Unit `number` (from 0) of `total`."""

    number: int
    total: int

    @classmethod
    def named(cls, text: str) -> "Unit":
        """`3/100`: the third of a hundred."""
        number, slash, total = text.partition("/")
        fine = slash and number.isascii() and total.isascii() and number.isdecimal() and total.isdecimal()
        if not fine or not 1 <= int(number) <= int(total):
            raise InputError(f"Expected --unit I/N with I from 1 to N, for example 3/100, got {text!r}.")
        return cls(number=int(number) - 1, total=int(total))

    def __str__(self) -> str:
        return f"{self.number + 1}/{self.total}"


def block_size(classes: int) -> int:
    """Images of a block: every class has the same quota in each."""
    return -(-_BLOCK // classes) * classes


def blocks_of(unit: Unit, samples: int, classes: int) -> range:
    """The blocks that a unit makes; units differ by at most one block."""
    blocks = -(-samples // block_size(classes))
    if unit.total > min(blocks, MOST_SHARDS):
        raise InputError(
            f"{samples:,} images are {blocks} blocks of {block_size(classes)}, so there can be at most "
            f"{min(blocks, MOST_SHARDS)} units, got {unit.total}."
        )
    return range(unit.number * blocks // unit.total, (unit.number + 1) * blocks // unit.total)


def make_unit(
    run: SamplingRun, fitted: Fitted, unit: Unit, form: ShardForm = "webdataset", progress: Progress = SILENT
) -> Shard:
    """Make the shard of one unit in the run's folder, unless it is there already and whole."""
    place = run.path / layout.SHARDS / shard_name(unit.number, unit.total, form)
    done = read_unit(run, unit, form)
    if done is not None:
        return done
    facts, samples = run.certificate.facts, run.certificate.samples
    size, blocks = block_size(facts.classes), blocks_of(unit, samples, facts.classes)
    counts = np.zeros(facts.classes, np.int64)
    first = blocks.start * size
    count = min(samples, blocks.stop * size) - first

    def packs() -> Iterator[Pack]:
        with progress.task(f"unit {unit}", count) as task, one_thread():
            for block in blocks:
                pack = _block(fitted, run, block, min(size, samples - block * size))
                counts[:] += np.bincount(pack.labels, minlength=facts.classes)
                yield pack
                task.advance(len(pack.labels))

    place.parent.mkdir(exist_ok=True)
    building = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        write_shard(building, packs(), facts.class_names, first=first, form=form)
        with building.open("rb") as file:
            os.fsync(file.fileno())
        shard = Shard(
            name=place.name,
            first=first,
            count=count,
            labels=tuple(counts.tolist()),
            size=building.stat().st_size,
            sha256=sha256_of(building),
        )
        building.replace(place)
        fsync_directory(place.parent)
    finally:
        building.unlink(missing_ok=True)
    write_whole(_note(place), strict_json.dump(asdict(shard)))
    return shard


def read_unit(run: SamplingRun, unit: Unit, form: ShardForm) -> Shard | None:
    """What is known of a finished unit; None where it was not made, or died on the way."""
    place = run.path / layout.SHARDS / shard_name(unit.number, unit.total, form)
    if not place.is_file() or not _note(place).is_file():
        return None
    try:
        shard = read_shard_entry(strict_json.load(_note(place), _SIZE_LIMIT))
    except VerificationError:
        return None
    is_whole = shard.name == place.name and place.stat().st_size == shard.size and sha256_of(place) == shard.sha256
    return shard if is_whole else None


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, whatever the machine has."""
    from veilset.training.threads import set_thread_count

    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    set_thread_count()
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
        set_thread_count()


def _block(fitted: Fitted, run: SamplingRun, block: int, count: int) -> Pack:
    samples = fitted.sample(count, derive_seed(run.certificate.seed or 0, f"block {block}"))
    if len(samples.labels) != count:
        raise InputError(f"Expected {count} images of a block, got {len(samples.labels)}. This method has a fixed set.")
    return Pack(images=samples.images, labels=samples.labels, soft_labels=samples.soft_labels)


def _note(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")
