"""Who is attacked: members and nonmembers in pairs of one class, one half known to the attacker, the other attacked.

What an attack learns, it learns from the known half; every number is measured on the other. Pairs make both halves
balanced and of the same classes, so that an attack cannot live on a class being more frequent among the members. No
image stands on both sides or in both halves.

Privacy: reads private records without noise. Everything here is for the data holder and not for release. So the pairs
may be drawn by position; what a release is made from is chosen by each unit's own hash (data/selection.py).
"""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Images, Labels, Records, Rows
from veilset.evaluate.attacks.measures import Membership

FEWEST_PAIRS = 20
_READ_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Records whose membership is asked: even rows are members, odd rows nonmembers of the same class."""

    images: Images
    labels: Labels

    @property
    def is_member(self) -> Membership:
        """Which rows are members."""
        member: Membership = np.arange(len(self.labels)) % 2 == 0
        return member

    @property
    def pairs(self) -> int:
        """How many members there are, and how many nonmembers."""
        return len(self.labels) // 2

    def head(self, pairs: int) -> "Candidates":
        """The first pairs; their order was drawn at random."""
        return Candidates(images=self.images[: 2 * pairs], labels=self.labels[: 2 * pairs])


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Candidates whose membership the attacker knows, and others that it is measured on."""

    known: Candidates
    attacked: Candidates
    classes: int

    def head(self, pairs: int) -> "Split":
        """At most `pairs` pairs, half of them in each part."""
        return replace(self, known=self.known.head(pairs // 2), attacked=self.attacked.head(pairs - pairs // 2))

    def require_fit(self, shape: tuple[int, ...], classes: int) -> None:
        """Refuse candidates that are not of the kind that is attacked."""
        have = self.attacked.images.shape[1:]
        if have != tuple(shape):
            raise InputError(
                f"Expected members of {'x'.join(map(str, shape))} as in the release, got {'x'.join(map(str, have))}. "
                "Pass --size and --channels."
            )
        if self.classes != classes:
            raise InputError(
                f"Expected members with the release's {classes} classes, got {self.classes}. "
                "Check --labels and --classes."
            )


def make_split(members: Records, nonmembers: Records, *, pairs: int | None = None, seed: int = 0) -> Split:
    """Draw at most `pairs` pairs of a member and a nonmember of the same class, and halve them."""
    _require_same_kind(members, nonmembers)
    member_rows, nonmember_rows = _distinct_rows(members, nonmembers)
    coins = numpy_generator(seed, "attack split")
    left, right = [], []
    for label in np.intersect1d(members.labels, nonmembers.labels):
        ours = coins.permutation(member_rows[members.labels[member_rows] == label])
        theirs = coins.permutation(nonmember_rows[nonmembers.labels[nonmember_rows] == label])
        count = min(len(ours), len(theirs))
        left.append(ours[:count])
        right.append(theirs[:count])
    chosen = np.stack([np.concatenate(left), np.concatenate(right)]) if left else np.empty((2, 0), np.int64)
    chosen = chosen[:, coins.permutation(chosen.shape[1])[:pairs]]
    if chosen.shape[1] < FEWEST_PAIRS:
        raise InputError(
            f"Expected at least {FEWEST_PAIRS} pairs of a member and a nonmember of the same class, got "
            f"{chosen.shape[1]}. Pass more --members and --nonmembers, or a larger --records."
        )
    known = chosen.shape[1] // 2
    return Split(
        known=_candidates(members, nonmembers, chosen[:, :known]),
        attacked=_candidates(members, nonmembers, chosen[:, known:]),
        classes=len(members.class_names),
    )


def _candidates(members: Records, nonmembers: Records, rows: NDArray[np.int64]) -> Candidates:
    images = np.empty((2 * rows.shape[1], *members.shape), np.uint8)
    images[0::2] = _read(members, rows[0])
    images[1::2] = _read(nonmembers, rows[1])
    return Candidates(images=images, labels=np.repeat(members.labels[rows[0]], 2))


def _read(records: Records, rows: Rows) -> Images:
    order = np.argsort(rows)  # sources on disk are quicker in their own order
    images = np.empty((len(rows), *records.shape), np.uint8)
    for start in range(0, len(rows), _READ_AT_ONCE):
        part = order[start : start + _READ_AT_ONCE]
        images[part] = records.read(rows[part])
    return images


def _distinct_rows(members: Records, nonmembers: Records) -> tuple[Rows, Rows]:
    """The first row of each distinct image. Refuses an image that stands on both sides, whatever its label."""
    ours, theirs = _first_rows(members), _first_rows(nonmembers)
    common = len(ours.keys() & theirs.keys())
    if common:
        raise InputError(
            f"{common} of {len(theirs)} different images of --nonmembers are in --members as well, so nobody could "
            "tell them apart. Pass nonmembers that the release was not made from, such as a test split."
        )
    return np.array(list(ours.values()), np.int64), np.array(list(theirs.values()), np.int64)


def _first_rows(records: Records) -> dict[bytes, int]:
    rows: dict[bytes, int] = {}
    count = len(records.labels)
    for start in range(0, count, _READ_AT_ONCE):
        images = records.read(np.arange(start, min(count, start + _READ_AT_ONCE), dtype=np.int64))
        for row, image in enumerate(images, start):
            rows.setdefault(hashlib.blake2b(image.tobytes(), digest_size=16).digest(), row)
    return rows


def _require_same_kind(members: Records, nonmembers: Records) -> None:
    if tuple(members.shape) != tuple(nonmembers.shape):
        raise InputError(
            f"Expected members and nonmembers of one shape, got {tuple(members.shape)} and {tuple(nonmembers.shape)}. "
            "Pass --size and --channels."
        )
    if tuple(members.class_names) != tuple(nonmembers.class_names):
        raise InputError(
            f"Expected members and nonmembers with the same classes, got {', '.join(members.class_names)} and "
            f"{', '.join(nonmembers.class_names)}. Check --labels and --classes."
        )
