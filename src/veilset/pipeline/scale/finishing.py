"""All units of a run, and the release that their shards make: a manifest, one signature, whole or not at all."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from veilset.core.errors import InputError
from veilset.core.files import require_absent, whole_directory
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.data.opening import open_images
from veilset.methods import METHODS
from veilset.pipeline.checks import lacking_classes
from veilset.pipeline.scale.run_folder import SamplingRun, open_run_folder
from veilset.pipeline.scale.units import Unit, blocks_of, make_unit, read_unit
from veilset.release import layout
from veilset.release.about import About
from veilset.release.certificate import Certificate
from veilset.release.format import describe_shards, seal_directory
from veilset.release.manifest import Manifest, Shard
from veilset.release.shards import ShardForm
from veilset.release.signing import load_private_key

_SHOWN = 5


def default_units(run: SamplingRun) -> int:
    """About ten thousand images to a shard."""
    facts, samples = run.certificate.facts, run.certificate.samples
    return max(1, min(len(blocks_of(Unit(number=0, total=1), samples, facts.classes)), round(samples / 10_000)))


def make_units(
    run: SamplingRun,
    units: Sequence[Unit],
    *,
    form: ShardForm = "webdataset",
    public: str | None = None,
    processes: int = 1,
    progress: Progress = SILENT,
) -> None:
    """Make these units, in this process or in several; `public` names the run's public images, where it used any."""
    left = [unit for unit in units if read_unit(run, unit, form) is None]
    if processes == 1 or len(left) < 2:
        worker = _Worker(run, public)
        for unit in left:
            make_unit(run, worker.fitted, unit, form, progress)
        return
    context = get_context("spawn")
    with (
        ProcessPoolExecutor(
            min(processes, len(left)), mp_context=context, initializer=_begin, initargs=(run.path, public)
        ) as pool,
        progress.task("units", len(left)) as task,
    ):
        for job in as_completed([pool.submit(_make_one, unit, form) for unit in left]):
            job.result()
            task.advance()


class _Worker:
    """A run that was opened once for many units."""

    def __init__(self, run: SamplingRun, public: str | None) -> None:
        if public is None and run.needs_public:
            raise InputError("This run was made with public images. Pass the same ones: --public")
        self.run = run
        self.fitted = run.fitted(None if public is None else _public_images(run, public))


def _public_images(run: SamplingRun, public: str) -> Records:
    """Public images as the run saw them."""
    height, width, channels = run.certificate.facts.shape
    return open_images(public, size=height if height == width else None, channels=channels, needs_classes=False)


def units_of_rank(total: int, rank: int, size: int) -> list[Unit]:
    """The units of one of `size` processes."""
    return [Unit(number=number, total=total) for number in range(rank, total, size)]


def finish(
    run: SamplingRun,
    out: Path,
    *,
    units: int,
    form: ShardForm,
    sign_key: Path | None = None,
    about: About | None = None,
) -> Certificate:
    """Put the shards of all units into a release at `out`, whole or not at all; the run's folder stays."""
    require_absent(out)
    if out.resolve().is_relative_to(run.path.resolve()):
        raise InputError(f"{out} lies inside the run's folder. Choose another --out.")
    key = None if sign_key is None else load_private_key(sign_key)
    found = {unit: read_unit(run, unit, form) for unit in units_of_rank(units, 0, 1)}
    missing = [str(unit) for unit, shard in found.items() if shard is None]
    if missing:
        more = ", ..." if len(missing) > _SHOWN else ""
        raise InputError(
            f"{len(missing)} of {units} units are not made yet: {', '.join(missing[:_SHOWN])}{more}. Make each with: "
            f"veilset sample {run.path} --unit {missing[0]}"
        )
    shards = tuple(shard for shard in found.values() if shard is not None)
    certificate = _with_warnings(run.certificate, shards)
    has_soft = "soft_labels" in METHODS.get(certificate.method).releases
    with whole_directory(out) as building:
        (building / layout.SHARDS).mkdir()
        for shard in shards:
            _placed(run.path / layout.SHARDS / shard.name, building / layout.SHARDS / shard.name)
        for model in layout.MODELS:
            for name in (layout.weights_file(model), layout.description_file(model)):
                if (run.path / name).exists():
                    shutil.copyfile(run.path / name, building / name)
        manifest = Manifest(form=form, shards=shards)
        (building / layout.MANIFEST).write_bytes(manifest.to_bytes())
        describe_shards(building, certificate, about or About(), manifest, has_soft_labels=has_soft)
        sealed = seal_directory(building, certificate, key)
    return sealed  # noqa: RET504 (it is a release when the block has ended)


def _with_warnings(certificate: Certificate, shards: Sequence[Shard]) -> Certificate:
    counts = np.sum([shard.labels for shard in shards], axis=0)
    return replace(certificate, warnings=(*certificate.warnings, *lacking_classes(certificate.facts, counts)))


def _placed(source: Path, place: Path) -> None:
    """The same file at another place; without a second copy where the disk allows it."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copyfile(source, place)


_here: list[_Worker] = []  # of a process that makes units


def _begin(path: Path, public: str | None) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    _here.append(_Worker(open_run_folder(path), public))


def _make_one(unit: Unit, form: ShardForm) -> None:
    make_unit(_here[0].run, _here[0].fitted, unit, form)
