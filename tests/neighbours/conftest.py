"""Neighbour runs play every method many times."""

import pytest


@pytest.fixture(autouse=True)
def _fewer_pictures(fewer_pictures: None) -> None:
    """For all of them."""
