"""Parquet in the Hugging Face image layout: an image column (struct of bytes and path, or binary) and a label.

Streamed by row groups: of the images only the last two groups that were read stay in memory.
"""

import contextlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Rows
from veilset.core.registry import unknown_name
from veilset.data.archives.listing import ONE_CLASS, Request
from veilset.data.decoding import UndecodableError
from veilset.data.findings import labelled
from veilset.data.groups import checked_groups
from veilset.data.guards import refuse_bomb
from veilset.data.optional import require
from veilset.data.streaming import Picture, StreamedImages, picture_of

LARGEST_ROW_GROUP = 2 * 2**30
_SHARD = re.compile(r"-\d+-of-\d+$")
_KEPT_GROUPS = 2  # the threads of the opening pass work at the border of two groups


def open_parquet(path: Path, split: str | None, request: Request) -> StreamedImages:
    """Check every image of a file or of a folder's shards once and keep them open for reading by row."""
    files = _shards(path, split)
    first = _open(files[0])
    image = _image_column(first.schema_arrow, files[0])
    label, groups = request.labels or "label", request.groups
    if not request.needs_classes and label not in first.schema_arrow.names:
        count = sum(_open(file).metadata.num_rows for file in files)
        found = labelled(np.full(count, ONE_CLASS), None, reading=request.reading)
    else:
        values, names = _label_values(files, label, first.schema_arrow, request)
        found = labelled(values, request.classes, names, request.reading)
        count = len(values)
    who = None if groups is None else checked_groups(_read_column(files, groups), count)[found.rows]

    def contents() -> Iterator[bytes]:
        return _Rows(files, image, found.rows).contents()

    rows = request.limit.rows(found.labels, found.names, who, contents)
    return StreamedImages(
        _Rows(files, image, found.rows[rows]),
        found.labels[rows],
        found.names,
        None if who is None else who[rows],
        request.form,
        request.progress,
        skip_bad=request.reading.skip_bad,
    )


def parquet_files(folder: Path) -> list[Path]:
    """The parquet files of a folder, or of its `data` sub-folder."""
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


class _Rows:
    """Encoded images by row, found through a table of row groups."""

    def __init__(self, files: list[Path], image: str, rows: Rows) -> None:
        self._files = files
        self._image = image
        self._rows = rows
        self._groups: list[tuple[int, int]] = []  # (file, row group)
        sizes = []
        for number, file in enumerate(files):
            metadata = _open(file).metadata
            for group in range(metadata.num_row_groups):
                size = metadata.row_group(group).total_byte_size
                refuse_bomb(f"Row group {group} of {file}", size, file.stat().st_size, LARGEST_ROW_GROUP)
                self._groups.append((number, group))
                sizes.append(metadata.row_group(group).num_rows)
        self._ends = np.cumsum(sizes)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def name(self, row: int) -> str:
        place, offset = self._find(row)
        number, group = self._groups[place]
        return f"row {offset} of row group {group} in {self._files[number].name}"

    def fetch(self, row: int) -> bytes:
        place, offset = self._find(row)
        encoded = self._group(place)[offset].as_py()
        if encoded is None:
            raise UndecodableError("no image bytes, perhaps only a path; embed the images in the parquet file")
        content: bytes = encoded
        return content

    def picture(self, row: int) -> Picture:
        return picture_of(self.fetch(row))

    def contents(self) -> Iterator[bytes]:
        """What `fetch` gives of every row, one after the other, empty where there is no image."""
        for row in range(len(self._rows)):
            place, offset = self._find(row)
            yield self._group(place)[offset].as_py() or b""

    def _find(self, row: int) -> tuple[int, int]:
        source = int(self._rows[row])
        place = int(np.searchsorted(self._ends, source, side="right"))
        return place, source - (int(self._ends[place - 1]) if place else 0)

    def _group(self, place: int) -> Any:
        with self._lock:
            if place not in self._kept:
                number, group = self._groups[place]
                while len(self._kept) >= _KEPT_GROUPS:
                    self._kept.popitem(last=False)
                self._kept[place] = self._read_group(number, group)
            return self._kept[place]

    def _read_group(self, number: int, group: int) -> Any:
        opened = _open(self._files[number])
        with _damage_named(self._files[number]):
            encoded = _leaf(opened.read_row_group(group, columns=[self._image]))
            if len(encoded) != opened.metadata.row_group(group).num_rows:
                raise ValueError(f"row group {group} holds {len(encoded)} rows, not as many as it says")
        return encoded


def _leaf(table: Any) -> Any:
    column = table.column(0).combine_chunks()
    is_struct = require("pyarrow").types.is_struct(column.type)
    return column.field("bytes") if is_struct else column


def _shards(path: Path, split: str | None) -> list[Path]:
    if path.is_file():
        if split is not None:
            raise InputError(f"{path} is one parquet file and has no splits. Pass {path} alone.")
        return [path]
    files = parquet_files(path)
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_SHARD.sub("", file.stem), []).append(file)
    if split is None and len(by_split) == 1:
        return files
    if split not in by_split:  # without a split, train and test would silently be read as one set
        wanted = "" if split is None else f" {split!r}"
        names = ", ".join(by_split)
        raise InputError(
            f"Expected a split{wanted} of {path} among {names}. Pass {path}:{next(iter(by_split))}, for example."
        )
    return by_split[split]


def _open(file: Path) -> Any:
    parquet = require("pyarrow.parquet")
    with _damage_named(file):
        return parquet.ParquetFile(file)


@contextlib.contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    try:
        yield
    except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except (require("pyarrow").ArrowException, OSError, ValueError) as error:  # OSError is pyarrow's for damage too
        raise InputError(f"{file} is damaged or not a parquet file ({error}). Copy it again.") from error


def _image_column(schema: Any, file: Path) -> str:
    """The leaf to read: `image.bytes` of a struct, or a binary column."""
    types = require("pyarrow").types
    found = {}
    for field in schema:
        if types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            found[field.name] = f"{field.name}.bytes"
        elif types.is_binary(field.type) or types.is_large_binary(field.type):
            found[field.name] = field.name
    for name in ("image", "img"):
        if name in found:
            return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    raise InputError(
        f"Expected an image column (a struct with bytes, or binary) in {file}; "
        f"it has {', '.join(schema.names)}. Name the image column 'image'."
    )


def _read_column(files: list[Path], name: str) -> NDArray[Any]:
    parts = []
    for file in files:
        opened = _open(file)
        if name not in opened.schema_arrow.names:
            raise unknown_name(f"column of {file.name}", name, opened.schema_arrow.names)
        with _damage_named(file):
            column = opened.read(columns=[name]).column(0)
            values = column.to_pylist()
            _refuse_ragged(values, name)
        if column.null_count:
            raise InputError(f"{column.null_count} records of {file} have no {name}. Remove them.")
        parts.append(np.array(values))
    joined: NDArray[Any] = np.concatenate(parts)
    if joined.dtype.kind not in "iuU" and joined.size:
        raise InputError(f"Expected column {name!r} of integers or text, got {joined.dtype}.")
    return joined


def _refuse_ragged(values: list[Any], name: str) -> None:
    lengths = {len(value) for value in values if isinstance(value, list)}
    if len(lengths) > 1 or any(None in value for value in values if isinstance(value, list)):
        raise InputError(
            f"The lists of column {name!r} differ in length or have gaps. Write 0, 1 or -1 for each finding."
        )


def _label_values(
    files: list[Path], label: str, schema: Any, request: Request
) -> tuple[NDArray[Any], Sequence[str] | None]:
    """One class for each record, or columns of findings: a list of them, or several columns that `findings` names."""
    wanted = request.reading.findings
    if wanted is None or _is_list(schema, label):
        return _read_column(files, label), _feature_names(schema, label)
    if request.labels is not None:
        raise InputError(
            f"Expected a list of findings in column {label!r}. Leave --labels out: --findings {','.join(wanted)} are "
            "columns of their own."
        )
    columns = [_read_column(files, name) for name in wanted]
    for name, column in zip(wanted, columns, strict=True):
        if column.ndim != 1 or column.dtype.kind != "i":
            raise InputError(f"Expected column {name!r} of 0 and 1 (-1 where uncertain), got {column.dtype}.")
    return np.stack(columns, axis=1), wanted


def _is_list(schema: Any, name: str) -> bool:
    types = require("pyarrow").types
    kind = schema.field(name).type if name in schema.names else None
    return kind is not None and (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _feature_names(schema: Any, label: str) -> list[str] | None:
    """The names that the `datasets` library stores beside a ClassLabel column; of findings, those of its columns."""
    try:
        stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = stored["info"]["features"][label]
        names = feature["names"] if "names" in feature else feature["feature"]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names]
