"""A comparison as a file: methods x datasets x epsilons x seeds in TOML, checked at reading, and its cells."""

import hashlib
import itertools
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name
from veilset.data.archives.reading import Reading
from veilset.methods import METHODS
from veilset.pipeline.compare.suite_checks import check_content, check_types

_BUILTIN = "builtin:"


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A method with its settings; `title` tells two settings of one method apart."""

    method: str
    preset: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    public: bool = True  # whether the dataset's public images are handed to it
    title: str = ""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.title or self.method


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Where the private records, the test records and the public images are, as data arguments."""

    name: str
    train: str
    test: str
    public: str | None = None
    published: str | None = None  # its name in the published numbers; None is `name`
    size: int | None = None
    channels: int | None = None
    limit: int | None = None
    labels: str | None = None
    groups: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How archives and findings are read: a table with the words of the command line, `findings = ["A", "B"]`."""

    def read_as(self) -> Reading:
        """The rules for reading; what is not allowed raises. Paths in it start where the command was given."""
        names = [each.name for each in fields(Reading)]
        for key in self.reading:
            if key not in names:
                raise unknown_name("key of reading", key, names)
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.reading.items()
        }
        paths: dict[str, Any] = {key: Path(str(given[key])) for key in ("table", "groups_file") if key in given}
        try:
            return Reading(**(given | paths))
        except TypeError as error:
            raise InputError(f"{self.name}: not rules for reading: {error}.") from error


@dataclass(frozen=True, kw_only=True)
class Suite:
    """All that a comparison runs. The noise comes from the operating system's entropy unless it is seeded."""

    name: str
    methods: tuple[Entrant, ...]
    datasets: tuple[Dataset, ...]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    delta: float | None = None
    samples: int | None = None
    student: str = "convnet"
    epochs: int | None = None
    seeded_noise: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One release and one student."""

    entrant: Entrant
    dataset: Dataset
    epsilon: float
    seed: int
    delta: float | None
    samples: int | None
    student: str
    epochs: int | None
    seeded_noise: bool

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON-ready data. Rules for reading are named where there are any, so that keys stay."""
        plain = asdict(self)
        if not self.dataset.reading:
            del plain["dataset"]["reading"]
        return plain

    @property
    def key(self) -> str:
        """A name that changes with everything that could change the result, except where the data lies."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What a person is told."""
        return f"{self.entrant.name} on {self.dataset.name}, epsilon {self.epsilon:g}, seed {self.seed}"


def cells(suite: Suite) -> list[Cell]:
    """All cells, seed by seed, so that a suite that is stopped early has compared everything once."""
    return [
        Cell(
            entrant=entrant,
            dataset=dataset,
            epsilon=epsilon,
            seed=seed,
            delta=suite.delta,
            samples=suite.samples,
            student=suite.student,
            epochs=suite.epochs,
            seeded_noise=suite.seeded_noise,
        )
        for seed, dataset, epsilon, entrant in itertools.product(
            suite.seeds, suite.datasets, suite.epsilons, suite.methods
        )
    ]


def cell_from(data: Mapping[str, Any]) -> Cell:
    """Read `Cell.to_json` back."""
    values = dict(data)
    return Cell(entrant=Entrant(**values.pop("entrant")), dataset=Dataset(**values.pop("dataset")), **values)


def located(source: str, folder: Path) -> str:
    """A data argument with its path taken from `folder`."""
    return source if source.startswith(_BUILTIN) or Path(source).is_absolute() else str(folder / source)


def data_folder(suite: Path, chosen: Path | None) -> Path:
    """Where relative data paths start: --data, else $VEILSET_DATA, else the suite's own folder."""
    environment = os.environ.get("VEILSET_DATA")
    return chosen or (Path(environment) if environment else suite.parent)


def read_suite(path: Path) -> Suite:
    """Read a suite; what cannot run raises here, before the first cell."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"There is no suite at {path}. See benchmarks/suites for examples.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}.") from error
    _known(data, Suite, str(path))
    check_types(data, str(path))
    data.setdefault("name", path.stem)
    data["methods"] = tuple(_entrants(data["methods"], str(path)))
    data["datasets"] = tuple(_made(Dataset, entry, f"{path}: a dataset") for entry in data["datasets"])
    data["epsilons"] = tuple(float(epsilon) for epsilon in data["epsilons"])
    data["seeds"] = tuple(int(seed) for seed in data["seeds"])
    suite = Suite(**data)
    for kind, names in (
        ("method", [entrant.name for entrant in suite.methods]),
        ("dataset", [dataset.name for dataset in suite.datasets]),
    ):
        if len(set(names)) < len(names):
            raise InputError(f"{path}: expected different {kind}s, got {', '.join(names)}. Give a title or a name.")
    check_content(suite, str(path))
    return suite


def _entrants(given: Any, place: str) -> list[Entrant]:
    """`"all"` is every registered method with a guarantee, so that a suite grows with the registry."""
    if given == "all":
        return [Entrant(method=name) for name in METHODS if METHODS.get(name).guarantee == "dp"]
    entrants = []
    for entry in given:
        entrant = Entrant(method=entry) if isinstance(entry, str) else _made(Entrant, entry, f"{place}: a method")
        METHODS.get(entrant.method)
        entrants.append(entrant)
    return entrants


def _made(kind: Any, entry: Any, place: str) -> Any:
    if not isinstance(entry, dict):
        raise InputError(f"{place}: expected a table, got {entry!r}.")
    _known(entry, kind, place)
    if "settings" in entry:
        if not isinstance(entry["settings"], dict):
            raise InputError(f"{place}: expected settings as a table, got {entry['settings']!r}.")
        entry = entry | {"settings": {key: str(value) for key, value in entry["settings"].items()}}
    try:
        return kind(**entry)
    except TypeError as error:
        raise InputError(f"{place}: {error}.") from error


def _known(data: Mapping[str, Any], kind: Any, place: str) -> None:
    names = [each.name for each in fields(kind)]
    for key in data:
        if key not in names:
            raise unknown_name(f"key of {place}", key, names)
