"""Pages that are made from the code name all of it, and links of the repository hold on the site."""

import re
from pathlib import Path

import click
import pytest
import typer.main
from doctests import fenced
from hooks import MARKER, _expanded, _named, moved
from ideas import FOLDER, IDEAS, _lines, drawn
from pages_from_code import MADE, _walk, api, commands, exit_codes, formats, settings

import veilset
from veilset.cli.main import app
from veilset.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"


def test_every_command_and_option_is_listed() -> None:
    parts = {part.split("\n")[0]: part for part in re.split(r"^## ", commands(), flags=re.MULTILINE)[1:]}
    known = dict(_walk(typer.main.get_command(app), "veilset"))
    assert list(parts) == list(known)
    for name, command in known.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in parts[name], f"{name} {parameter.opts[0]}"


def test_every_setting_is_listed() -> None:
    parts = {part.split("\n")[0]: part for part in re.split(r"^## ", settings(), flags=re.MULTILINE)[1:]}
    for name in METHODS:
        rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .+ \|$", parts[name], re.MULTILINE)
        assert rows == list(METHODS.get(name).settings_type.model_fields)


def test_every_public_name_is_listed() -> None:
    assert set(re.findall(r"heading: veilset\.(\w+)", api())) == {*veilset.__all__} - {"__version__"}


def test_schemas_and_exit_codes_are_listed() -> None:
    assert formats().count('"$schema"') == 1
    assert all(f"settings of {name} " in formats() for name in METHODS)
    assert re.findall(r"^\| (\d+) ", exit_codes(), re.MULTILINE) == ["0", "1", "2", "3", "4", "5", "130"]


def test_every_made_part_has_its_page() -> None:
    asked = [name for page in DOCS.rglob("*.md") for name in MARKER.findall(page.read_text(encoding="utf-8"))]
    assert sorted(asked) == sorted(MADE)


@pytest.mark.parametrize(
    ("page", "target", "link"),
    [
        ("index.md", "docs/methods/merf.md", "methods/merf.md"),
        ("index.md", "CHANGELOG.md", "project/changelog.md"),
        ("project/contributing.md", "docs/explanation/design.md", "../explanation/design.md"),
        ("methods/merf.md", "../../README.md", "../index.md"),
        ("methods/merf.md", "../images/merf-mnist.png", "../images/merf-mnist.png"),
        ("methods/merf.md", "imgsyn.md", "imgsyn.md"),
        ("index.md", "examples", None),
        ("methods/merf.md", "../../src/veilset/cli/main.py", None),
    ],
)
def test_links_hold_on_the_site(page: str, target: str, link: str | None) -> None:
    assert moved(target, page) == link


def test_a_star_in_the_menu_stands_for_the_other_pages(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("x", "y", "z"):
        (tmp_path / "a" / f"{name}.md").touch()
    menu = [{"A": ["a/y.md", "a/*"]}]
    assert _expanded(menu, _named(menu), tmp_path) == [{"A": ["a/y.md", "a/x.md", "a/z.md"]}]


def test_every_method_has_its_picture() -> None:
    assert sorted(IDEAS) == sorted(METHODS), "add the idea of a new method to scripts/website/ideas.py"
    for name, idea in IDEAS.items():
        page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert f"../images/ideas/{name}.svg" in page
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn(name, idea), (
            "python scripts/website/ideas.py"
        )


def test_words_of_a_picture_stay_in_their_boxes() -> None:
    for idea in IDEAS.values():
        for words in (idea.private, idea.follows, idea.released, idea.public):
            assert len(_lines(words)) <= 3
            assert max(map(len, _lines(words))) <= 21


def test_examples_of_docstrings_become_blocks() -> None:
    text = "Adds.\n\nArgs:\n    x: a number.\n\n>>> 1 + 1\n2\n>>> a[0][0]\n\nMore."
    assert fenced(text) == "Adds.\n\nArgs:\n    x: a number.\n\n```pycon\n>>> 1 + 1\n2\n>>> a[0][0]\n```\n\nMore."
    assert fenced("No example; 3 >>> 2.") == "No example; 3 >>> 2."
