"""The vault: private records behind a wall with no window.

There is no indexing, no iteration, no length, no attribute that holds data. Rows leave only through the mechanisms of a
`Session` (privacy/session.py), which first pays for them.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NoReturn
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Groups, Images, Labels, Records, Rows
from veilset.core.registry import resolve
from veilset.privacy.compared import Compared

Unit = Literal["record", "group"]

# More images of one group are never read. An average hardly changes beyond them, and the time to read all would show.
MOST_IMAGES_PER_GROUP = 256

# The data layer lies above this one, so its functions are named and loaded on demand.
_OPENER = "veilset.data.opening:open_images"
_FROM_ARRAYS = "veilset.data.datasets:from_arrays"
_FROM_DATASET = "veilset.data.datasets:from_dataset"
_OVERLAP = "veilset.data.overlap:refuse_overlap"


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What the custodian declares public about a vault; the certificate repeats it.

    With `findings`, each image has a zero or a one for every name instead of one class: labels are (n, names).
    """

    units: int
    unit: Unit
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    findings: bool = False

    @property
    def classes(self) -> int:
        """The number of classes, or of findings."""
        return len(self.class_names)

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready data; `findings` is said where there are any."""
        plain = asdict(self) | {"shape": list(self.shape), "class_names": list(self.class_names)}
        return plain if self.findings else {name: value for name, value in plain.items() if name != "findings"}


class UnitRows:
    """The rows of each unit: a record is its own unit; a group holds all images of one patient."""

    def __init__(self, records: Records, unit: Unit) -> None:
        count = len(records.labels)
        if unit == "record":
            self.starts: NDArray[np.int64] = np.arange(count + 1)
            self.members: NDArray[np.int64] = self.starts[:-1]  # the same numbers, held once: there may be millions
            self._names: NDArray[Any] | None = None
        else:
            if records.groups is None:
                raise InputError(
                    "Expected groups for unit=group, found none. Pass --groups NAME, e.g. --groups patients."
                )
            self._names, inverse = np.unique(records.groups, return_inverse=True)
            self.members, self.starts = _own_order(records.digests(), inverse)
        self.records = records

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self.starts) - 1

    @property
    def units(self) -> NDArray[np.int64]:
        """The numbers of all units."""
        return self.members if self._names is None else np.arange(self.count)

    def of(self, unit: int) -> Rows:
        """The row numbers of one unit."""
        return self.members[self.starts[unit] : self.starts[unit + 1]]

    def of_all(self, units: NDArray[np.int64]) -> Rows:
        """The row numbers of these units, one unit after the other."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(self.of(unit) for unit in units)])

    def read(self, rows: Rows) -> tuple[Images, Labels]:
        """Images and labels of these rows."""
        return self.records.read(rows), self.records.labels[rows]

    def read_units(self, units: NDArray[np.int64]) -> tuple[Images, Labels]:
        """Images and labels of these units, one unit after the other."""
        return self.read(self.of_all(units))

    def order(self) -> bytes:
        """A hash of all rows and units in their order: who shares units out by position must agree on it."""
        hashed = hashlib.sha256(np.ascontiguousarray(self.records.digests()).data)
        for numbers in (self.members, self.starts):
            hashed.update(np.ascontiguousarray(numbers, "<i8").data)
        return hashed.digest()

    def own_id(self, unit: int) -> bytes:
        """The stable id of one unit, as in `own_ids`."""
        return bytes(self.records.digests()[unit]) if self._names is None else str(self._names[unit]).encode()

    def own_ids(self) -> Iterator[bytes]:
        """A stable id for each unit that depends on nothing but that unit.

        As long as the digests, so that only equal records have equal ids, even where somebody chose the images.
        """
        if self._names is None:
            return (bytes(digest) for digest in self.records.digests())
        return (str(name).encode() for name in self._names)


def _own_order(digests: NDArray[np.uint8], owners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows by group, and where each group starts; within it in the order of their own digests, the first so many."""
    words = np.ascontiguousarray(digests).view(">u8")
    order = np.lexsort((*words.T[::-1], owners))
    sizes = np.bincount(owners)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    starts = np.concatenate([[0], np.cumsum(np.minimum(sizes, MOST_IMAGES_PER_GROUP))])
    return order[place < MOST_IMAGES_PER_GROUP], starts


# Rows live here and not on the object, so that vars(), repr(), copy and debuggers' views of a vault show none.
_CONTENTS: "WeakKeyDictionary[Vault, UnitRows]" = WeakKeyDictionary()
_PASSED = object()  # what only `check_public` can show


class Vault:
    """Private records. Open one, then hand it to `synthesize`; nothing can be read from it directly."""

    __slots__ = ("__weakref__", "facts")

    __iter__: ClassVar[None] = None
    __getitem__: ClassVar[None] = None
    __contains__: ClassVar[None] = None

    facts: PublicFacts

    def __init__(self, records: Records, *, unit: Unit = "record") -> None:
        if unit not in ("record", "group"):
            raise InputError(f"Expected unit to be record or group, got {unit!r}.")
        rows = UnitRows(records, unit)
        if rows.count == 0:
            raise InputError("Expected at least one record, found none.")
        self.facts = PublicFacts(
            units=rows.count,
            unit=unit,
            shape=records.shape,
            class_names=tuple(records.class_names),
            findings=records.labels.ndim == 2,
        )
        _CONTENTS[self] = rows

    @classmethod
    def open(cls, source: str, *, unit: Unit | None = None, groups: str | None = None, **options: Any) -> "Vault":
        """Open a data argument (a folder, an npz pack, ...) as a vault; `options` are those of `open_images`.

        Who names groups means them: the unit is the group then, unless it is named, too.

        >>> import veilset as vs
        >>> vs.Vault.open("builtin:digits:train")
        Vault(1438 records, 16x16x1, 10 classes, sealed)
        """
        records = resolve(_OPENER)(source, groups=groups, **options)
        return cls(records, unit=unit or ("record" if records.groups is None else "group"))

    @classmethod
    def from_arrays(
        cls, images: Any, labels: Any, *, class_names: Any = (), groups: Any = None, unit: Unit | None = None
    ) -> "Vault":
        """A vault of arrays: images (N, H, W[, C]), labels 0..K-1 and, where known, the group of each image.

        >>> import numpy as np
        >>> import veilset as vs
        >>> images, labels = np.zeros((40, 16, 16), np.uint8), np.arange(40) % 2
        >>> vs.Vault.from_arrays(images, labels, class_names=["healthy", "ill"])
        Vault(40 records, 16x16x1, 2 classes, sealed)
        >>> vs.Vault.from_arrays(images, labels, groups=np.arange(40) // 4)
        Vault(10 groups, 16x16x1, 2 classes, sealed)
        """
        records = resolve(_FROM_ARRAYS)(images, labels, class_names=class_names, groups=groups)
        return cls(records, unit=unit or ("record" if records.groups is None else "group"))

    @classmethod
    def from_dataset(cls, dataset: Any, *, unit: Unit | None = None, **options: Any) -> "Vault":
        """A vault of a torch dataset of (image, label) or of a Hugging Face dataset, read into memory.

        `options` are those of `veilset.data.datasets.from_dataset`: the names of the columns and of the classes.

        >>> import numpy as np
        >>> import veilset as vs
        >>> pairs = [(np.full((16, 16), 9 * number, np.uint8), number % 2) for number in range(20)]
        >>> vs.Vault.from_dataset(pairs)
        Vault(20 records, 16x16x1, 2 classes, sealed)
        """
        records = resolve(_FROM_DATASET)(dataset, **options)
        return cls(records, unit=unit or ("record" if records.groups is None else "group"))

    def check_public(self, records: "Records | Public", progress: Progress = SILENT) -> "Public":
        """These images as public ones; raises where private images are among them, exactly or nearly.

        Privacy: tells the custodian yes or no and how many; nothing of it reaches a release.
        """
        if type(records) is Public:
            if records.is_for(self):
                return records
            records = records._records.records
        elif not isinstance(getattr(records, "labels", None), np.ndarray):
            raise InputError(f"Expected public images as from open_images, got {type(records).__name__}.")
        compared = Compared(records)
        resolve(_OVERLAP)(_CONTENTS[self].records, compared, progress)
        return Public(compared, self, _PASSED)

    def fingerprint(self) -> str:
        """A hash of all units, to know that a resumed run has the same data. It stays with the custodian."""
        rows = _CONTENTS[self]
        digests = rows.records.digests()
        units = np.empty((rows.count, 32), np.uint8)
        for unit in range(rows.count):  # one after the other: there may be millions
            own = b"".join(sorted(map(bytes, digests[rows.of(unit)])))
            units[unit] = np.frombuffer(hashlib.sha256(rows.own_id(unit) + own).digest(), np.uint8)
        units.view("S32").sort(axis=0)
        return hashlib.sha256(units.data).hexdigest()

    @property
    def origin(self) -> str | None:
        """Where the records were read from, where they were read."""
        return getattr(_CONTENTS[self].records, "origin", None)

    def source_hashes(self, key: bytes) -> NDArray[np.uint64]:
        """Keyed hashes of the images as their source holds them, sorted, to find the account of this data.

        Privacy: depends on private records without noise. It stays with the custodian, and so does the key.
        """
        return np.unique(_keyed(_source_digests(_CONTENTS[self].records), key))

    def group_hashes(self, key: bytes) -> NDArray[np.uint64]:
        """(N, 2): keyed hashes of each image as its source holds it, and of its group.

        Privacy: as `source_hashes`.
        """
        records = _CONTENTS[self].records
        names, inverse = np.unique(np.zeros(0) if records.groups is None else records.groups, return_inverse=True)
        groups = _keyed([str(name).encode() for name in names], key)
        return np.stack([_keyed(_source_digests(records), key), groups[inverse]], axis=1)

    def most_images_of_a_group(self) -> int | None:
        """How many images the largest group has, where groups are known. It stays with the custodian."""
        groups = _CONTENTS[self].records.groups
        return None if groups is None else int(np.unique(groups, return_counts=True)[1].max())

    def __repr__(self) -> str:
        height, width, channels = self.facts.shape
        what = "findings" if self.facts.findings else "classes"
        content = f"{self.facts.units} {self.facts.unit}s, {height}x{width}x{channels}, {self.facts.classes} {what}"
        return f"Vault({content}, sealed)"

    def __reduce__(self) -> NoReturn:
        raise VeilsetError("A vault cannot be pickled or copied: that would take private records out of it.")

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"A vault has no {name!r}. Private rows leave it only through a session's mechanisms.")


def _source_digests(records: Records) -> NDArray[np.uint8]:
    """Of each image before any change of size or colours; records of one's own have one view."""
    digests: NDArray[np.uint8] = getattr(records, "source_digests", records.digests)()
    return digests


def _keyed(contents: Collection[Any], key: bytes) -> NDArray[np.uint64]:
    hashes = np.empty((len(contents), 8), np.uint8)
    for row, content in enumerate(contents):  # one after the other: there may be millions
        hashes[row] = np.frombuffer(hashlib.blake2b(bytes(content), key=key, digest_size=8).digest(), np.uint8)
    return hashes.view("<u8").astype(np.uint64)[:, 0]


class Public:
    """Public images that were compared with one vault and hold none of its own; otherwise like other `Records`.

    Only `Vault.check_public` makes one, so code that asks for this type gets no images that nobody compared. (For a
    federation's server, which has no vault, `compared_by_sites` does: every site compares them with its own.)
    """

    __slots__ = ("_records", "_vault")

    def __init__(self, records: Compared, vault: Vault | None, token: object) -> None:
        if token is not _PASSED:
            raise VeilsetError("Public images are made by vault.check_public(images), which compares them first.")
        records.is_done = vault is not None
        self._records = records
        self._vault = None if vault is None else ref(vault)

    def is_for(self, vault: Vault) -> bool:
        """Whether it was this vault, the very object, that the images were compared with."""
        return self._vault is not None and self._vault() is vault

    def __len__(self) -> int:
        return len(self._records.labels)

    def __repr__(self) -> str:
        return f"Public({self._records.records!r})"

    def __reduce__(self) -> NoReturn:
        raise VeilsetError("Public images cannot be pickled: the check holds for the vault of this process.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self._records.shape

    @property
    def labels(self) -> Labels:
        """The class of each image, 0..K-1."""
        return self._records.labels

    @property
    def groups(self) -> Groups | None:
        """To whom each image belongs, where the source says so."""
        return self._records.groups

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class."""
        return self._records.class_names

    def read(self, rows: Rows) -> Images:
        """The images of these rows."""
        return self._records.read(rows)

    def digests(self) -> NDArray[np.uint8]:
        """(N, 32) SHA-256 of each record's own pixels and label."""
        return self._records.digests()


def compared_by_sites(records: Records) -> Public:
    """Public images for a federation's server. It is for no vault, so no run on a vault takes it.

    Privacy: the server has no private records to compare with. A site compares the same images, which it knows by
    their hash in the agreement, with its own vault before it joins.
    """
    return Public(Compared(records), None, _PASSED)


def contents_of(vault: Vault) -> UnitRows:
    """The rows of a vault. For privacy/session.py alone; a test forbids every other import."""
    return _CONTENTS[vault]


def describe(facts: Mapping[str, Any]) -> PublicFacts:
    """Read `PublicFacts.to_json` back."""
    try:
        return PublicFacts(
            units=int(facts["units"]),
            unit=facts["unit"],
            shape=(int(facts["shape"][0]), int(facts["shape"][1]), int(facts["shape"][2])),
            class_names=tuple(map(str, facts["class_names"])),
            findings=facts.get("findings", False) is True,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"Not the public facts of a vault: {facts!r} ({error}).") from error
