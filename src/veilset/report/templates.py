"""Where the pages' templates and style come from."""

from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup


def template(name: str) -> Template:
    """A template. Names and labels come from people and files: everything is escaped unless it is made here."""
    environment = Environment(
        loader=DictLoader({name: _text(name)}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["short"] = lambda value: f"{value:.3g}"
    return environment.get_template(name)


def style() -> Markup:
    """The style sheet of every page."""
    return Markup(_text("style.css"))


def _text(name: str) -> str:
    return files("veilset.report").joinpath("pages", name).read_text(encoding="utf-8")
