"""train.parquet: the images of data.npz once more, in the form that `datasets.load_dataset(RELEASE)` takes as it is.

Hugging Face `datasets` reads no npz, and takes a file of this name for the split `train`, whatever lies beside it. The
pictures are PNGs here, so the file is about as large as data.npz or smaller. Above `LARGEST` it is left out: who has so
many images wants shards, which need no second copy, and `export --to hf` writes the table for one who wants it.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from veilset.privacy.vault import PublicFacts
from veilset.release.card_forms import data_files_lines
from veilset.release.pack import Pack
from veilset.release.shards import PNG_CHANNELS, SUFFIXES, ShardForm, decoded, parquet_rows, parquet_schema, write_shard

LARGEST = 1 << 27  # bytes of pixels
_ROWS = 1000  # of a row group


def write_table(path: Path, pack: Pack, facts: PublicFacts) -> bool:
    """Write the table where it is worth its place; whether it was."""
    if not is_worth_it(len(pack.images), facts) or not can_read_tables():
        return False
    packs = (pack.part(start, start + _ROWS) for start in range(0, len(pack.images), _ROWS))
    write_shard(path, packs, facts.class_names, first=0, form="parquet")
    return True


def is_worth_it(samples: int, facts: PublicFacts) -> bool:
    """Whether a release of so many images has a table: not too many, and of a kind that a PNG holds."""
    return samples * math.prod(facts.shape) <= LARGEST and facts.shape[-1] in PNG_CHANNELS


def can_read_tables() -> bool:
    """Whether pyarrow is there, which is an extra."""
    try:
        from pyarrow import parquet  # noqa: F401
    except ImportError:
        return False
    return True


def table_problems(path: Path, pack: Pack, facts: PublicFacts) -> list[str]:
    """Where the table differs from the arrays, which are bounded and were checked before; needs pyarrow."""
    count = len(pack.images)
    if not is_worth_it(count, facts):
        return [f"{path.name} is too costly to check."]
    differs = [f"{path.name} does not hold the images and labels of data.npz."]
    if not _has_schema(path, pack, facts):
        return differs
    try:
        found = 0
        for row, expected in zip(parquet_rows(path, facts.shape, count), _rows_of(pack), strict=True):
            label, soft, image = expected
            same_soft = soft is None or np.array_equal(np.asarray(row["soft_label"], np.float32), soft)
            same_label = row["label" if pack.labels.ndim == 1 else "labels"] == label
            if (
                not same_label
                or not same_soft
                or not np.array_equal(decoded(row["image"]["bytes"], facts.shape), image)
            ):
                return differs
            found += 1
    except (OSError, EOFError, ValueError, KeyError, TypeError, SyntaxError) as error:
        return [f"{path.name} cannot be read: {error}. It was cut short or altered."]
    return [] if found == count else differs


def _rows_of(pack: Pack) -> Iterator[tuple[Any, Any, Any]]:
    for index, image in enumerate(pack.images):
        soft = None if pack.soft_labels is None else pack.soft_labels[index]
        yield pack.labels[index].tolist(), soft, image


def _has_schema(path: Path, pack: Pack, facts: PublicFacts) -> bool:
    """Columns, types and names of classes; other tools believe what the file says of them."""
    from pyarrow import ArrowException, parquet

    expected = parquet_schema(
        facts.class_names, has_soft_labels=pack.soft_labels is not None, findings=pack.labels.ndim == 2
    )
    try:
        found = parquet.read_schema(path)
    except (ArrowException, OSError, ValueError):
        return False
    named = (found.metadata or {}).get(b"huggingface") == expected.metadata[b"huggingface"]
    return named and bool(found.equals(expected))


def loading_text(form: ShardForm) -> str:
    """.huggingface.yaml of a release in shards: it tells `datasets` which files are the data."""
    return "\n".join(data_files_lines((f"shards/*{SUFFIXES[form]}",))) + "\n"
