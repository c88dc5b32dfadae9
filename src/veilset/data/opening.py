"""`open_images`: one door for every kind of source."""

import difflib
from dataclasses import replace
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.core.registry import resolve
from veilset.data.archives.listing import Request
from veilset.data.archives.reading import PLAIN, Reading
from veilset.data.archives.survey import survey
from veilset.data.builtin import read_builtin, require_builtin
from veilset.data.decoding import Form
from veilset.data.folder import open_folder
from veilset.data.idx import idx_splits, read_idx
from veilset.data.images import ImageSet
from veilset.data.npz import read_npz
from veilset.data.parquet import open_parquet, parquet_files
from veilset.data.selection import Limit
from veilset.data.tally import Tally
from veilset.data.webdataset import is_webdataset, open_webdataset

_BUILTIN = "builtin:"
_READERS = {  # loaded when such files are there
    "dicom": "veilset.data.archives.dicom:open_dicom",
    "nifti": "veilset.data.archives.nifti:open_nifti",
}


def open_images(
    source: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    labels: str | None = None,
    groups: str | None = None,
    classes: tuple[str, ...] | None = None,
    seed: int = 0,
    reading: Reading = PLAIN,
    progress: Progress = SILENT,
    needs_classes: bool = True,
    groups_file: str | Path | None = None,
) -> Records:
    """Open `PATH[:SPLIT]` of an .npz pack, a folder of images, DICOM, NIfTI, IDX, parquet or tars, or `builtin:NAME`.

    Args:
        source: where the images are.
        size: resize to `size` x `size` pixels.
        channels: convert to grey (1) or colour (3).
        limit: keep about so many records (groups, where they are known), each by its own hash (data/selection.py).
        labels: another array or column of labels.
        groups: the array or column that says to whom each image belongs.
        classes: the label values in order, or names for labels that are 0..K-1 already.
        seed: of the hash for `limit`.
        reading: rules for archives: frames of DICOM files, findings, ... (data/archives/reading.py).
        progress: where the checking pass of folders and parquet is reported, and what was left out.
        needs_classes: whether images without classes are refused. Public images can do without: they are one class.
        groups_file: a CSV with path,group that says to whom each image of a folder belongs.

    >>> import veilset as vs
    >>> vs.open_images("builtin:digits:test", size=20)
    ImageSet(359 images 20x20x1, 10 classes)
    """
    if groups_file is not None:
        reading = replace(reading, groups_file=Path(groups_file))
    request = Request(
        form=Form(size=size, channels=channels),
        limit=Limit(count=limit, seed=seed),
        labels=labels,
        groups=groups,
        classes=classes,
        reading=reading,
        progress=progress,
        needs_classes=needs_classes,
    )
    records = _open(str(source), request)
    for line in tally.lines() if isinstance(tally := getattr(records, "tally", None), Tally) else ():
        progress.note(line)
    # Set once, here, because only this door knows the path; an ImageSet is frozen for everybody else.
    object.__setattr__(records, "origin", origin_of(source))
    return records


def require_source(source: str) -> None:
    """Refuse a data argument that names nothing, without reading what it names."""
    if source.startswith(_BUILTIN):
        require_builtin(source.removeprefix(_BUILTIN).partition(":")[0])
    else:
        _path_and_split(source)


def origin_of(source: str | Path) -> str:
    """The absolute name of a data argument, whatever view of it is taken."""
    text = str(source)
    if text.startswith(_BUILTIN):
        return text
    path, part = _path_and_split(text)
    return str(path.resolve()) + ("" if part is None else f":{part}")


def _open(text: str, request: Request) -> Records:
    if request.reading.groups_file is not None:
        _require_image_files(text)
    if text.startswith(_BUILTIN):
        name, _, split = text.removeprefix(_BUILTIN).partition(":")
        _refuse_names(text, request)
        return _brought_to(read_builtin(name, split or None, request.classes), request)
    path, part = _path_and_split(text)
    if path.is_dir() and idx_splits(path):
        _refuse_names(text, request)
        return _brought_to(read_idx(path, part, classes=request.classes), request)
    if path.suffix == ".parquet" or (path.is_dir() and parquet_files(path)):
        return open_parquet(path, part, request)
    if is_webdataset(path):
        return open_webdataset(path, part, request)
    if path.is_dir():
        return _open_files(path, part, request)
    if path.suffix == ".npz":
        pack = read_npz(
            path,
            part,
            labels=request.labels or "labels",
            groups=request.groups,
            classes=request.classes,
            reading=request.reading,
            needs_classes=request.needs_classes,
        )
        return _brought_to(pack, request)
    raise InputError(
        f"Cannot tell what {path} is. Expected an .npz pack, a .parquet file, a WebDataset .tar, or a folder of "
        "images, DICOM, NIfTI, IDX, parquet or tar shards."
    )


def _open_files(path: Path, part: str | None, request: Request) -> Records:
    """A folder of files that are images, DICOM or NIfTI."""
    request.progress.note(f"Looking through {path}")
    found = survey(path if part is None else _split_folder(path, part))
    kind = found.kind(request.reading.kind)
    if kind == "images":
        return open_folder(found, request)
    if request.reading.groups_file is not None:
        raise _no_owners(str(path))
    return resolve(_READERS[kind])(found, request)  # type: ignore[no-any-return]


def _require_image_files(text: str) -> None:
    """Refuse `--groups-file` for anything but a folder of image files, whose paths it names."""
    path = None if text.startswith(_BUILTIN) else _path_and_split(text)[0]
    if path is None or not path.is_dir() or idx_splits(path) or parquet_files(path) or is_webdataset(path):
        raise _no_owners(text)


def _no_owners(source: str) -> InputError:
    return InputError(
        f"--groups-file is for folders of image files, and {source} is none. Name its own array, column or tag of "
        "groups with --groups instead."
    )


def _brought_to(images: ImageSet, request: Request) -> ImageSet:
    """The same limit, channels and size, in the same order, as for streamed sources."""
    form, limit = request.form, request.limit
    rows = limit.rows(images.labels, images.class_names, images.groups, lambda: map(bytes, images.digests()))
    if len(rows) < len(images):
        images = images.subset(rows)
    if form.channels is not None:
        images = images.with_channels(form.channels)
    return images if form.size is None else images.resize(form.size)


def _path_and_split(text: str) -> tuple[Path, str | None]:
    whole = Path(text)
    if whole.exists():
        return whole, None
    before, colon, split = text.rpartition(":")
    if colon and split and Path(before).exists():
        return Path(before), split
    missing = Path(before) if colon and "/" not in split and "\\" not in split and len(before) > 1 else whole
    raise InputError(f"{missing} does not exist.{_hint(missing)}")


def _hint(missing: Path) -> str:
    parent = missing.parent
    try:
        there = sorted(path.name for path in parent.iterdir() if not path.name.startswith("."))
    except OSError:
        return f" Nor can its folder {parent} be read."
    near = difflib.get_close_matches(missing.name, there, n=3)
    return f" Did you mean {' or '.join(near)}?" if near else " Check the path."


def _split_folder(folder: Path, split: str) -> Path:
    if (folder / split).is_dir() and Path(split).name == split:
        return folder / split
    there = sorted(path.name for path in folder.iterdir() if path.is_dir())
    raise InputError(f"{folder} has no split {split!r}. Its sub-folders: {', '.join(there) or 'none'}.")


def _refuse_names(source: str, request: Request) -> None:
    findings = request.reading.findings
    named = {"--findings": None if findings is None else ",".join(findings), "--uncertain": request.reading.uncertain}
    for option, value in {"--labels": request.labels, "--groups": request.groups, **named}.items():
        if value is not None:
            raise InputError(f"{source} has one set of labels and no groups; {option} {value} does not apply.")
