"""What can be wrong with a suite, found before its first cell runs: types, ranges, settings and missing data."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError, VeilsetError
from veilset.data.opening import require_source
from veilset.methods import METHODS
from veilset.models import NETWORKS
from veilset.privacy.budget import Budget

if TYPE_CHECKING:
    from veilset.pipeline.compare.suite import Suite

_LISTS = ("methods", "datasets", "epsilons", "seeds")
_COUNTS = ("samples", "epochs")
_TEXTS = ("name", "student")
_COUNTS_OF_DATA, _TEXTS_OF_DATA = ("size", "channels", "limit"), ("name", "train", "test")
_OTHER_TEXTS_OF_DATA = ("public", "published", "labels", "groups")


def check_types(data: Mapping[str, Any], place: str) -> None:
    """Refuse values of another type than a suite has, and lists that are empty."""
    for name in _LISTS:
        given = data.get(name)
        if not given:
            raise InputError(f"{place}: expected a list of {name}, got none.")
        if not isinstance(given, list) and not (name == "methods" and given == "all"):
            wanted = '"all" or a list' if name == "methods" else "a list"
            raise InputError(f"{place}: expected {name} = {wanted}, got {given!r}. Write it in brackets: [...].")
    for value in data["epsilons"]:
        if not _is_number(value) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{place}: expected epsilons > 0, got {value!r}.")
    for value in data["seeds"]:
        if not _is_count(value, 0):
            raise InputError(f"{place}: expected seeds as whole numbers from 0, got {value!r}.")
    delta = data.get("delta")
    if delta is not None:
        if not _is_number(delta):
            raise InputError(f"{place}: expected delta as a number, got {delta!r}.")
        try:
            Budget(1.0, float(delta))
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
    if not isinstance(data.get("seeded_noise", False), bool):
        raise InputError(f"{place}: expected seeded_noise = true or false, got {data['seeded_noise']!r}.")
    _check_entries(data, place, counts=_COUNTS, texts=_TEXTS)
    for entry in data["datasets"]:
        if isinstance(entry, dict):
            texts = (*_TEXTS_OF_DATA, *_OTHER_TEXTS_OF_DATA)
            _check_entries(entry, f"{place}: a dataset", counts=_COUNTS_OF_DATA, texts=texts)
            if not isinstance(entry.get("reading", {}), dict):
                raise InputError(f"{place}: a dataset: expected reading as a table, got {entry['reading']!r}.")


def check_content(suite: "Suite", place: str) -> None:
    """Refuse a student that is no network, and settings that a method does not take."""
    if ":" not in suite.student and suite.student.partition("@")[0] not in NETWORKS:
        NETWORKS.get(suite.student)
    for dataset in suite.datasets:
        dataset.read_as()
    for entrant in suite.methods:
        try:
            METHODS.get(entrant.method).configure(entrant.preset, entrant.settings)
        except VeilsetError as error:
            raise InputError(f"{place}: {entrant.name}: {error}") from error


def check_data(suite: "Suite", folder: Path) -> None:
    """Refuse data that is not there, all of it before anything runs."""
    from veilset.pipeline.compare.suite import located

    for dataset in suite.datasets:
        for name, source in (("train", dataset.train), ("test", dataset.test), ("public", dataset.public)):
            if source is not None:
                try:
                    require_source(located(source, folder))
                except InputError as error:
                    raise InputError(f"{dataset.name}, {name}: {error} Relative paths start at {folder}.") from error


def _check_entries(data: Mapping[str, Any], place: str, *, counts: tuple[str, ...], texts: tuple[str, ...]) -> None:
    for name in counts:
        if data.get(name) is not None and not _is_count(data[name], 1):
            raise InputError(f"{place}: expected {name} as a whole number of at least 1, got {data[name]!r}.")
    for name in texts:
        if data.get(name) is not None and not isinstance(data[name], str):
            raise InputError(f"{place}: expected {name} as text, got {data[name]!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
