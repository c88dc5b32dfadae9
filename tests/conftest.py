"""Options and fixtures for every test."""

import os
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real packs: $VEILSET_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set VEILSET_DATA")
    return folder
