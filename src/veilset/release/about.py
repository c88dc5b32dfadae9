"""What only the publisher can say of a release: its title, its licence, who publishes it, and whose images it is of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name

UNSAID = "to be filled in by the publisher"
_LONGEST = 2_000
_TITLE = "Synthetic images"

LICENCES: Mapping[str, str] = {
    "apache-2.0": "https://spdx.org/licenses/Apache-2.0",
    "cc-by-4.0": "https://spdx.org/licenses/CC-BY-4.0",
    "cc-by-nc-4.0": "https://spdx.org/licenses/CC-BY-NC-4.0",
    "cc-by-nc-sa-4.0": "https://spdx.org/licenses/CC-BY-NC-SA-4.0",
    "cc-by-nd-4.0": "https://spdx.org/licenses/CC-BY-ND-4.0",
    "cc-by-sa-4.0": "https://spdx.org/licenses/CC-BY-SA-4.0",
    "cc0-1.0": "https://spdx.org/licenses/CC0-1.0",
    "cdla-permissive-2.0": "https://spdx.org/licenses/CDLA-Permissive-2.0",
    "mit": "https://spdx.org/licenses/MIT",
    "odbl": "https://spdx.org/licenses/ODbL-1.0",
    "odc-by": "https://spdx.org/licenses/ODC-By-1.0",
    "pddl": "https://spdx.org/licenses/PDDL-1.0",
}
"""Licences by their names on the Hugging Face Hub; any other licence is given by its address."""


@dataclass(frozen=True, kw_only=True)
class About:
    """Words of the publisher. Everything here is published; None is not said yet.

    >>> import veilset as vs
    >>> about = vs.About(title="Chest X-rays", licence="cc-by-4.0", publisher="St. Mary's")
    >>> about.missing()
    ['whose images these stand for (--description)']
    """

    title: str = _TITLE
    licence: str | None = None  # a key of LICENCES, or an address
    publisher: str | None = None
    description: str | None = None  # whose images they stand for, and how those were collected

    def __post_init__(self) -> None:
        for name in ("title", "publisher", "description"):
            value = getattr(self, name)
            if value is not None and not 0 < len(value.strip()) <= _LONGEST:
                raise InputError(f"Expected {name} to be a text of 1 to {_LONGEST} letters.")
        if self.licence is not None and self.licence not in LICENCES and not is_address(self.licence):
            raise unknown_name("licence", self.licence, [*LICENCES, "or its address, https://..."])

    @property
    def licence_address(self) -> str | None:
        """Where the licence can be read."""
        return None if self.licence is None else LICENCES.get(self.licence, self.licence)

    def missing(self) -> list[str]:
        """What a reader will ask for and does not find."""
        said = {"a licence (--license)": self.licence, "a publisher (--publisher)": self.publisher}
        said |= {"whose images these stand for (--description)": self.description}
        return [name for name, value in said.items() if value is None] + (
            ["a title of its own (--title)"] if self.title == _TITLE else []
        )

    def but(self, **values: str | None) -> "About":
        """The same words but for those that are given."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def front_matter(self) -> list[str]:
        """The licence as a dataset card on the Hugging Face Hub names it."""
        if self.licence is None:
            return ["license: other", "license_name: to-be-chosen-by-the-publisher"]
        if self.licence in LICENCES:
            return [f"license: {self.licence}"]
        return ["license: other", "license_name: the-publishers-own", f"license_link: {self.licence}"]


def is_address(text: str) -> bool:
    """Whether a text is a plain web address."""
    return re.fullmatch(r"https?://[\w.~:/?#@!$&()*+,;=%-]+", text) is not None


def about_of(croissant: Any) -> About:
    """The words of the publisher out of a release's croissant.json; what is not of that form is not said."""
    if not isinstance(croissant, dict):
        return About()
    names = {address: name for name, address in LICENCES.items()}
    licence, creator = croissant.get("license"), croissant.get("creator")
    publisher = creator.get("name") if isinstance(creator, dict) else None
    found = {
        "title": croissant.get("name"),
        "licence": names.get(licence, licence) if isinstance(licence, str) else None,
        "publisher": publisher,
        "description": croissant.get("rai:dataCollection"),
    }
    try:
        return About().but(**{k: v for k, v in found.items() if isinstance(v, str) and v != UNSAID})
    except InputError:
        return About()
