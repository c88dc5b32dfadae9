"""What a card says of the place that it lies in: a release, or one of the forms that a release is exported to."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

_VERIFYING_RELEASE = {
    "dp": "`veilset verify DIRECTORY` computes the privacy loss from the ledger again, with two accountants, and "
    "checks every file against the certificate. Add `--key PUBLIC_KEY` with the publisher's key, which you have from "
    "elsewhere, to know who signed it: without a key, a forger who made every hash fit again goes unnoticed.",
    "none": "`veilset verify DIRECTORY` checks every file against the certificate. It cannot add the "
    "guarantee that is missing.",
}
_OF_THE_RELEASE = (
    "This is an export of a release: the same images and labels in another form. `certificate.json` is that of the "
    "release, and its hashes are those of the release's files, so `veilset verify` wants the release itself."
)
_VERIFYING_EXPORT = {
    "dp": f"{_OF_THE_RELEASE} The certificate holds the ledger from which anyone can compute the privacy loss again.",
    "none": _OF_THE_RELEASE,
}


@dataclass(frozen=True, kw_only=True)
class CardForm:
    """The parts of a card that depend on where it lies."""

    loading: str  # Markdown
    is_release: bool = False
    has_columns: bool = False  # image, label and, where there are any, soft_label
    data_files: tuple[str, ...] = ()  # patterns of the split `train`, for Hugging Face `datasets`

    def verifying(self, guarantee: str) -> str:
        """How a reader checks what the card says."""
        return (_VERIFYING_RELEASE if self.is_release else _VERIFYING_EXPORT)[guarantee]


_HF = """```python
from datasets import load_dataset

dataset = load_dataset("{path}", split="train")  # image, label and, where there are any, soft_label
```"""

_OWN = """```python
import numpy as np
pack = np.load("data.npz")              # images, labels and, where there are any, soft_labels

import veilset as vs
dataset = vs.load_release(".").torch()  # a torch Dataset of (image, soft label or class)
```"""

RELEASE = CardForm(
    is_release=True,
    has_columns=True,
    loading=f"""{_HF.replace("{path}", "path/to/this/folder")}

It reads `train.parquet`. The same images are in `data.npz`:

{_OWN}""",
    data_files=("train.parquet",),
)
RELEASE_WITHOUT_TABLE = CardForm(
    is_release=True,
    loading=f"""{_OWN}

Hugging Face `datasets` reads no npz. `veilset export RELEASE --to hf --out DIR` writes a folder that it loads.""",
)
_IN_SHARDS = CardForm(
    is_release=True,
    loading="""```python
import veilset as vs
dataset = vs.load_release(".").torch()  # a torch Dataset of (image, soft label or class); pixels stay on the disk

from veilset.release.sharded import stream_packs
for pack in stream_packs("."):          # images, labels and soft_labels, one shard after the other
    ...
```

""",
)
SHARDED_RELEASE = {
    "parquet": replace(
        _IN_SHARDS,
        loading=_IN_SHARDS.loading
        + """`datasets.load_dataset("path/to/this/folder", split="train")` reads the Parquet files in `shards/`: image,
label and, where there are any, soft_label.""",
        has_columns=True,
        data_files=("shards/*.parquet",),
    ),
    "webdataset": replace(
        _IN_SHARDS,
        loading=_IN_SHARDS.loading
        + """The files in `shards/` are WebDataset tars. `webdataset` reads them, and so does
`datasets.load_dataset("path/to/this/folder", split="train")`. For each image they hold png: the image; cls: its label;
json: label, class_name and, where there is one, soft_label.""",
        data_files=("shards/*.tar",),
    ),
}
HF = CardForm(
    loading=_HF.replace("{path}", "path/to/this/folder"),
    has_columns=True,
    data_files=("data/train-*.parquet",),
)
PARQUET = CardForm(
    loading=_HF.replace("{path}", "path/to/this/folder"),
    has_columns=True,
    data_files=("train-*.parquet",),
)
FOLDER = CardForm(
    loading="""One folder for each class, in the order of the labels, as `torchvision.datasets.ImageFolder` wants it.
`metadata.csv` has a line for each image: its label, its class and, where there are any, its soft label
(`soft_0`, `soft_1`, ...).

"""
    + _HF.replace("{path}", "path/to/this/folder").replace(
        "image, label and, where there are any, soft_label", "image, and the columns of metadata.csv"
    ),
    data_files=("metadata.csv", "*/*.png"),
)
WEBDATASET = CardForm(
    loading="""```python
import webdataset as wds  # png: the image; cls: its label; json: label, class_name and, where there is one, soft_label

dataset = wds.WebDataset("path/to/this/folder/shard-{000000..LAST}.tar").decode("rgb8").to_tuple("png", "cls", "json")
```

`datasets.load_dataset("path/to/this/folder", split="train")` reads the same shards.""",
    data_files=("shard-*.tar",),
)
NPZ = CardForm(
    loading="""```python
import numpy as np
pack = np.load("data.npz")  # images, labels and, where there are any, soft_labels
```

`data.npz` is byte for byte that of the release: its SHA-256 stands in `certificate.json`.""",
)


def data_files_lines(paths: Sequence[str]) -> list[str]:
    """YAML that says which files are the data, so that Hugging Face `datasets` takes no other for it."""
    if not paths:
        return []
    quoted = [f"    - {json.dumps(path)}" for path in paths]
    return ["configs:", "- config_name: default", "  data_files:", "  - split: train", "    path:", *quoted]
