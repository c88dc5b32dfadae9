"""One shard of images, in the two forms that other tools read: a WebDataset tar or a Parquet file.

Equal images give equal bytes under equal versions of Pillow and pyarrow. What is read back may come from anyone, so it
is bounded before it is decoded, and must be exactly of this form.
"""

import io
import json
import math
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veilset.core.errors import InputError, VerificationError
from veilset.core.records import Images
from veilset.release.pack import Pack, pack_problems

ShardForm = Literal["webdataset", "parquet"]
SUFFIXES: dict[ShardForm, str] = {"webdataset": ".tar", "parquet": ".parquet"}

PNG_CHANNELS = (1, 2, 3, 4)
_NAME = re.compile(r"(\d{8,10})\.(png|cls|json)")
_ROWS_AT_ONCE = 256
_LONGEST_NUMBER = 32  # letters of a probability in JSON
_HOSTILE = (OSError, EOFError, ValueError, KeyError, TypeError, SyntaxError, tarfile.TarError, RecursionError)


def write_shard(path: Path, packs: Iterable[Pack], names: Sequence[str], *, first: int, form: ShardForm) -> None:
    """Write packs, one after the other, the first of whose images has the number `first` in its release."""
    if form == "parquet":
        _write_parquet(path, packs, names, first)
    else:
        _write_tar(path, packs, names, first)


def read_shard(path: Path, form: ShardForm, shape: Sequence[int], classes: int, *, first: int, count: int) -> Pack:
    """The images `first` to `first + count` of a release; what is not exactly that raises `VerificationError`."""
    try:
        rows = _tar_rows(path, shape, classes) if form == "webdataset" else _parquet_rows(path, shape, count)
        pack = _gathered(rows, shape, classes, first, count)
    except _HOSTILE as error:
        raise VerificationError(f"{path.name} cannot be read: {error}. It was cut short or altered.") from error
    problems = pack_problems(pack, shape, classes)
    if problems:
        raise VerificationError(f"{path.name} is not a sound shard. {' '.join(problems)}")
    return pack


def shard_limit(count: int, shape: Sequence[int], classes: int) -> int:
    """The most bytes that a shard of `count` images can have."""
    return count * (_picture_limit(shape) + _LONGEST_NUMBER * classes + 4096) + (1 << 20)


def pngs(images: Images) -> Iterator[bytes]:
    """Each image as a PNG file."""
    from PIL import Image

    channels = images.shape[-1]
    if channels not in PNG_CHANNELS:
        raise InputError(f"A PNG has 1 to 4 channels, these images have {channels}. Use --to npz.")
    for image in images:
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if channels == 1 else image).save(content, "PNG")
        yield content.getvalue()


def stem(index: int) -> str:
    """What the files of one image are called."""
    return f"{index:08d}"


def soft_row(pack: Pack, index: int) -> list[float]:
    """The soft label of an image, empty where there is none."""
    return [] if pack.soft_labels is None else [float(value) for value in pack.soft_labels[index]]


def _write_tar(path: Path, packs: Iterable[Pack], names: Sequence[str], first: int) -> None:
    """The image, its class and what else is known of it follow each other under one stem."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for pack in packs:
            for index, png in enumerate(pngs(pack.images)):
                about = _about(pack, index, names)
                if pack.soft_labels is not None:
                    about["soft_label"] = soft_row(pack, index)
                _add(shard, f"{stem(first + index)}.png", png)
                if pack.labels.ndim == 1:
                    _add(shard, f"{stem(first + index)}.cls", str(about["label"]).encode())
                _add(shard, f"{stem(first + index)}.json", json.dumps(about, sort_keys=True).encode())
            first += len(pack.images)


def _about(pack: Pack, index: int, names: Sequence[str]) -> dict[str, Any]:
    """The class of an image, or its findings."""
    if pack.labels.ndim == 1:
        label = int(pack.labels[index])
        return {"label": label, "class_name": names[label]}
    has = pack.labels[index].tolist()
    return {"labels": has, "findings": [name for name, is_true in zip(names, has, strict=True) if is_true]}


def _write_parquet(path: Path, packs: Iterable[Pack], names: Sequence[str], first: int) -> None:
    """The image layout of Hugging Face, with its features in the metadata; a row group for each pack."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow. Install it with: pip install 'veilset[data]'") from error
    writer = None
    try:
        for pack in packs:
            findings = pack.labels.ndim == 2
            schema = parquet_schema(names, has_soft_labels=pack.soft_labels is not None, findings=findings)
            data: dict[str, list[Any]] = {
                "image": [
                    {"bytes": png, "path": f"{stem(first + index)}.png"} for index, png in enumerate(pngs(pack.images))
                ],
                "labels" if findings else "label": pack.labels.tolist(),
            }
            if pack.soft_labels is not None:
                data["soft_label"] = pack.soft_labels.tolist()
            writer = writer or parquet.ParquetWriter(path, schema)
            writer.write_table(pa.table(data, schema=schema))
            first += len(pack.images)
    finally:
        if writer is not None:
            writer.close()


def parquet_schema(names: Sequence[str], *, has_soft_labels: bool, findings: bool) -> Any:
    """The columns of a table, with the features of Hugging Face in the metadata."""
    import pyarrow as pa

    plain = [name.encode("utf-8", "replace").decode() for name in names]
    columns = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]), "label": pa.int64()}
    features: dict[str, Any] = {"image": {"_type": "Image"}, "label": {"names": plain, "_type": "ClassLabel"}}
    if findings:
        # The names stand beside the type of the list: `datasets` passes over them, and our reader takes them.
        bit = {"dtype": "uint8", "_type": "Value", "names": plain}
        columns = {"image": columns["image"], "labels": pa.list_(pa.uint8())}
        features = {
            "image": features["image"],
            "labels": {"feature": bit, "length": len(plain), "_type": "Sequence"},
        }
    if has_soft_labels:
        columns["soft_label"] = pa.list_(pa.float32())
        number = {"dtype": "float32", "_type": "Value"}
        features["soft_label"] = {"feature": number, "length": len(plain), "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(list(columns.items()), metadata=metadata)


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    # A fresh TarInfo has time, owner and group 0, so equal content gives equal bytes.
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))


_Row = tuple[str, Images, int, list[float] | None]
"""The stem of an image, its pixels, its label and its soft label."""


def _gathered(rows: Iterator[_Row], shape: Sequence[int], classes: int, first: int, count: int) -> Pack:
    images = np.empty((count, *shape), np.uint8)
    labels, soft = np.empty(count, np.int64), np.zeros((count, classes), np.float32)
    has_soft: bool | None = None
    found = 0
    for name, image, label, row in rows:
        if found == count or name != stem(first + found):
            raise ValueError(f"image {name!r} is not expected there")
        if has_soft not in (None, row is not None) or (row is not None and len(row) != classes):
            raise ValueError(f"the soft label of image {name!r} is not like the others")
        has_soft = row is not None
        images[found], labels[found] = image, label
        if row is not None:
            soft[found] = row
        found += 1
    if found != count:
        raise ValueError(f"expected {count} images, found {found}")
    return Pack(images=images, labels=labels, soft_labels=soft if has_soft else None)


def _tar_rows(path: Path, shape: Sequence[int], classes: int) -> Iterator[_Row]:
    limits = {"png": _picture_limit(shape), "cls": 32, "json": _LONGEST_NUMBER * classes + 4096}
    held: dict[str, bytes] = {}
    with tarfile.open(path, "r:") as shard:
        for number, entry in enumerate(shard):
            named = _NAME.fullmatch(entry.name)
            part = ("png", "cls", "json")[number % 3]
            if named is None or named[2] != part or not entry.isreg() or entry.size > limits[part]:
                raise ValueError(f"the entry {entry.name[:100]!r} is not one of a shard")
            content = shard.extractfile(entry)
            held[part] = b"" if content is None else content.read()
            shard.members = []  # type: ignore[attr-defined]  # it would keep one for every entry
            if part == "json":
                about = json.loads(held["json"])
                label = _label(int(held["cls"]), about["label"])
                yield named[1], decoded(held["png"], shape), label, about.get("soft_label")


def _parquet_rows(path: Path, shape: Sequence[int], count: int) -> Iterator[_Row]:
    for row in parquet_rows(path, shape, count):
        named = row["image"]["path"].removesuffix(".png")
        yield named, decoded(row["image"]["bytes"], shape), _label(row["label"]), row.get("soft_label")


def parquet_rows(path: Path, shape: Sequence[int], count: int) -> Iterator[dict[str, Any]]:
    """The rows of a table of `count` images, as it has them but for size: few at a time, and none is too large."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow. Install it with: pip install 'veilset[data]'") from error
    try:
        opened = parquet.ParquetFile(path)
        size = sum(opened.metadata.row_group(group).total_byte_size for group in range(opened.num_row_groups))
        if opened.metadata.num_rows != count or size > 4 * path.stat().st_size + (1 << 20):
            raise ValueError("it does not hold what it should")
        limit = _picture_limit(shape)
        for batch in opened.iter_batches(batch_size=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                if len(row["image"]["bytes"]) > limit:
                    raise ValueError("an image is larger than it can be")
                yield row
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _label(label: Any, again: Any = None) -> int:
    if type(label) is not int or again not in (None, label):
        raise ValueError("a label is not a class number")
    return label


def _picture_limit(shape: Sequence[int]) -> int:
    return math.prod(shape) * 5 // 4 + 4096


def decoded(png: bytes, shape: Sequence[int]) -> Images:
    """The pixels of a PNG file that has the expected size; nothing larger is decoded.

    It may hold pixels alone: a note on orientation, gamma or transparency shows another picture in other readers.
    """
    from PIL import Image

    if not _PIXELS_ALONE.issuperset(_chunks(png)):
        raise ValueError("a PNG holds more than pixels")
    height, width, channels = shape
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        if picture.size != (width, height) or len(picture.getbands()) != channels or picture.mode not in _MODES:
            raise ValueError(f"an image is {picture.size} {picture.mode}, expected {width} x {height} x {channels}")
        pixels: Images = np.asarray(picture)
    return pixels.reshape(tuple(shape))


def _chunks(png: bytes) -> Iterator[bytes]:
    """The names of a PNG's parts; what follows its end is a part as well."""
    place = 8
    while place + 8 <= len(png):
        name = png[place + 4 : place + 8]
        yield name
        place += 12 + int.from_bytes(png[place : place + 4], "big")
        if name == b"IEND":
            break
    if place != len(png):
        yield png[place:]


_MODES = ("L", "LA", "RGB", "RGBA")
_PIXELS_ALONE = {b"IHDR", b"IDAT", b"IEND"}
