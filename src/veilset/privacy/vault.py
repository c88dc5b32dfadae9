"""The vault: private records behind a wall with no window.

There is no indexing, no iteration, no length, no attribute that holds data. Rows leave only through the mechanisms of a
`Session` (privacy/session.py), which first pays for them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NoReturn
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Groups, Images, Labels, Records, Rows, one_by_one, source_digests_by_row
from veilset.core.registry import resolve
from veilset.core.sealed_rows import SealedRows
from veilset.privacy.compared import Compared
from veilset.privacy.unit_rows import UnitRows

Unit = Literal["record", "group"]

# The layers of data and releases lie above this one, so their functions are named and loaded on demand.
_OPENER = "veilset.data.opening:open_images"
_FROM_ARRAYS = "veilset.data.datasets:from_arrays"
_FROM_DATASET = "veilset.data.datasets:from_dataset"
_OVERLAP = "veilset.data.overlap:refuse_overlap"
_NO_RELEASE = "veilset.release.inputs:refuse_release_as_public"


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

        Images that were read from a release are refused, too: what it cost would be forgotten.

        Privacy: tells the custodian yes or no and how many; nothing of it reaches a release.
        """
        if type(records) is Public:
            if records.is_for(self):
                return records
            records = records._records.records
        elif not isinstance(getattr(records, "labels", None), np.ndarray):
            raise InputError(f"Expected public images as from open_images, got {type(records).__name__}.")
        resolve(_NO_RELEASE)(getattr(records, "origin", None))
        compared = Compared(records)
        resolve(_OVERLAP)(_CONTENTS[self].records, compared, progress)
        return Public(compared, self, _PASSED)

    def fingerprint(self) -> str:
        """A hash of all units, to know that a resumed run has the same data. It stays with the custodian."""
        units, hashed = SealedRows(), hashlib.sha256()
        for content in _CONTENTS[self].contents():  # one after the other: there may be millions
            units.append(hashlib.sha256(content).digest())
        for block in units.in_order():
            hashed.update(block.data)
        return hashed.hexdigest()

    @property
    def origin(self) -> str | None:
        """Where the records were read from, where they were read."""
        return getattr(_CONTENTS[self].records, "origin", None)

    def source_hashes(self, key: bytes) -> NDArray[np.uint64]:
        """Keyed hashes of the images as their source holds them, sorted, to find the account of this data.

        Privacy: depends on private records without noise. It stays with the custodian, and so does the key.
        """
        hashes = _source_hashes(_CONTENTS[self], key)
        hashes.sort()
        is_new = np.ones(len(hashes), np.bool_)
        np.not_equal(hashes[1:], hashes[:-1], out=is_new[1:])
        return hashes[is_new]

    def group_hashes(self, key: bytes) -> NDArray[np.uint64]:
        """(N, 2): keyed hashes of each image as its source holds it, and of its group.

        Privacy: as `source_hashes`.
        """
        rows = _CONTENTS[self]
        known = rows.records.groups
        names, inverse = np.unique(np.zeros(0) if known is None else known, return_inverse=True)
        groups = _keyed((str(name).encode() for name in names), len(names), key)
        return np.stack([_source_hashes(rows, key), groups[inverse]], axis=1)

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


def _source_hashes(rows: UnitRows, key: bytes) -> NDArray[np.uint64]:
    return _keyed(one_by_one(source_digests_by_row(rows.records), rows.images), rows.images, key)


def _keyed(contents: Iterable[bytes], count: int, key: bytes) -> NDArray[np.uint64]:
    hashes = (hashlib.blake2b(content, key=key, digest_size=8).digest() for content in contents)
    return np.fromiter((int.from_bytes(own, "little") for own in hashes), np.uint64, count)


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
    resolve(_NO_RELEASE)(getattr(records, "origin", None))
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
