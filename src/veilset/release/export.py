"""A release in the forms that other tools read: a folder of PNGs, Parquet, WebDataset, npz.

Every export carries the certificate (with its signature, where there is one) and the card along. The hashes in the
certificate are those of the release; the npz export keeps data.npz byte for byte, so they hold for it as well.
"""

import csv
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.core.files import whole_directory
from veilset.core.records import Images
from veilset.core.registry import unknown_name
from veilset.release import layout
from veilset.release.format import Release, load_release
from veilset.release.verify import verify_release

_ROWS_PER_FILE = 10_000
# What makes a spreadsheet compute a cell (full-width forms, too) instead of showing it.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_PNG_CHANNELS = (1, 2, 3, 4)
# Windows keeps these names for devices, with any extension.
_RESERVED = {"con", "prn", "aux", "nul", *(f"{name}{i}" for name in ("com", "lpt") for i in range(1, 10))}


def export_release(path: str | Path, to: str, out: str | Path) -> Path:
    """Verify the release at `path` and write it to the new directory `out`, whole or not at all."""
    path, out = Path(path), Path(out)
    if to not in _WRITERS:
        raise unknown_name("export format", to, list(_WRITERS))
    layout.require_release(path)
    if out.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{out} lies inside the release, which must hold nothing else. Choose another --out.")
    verify_release(path).raise_if_failed()
    release = load_release(path)
    with whole_directory(out) as building:
        _WRITERS[to](release, path, building)
        for name in (layout.CERTIFICATE, layout.SIGNATURE, layout.CARD):
            if (path / name).exists():
                shutil.copyfile(path / name, building / name)
    return out


def folder_names(class_names: Sequence[str]) -> list[str]:
    """A safe, distinct folder name for each class, which sort in the order of the classes.

    Readers number classes by the sorted names of their folders; where that would change a label, or two names become
    one, the number goes in front.
    """
    plain = [_safe(name) for name in class_names]
    folded = [name.casefold() for name in plain]
    # Some readers sort 9 before 10 and others after it, so numbers stay as they are only when both agree.
    numbers = [int(name) for name in plain] if all(name.isdecimal() for name in plain) else []
    if sorted(plain) == plain and sorted(numbers) == numbers and len(set(folded)) == len(folded):
        return plain
    width = len(str(len(plain) - 1))
    return [f"{number:0{width}d}_{name}" for number, name in enumerate(plain)]


def _safe(name: str) -> str:
    safe = re.sub(r"[^\w.-]+", "_", name.encode("utf-8", "replace").decode()).strip("._ ").lstrip("-._ ")
    while len(safe.encode()) > 100:
        safe = safe[:-1]
    return f"class_{safe}" if not safe or safe.partition(".")[0].casefold() in _RESERVED else safe


def _write_folder(release: Release, _: Path, building: Path) -> None:
    """One folder of PNGs per class, and metadata.csv with a line per image in the order of the release.

    Class names may come from anywhere, and people open such tables in spreadsheets: no cell is a formula.
    """
    names = release.certificate.facts.class_names
    folders = folder_names(names)
    # Folders of classes without an image are kept: without them a reader would number the others anew.
    for folder in folders:
        (building / folder).mkdir()
    with (building / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        soft_columns = [f"soft_{i}" for i in range(len(names))] if release.soft_labels is not None else []
        table.writerow(["file_name", "label", "class_name", *soft_columns])
        for index, png in enumerate(_pngs(release.images)):
            label = int(release.labels[index])
            place = f"{folders[label]}/{_stem(index)}.png"
            (building / place).write_bytes(png)
            table.writerow([place, label, _as_text(names[label]), *_soft(release, index)])


def _write_parquet(release: Release, _: Path, building: Path) -> None:
    """Parquet files in the image layout of Hugging Face, with its features in the metadata."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow. Install it with: pip install 'veilset[data]'") from error
    names = [_writable(name) for name in release.certificate.facts.class_names]
    columns = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]), "label": pa.int64()}
    features: dict[str, Any] = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    if release.soft_labels is not None:
        columns["soft_label"] = pa.list_(pa.float32())
        number = {"dtype": "float32", "_type": "Value"}
        features["soft_label"] = {"feature": number, "length": len(names), "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema(list(columns.items()), metadata=metadata)
    pngs = _pngs(release.images)
    files = _parts(len(release))
    for number_of_file, rows in enumerate(files):
        data: dict[str, list[Any]] = {
            "image": [{"bytes": next(pngs), "path": f"{_stem(index)}.png"} for index in rows],
            "label": release.labels[rows.start : rows.stop].tolist(),
        }
        if release.soft_labels is not None:
            data["soft_label"] = release.soft_labels[rows.start : rows.stop].tolist()
        place = building / f"train-{number_of_file:05d}-of-{len(files):05d}.parquet"
        parquet.write_table(pa.table(data, schema=schema), place)


def _write_webdataset(release: Release, _: Path, building: Path) -> None:
    """Tar files in which the image, its class and what else is known of it follow each other under one stem."""
    names = release.certificate.facts.class_names
    pngs = _pngs(release.images)
    for number, rows in enumerate(_parts(len(release))):
        with tarfile.open(building / f"shard-{number:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as shard:
            for index in rows:
                label = int(release.labels[index])
                about: dict[str, Any] = {"label": label, "class_name": names[label]}
                if release.soft_labels is not None:
                    about["soft_label"] = _soft(release, index)
                _add(shard, f"{_stem(index)}.png", next(pngs))
                _add(shard, f"{_stem(index)}.cls", str(label).encode())
                _add(shard, f"{_stem(index)}.json", json.dumps(about, sort_keys=True).encode())


def _write_npz(_: Release, path: Path, building: Path) -> None:
    shutil.copyfile(path / layout.DATA, building / layout.DATA)


_WRITERS: dict[str, Callable[[Release, Path, Path], None]] = {
    "folder": _write_folder,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
    "npz": _write_npz,
}


def _pngs(images: Images) -> Iterator[bytes]:
    from PIL import Image

    channels = images.shape[-1]
    if channels not in _PNG_CHANNELS:
        raise InputError(f"A PNG has 1 to 4 channels, these images have {channels}. Use --to npz.")
    for image in images:
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if channels == 1 else image).save(content, "PNG")
        yield content.getvalue()


def _parts(count: int) -> list[range]:
    return [range(start, min(start + _ROWS_PER_FILE, count)) for start in range(0, count, _ROWS_PER_FILE)]


def _stem(index: int) -> str:
    return f"{index:08d}"


def _soft(release: Release, index: int) -> list[float]:
    return [] if release.soft_labels is None else [float(value) for value in release.soft_labels[index]]


def _as_text(name: str) -> str:
    """A class name as a spreadsheet shows it: one that would be taken for a formula gets an apostrophe in front."""
    text = re.sub(r"[\x00-\x1f]", " ", _writable(name))  # a tab or a line's end would begin another cell
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    # A fresh TarInfo has time, owner and group 0, so equal content gives equal bytes.
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))
