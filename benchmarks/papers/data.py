"""Real packs under the names that cells use: `mnist`, `celeba_64:hair`, `chest_xray_64:3`."""

import os
from pathlib import Path

import numpy as np

from veilset.core.records import Labels
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.data.overlap import find_overlap
from veilset.data.selection import kept, key_of

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("VEILSET_DATA") or ROOT.parent / "shared" / "data")
_HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")
_PATIENTS = {"chest_xray_64": "patients", "chest_xray_224": "patient"}
_ANOTHER_LABEL = {"chest_xray_64": "labels3", "chest_xray_224": "label3"}


def load(name: str, side: str, channels: int | None = None) -> ImageSet:
    """One side of a pack in memory, with the task after the colon: gender (as it stands), hair, or three classes."""
    pack, _, task = name.partition(":")
    labels = _ANOTHER_LABEL[pack] if task == "3" else None
    place = DATA / f"{pack}.npz"
    source = f"{place if place.exists() else DATA / pack}:{side}"
    groups = _PATIENTS.get(pack) if side == "train" else None
    found = open_images(source, labels=labels, groups=groups, channels=channels)
    records = ImageSet(
        found.read(np.arange(len(found.labels))), found.labels, class_names=found.class_names, groups=found.groups
    )
    return _by_hair(records, side) if task == "hair" else records


def _by_hair(records: ImageSet, side: str) -> ImageSet:
    """Those with exactly one colour of hair; the rows are the same at 32 and at 64 pixels."""
    pack = np.load(DATA / "celeba_32.npz")
    colours = pack[f"{side}_attrs"][:, [list(pack["attr_names"]).index(name) for name in _HAIR]] > 0
    rows = np.flatnonzero(colours.sum(axis=1) == 1)
    labels: Labels = colours[rows].argmax(axis=1).astype(np.int64)
    return ImageSet(records.images[rows], labels, ("black", "blond", "brown"))


def private_and_scored(name: str, units: int | None, *, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records, about `units` of them, and those to score on: the test set, or a sixth of train."""
    train = load(name, "train")
    if validate:
        outside = kept(train, 1 / 6, key_of(0, "validation"))
        train, scored = train.subset(np.setdiff1d(np.arange(len(train)), outside)), train.subset(outside)
    else:
        scored = load(name, "test")
    if units is not None and units < len(train):
        train = train.subset(kept(train, units / len(train), key_of(0, "units")))
    return train, scored


def is_grouped(name: str) -> bool:
    """Whether the unit is a patient."""
    return name.partition(":")[0] in _PATIENTS


def public_for(name: str, private: ImageSet, scale: int) -> ImageSet:
    """Public images in the private ones' shape, or `scale` times as large, without those that are private, too."""
    height, width, channels = private.shape
    found = load(name, "train", channels)
    if tuple(found.shape[:2]) != (height * scale, width * scale):
        found = found.resize(height * scale)
    return found.subset(np.flatnonzero(~find_overlap(private, found)))
