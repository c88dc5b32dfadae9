"""A release as a dataset of Hugging Face `datasets`, in memory."""

from importlib import import_module
from typing import Any

from veilset.core.errors import InputError
from veilset.privacy.vault import PublicFacts
from veilset.release.pack import Pack
from veilset.release.shards import pngs


def dataset_of(pack: Pack, facts: PublicFacts) -> Any:
    """Columns image, label (labels, a list of zeros and ones, for findings) and soft_label, with their features."""
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise InputError("datasets is not installed. Install it with: pip install 'veilset[readers]'") from error
    images = [{"bytes": png, "path": None} for png in pngs(pack.images)]
    columns: dict[str, Any] = {"image": images}
    features: dict[str, Any] = {"image": datasets.Image()}
    names = list(facts.class_names)
    if facts.findings:
        columns["labels"] = pack.labels.tolist()
        features["labels"] = datasets.Sequence(datasets.ClassLabel(names=["no", "yes"]))
    else:
        columns["label"], features["label"] = pack.labels.tolist(), datasets.ClassLabel(names=names)
    if pack.soft_labels is not None:
        columns["soft_label"] = pack.soft_labels.tolist()
        features["soft_label"] = datasets.Sequence(datasets.Value("float32"))
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))
