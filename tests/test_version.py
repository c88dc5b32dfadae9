"""The places that name a version agree on it."""

import re
from pathlib import Path

from veilset import __version__

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_citation_names_this_version() -> None:
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]


def test_the_changelog_has_a_section_for_it_with_privacy_first() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    names = [section.split("\n", 1)[0] for section in sections]
    assert names[:2] == ["Unreleased", __version__]
    assert re.findall(r"^### (.+)$", sections[1], re.MULTILINE)[0] == "Privacy"
