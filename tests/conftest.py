"""Options and fixtures for every test."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilset.core.errors import flags_spoken

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = []
    if not (config.getoption("--slow") or os.environ.get("CI")):
        left_out.append(("slow", "a minute long; run with --slow"))
    if not config.getoption("--nightly"):
        left_out.append(("nightly", "many minutes long; run with --nightly"))
    for item in items:
        for marker, reason in left_out:
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)  # first, so that no process ends alone with them


@pytest.fixture(scope="session", autouse=True)
def _state_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Accounts of fixtures that live longer than a test; never those of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("state")
        patch.setenv("VEILSET_STATE", str(place / "session"))
        yield place


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _state_of_the_test(_state_of_the_session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounts of one test alone: others use the same records."""
    monkeypatch.setenv("VEILSET_STATE", str(_state_of_the_session / str(next(_numbers))))


@pytest.fixture(autouse=True)
def _modules_of_the_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that one test writes and imports is not there for the next, which may write its own of that name."""
    before = set(sys.modules)
    yield
    place = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(place):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _errors_as_the_command_line_shows_them() -> Iterator[None]:
    """What Python callers read instead is tested in tests/core/test_errors.py."""
    with flags_spoken():
        yield


@pytest.fixture
def fewer_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions of a teacher's code from fewer drawn pictures: the same code in a third of the time."""
    monkeypatch.setattr("veilset.teachers.fitting._PICTURES", 1200)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real packs: $VEILSET_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set VEILSET_DATA")
    return folder
