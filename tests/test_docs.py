"""What the pages name is there: files, folders, modules, links, commands with their options, settings, presets."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
from code_blocks import PYTHON, READ, SHELL, blocks_of

from tables.making import PLACE, markdown_pages, outdated
from veilset.cli.main import app
from veilset.methods import METHODS
from veilset.methods.base import SMOKE
from veilset.release.layout import LISTABLE

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")])
BASES = (ROOT, ROOT / "src" / "veilset", ROOT / "docs")
TOP = {path.name for base in (ROOT, ROOT / "src" / "veilset") for path in base.iterdir() if path.is_dir()}

FILE = re.compile(r"(?<![\w/.:-])((?:[\w-]+/)*[\w-]+\.(?:py|md|jsonl|toml|png|svg))\b(?!\.)")
OWN = re.compile(r"my\w*\.py|mine\.py")  # what a reader is asked to write
FOLDER = re.compile(r"`((?:\w+/)+\w+/)`")
MODULE = re.compile(r"\bveilset(?:\.\w+)+")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
COMMAND = re.compile(r"(?:^|`)(veilset [a-z][^`\n]*)", re.MULTILINE)
SETTING = re.compile(r"--set ([a-z_]+)=")


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    # Finished sections of the changelog speak of the files of their day.
    return text if path.name != "CHANGELOG.md" else re.split(r"^## \d", text, flags=re.MULTILINE)[0]


def is_placeholder(name: str) -> bool:
    return re.search(r"\b(NAME|OUT|RELEASE)\b", name) is not None


def _is_somewhere(name: str) -> bool:
    return any(any((ROOT / top).rglob(name)) for top in ("src", "tests", "docs", "benchmarks", "examples"))


def missing_files(text: str, near: Path) -> Iterator[str]:
    """Files and folders that are nowhere.

    A bare name may be of any folder of the repository, or of a release; a bare picture or table may be what a reader
    makes.
    """
    for name in {*FILE.findall(text), *FOLDER.findall(text)}:
        if is_placeholder(name) or name in LISTABLE or (name.endswith("/") and name.split("/")[0] not in TOP):
            continue
        if OWN.match(name) or (name.endswith(".png") and name.split("/")[0] not in TOP):
            continue
        if any((base / name).exists() for base in (*BASES, near)):
            continue
        if "/" not in name and (name.endswith((".png", ".svg", ".jsonl", ".toml")) or _is_somewhere(name)):
            continue
        yield name


def missing_modules(text: str) -> Iterator[str]:
    """Modules that are not in the source; the last part may be a name that its module defines."""
    for name in set(MODULE.findall(text)):
        place = ROOT.joinpath("src", *name.split("."))
        inside = place.parent.with_suffix(".py")
        inside = inside if inside.exists() else place.parent / "__init__.py"
        defined = inside.exists() and re.search(rf"\b{place.name}\b", inside.read_text(encoding="utf-8"))
        if not (place.is_dir() or place.with_suffix(".py").exists() or defined):
            yield name


def command_of(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """The command that the words begin with, and the words after it; None where there is no such command."""
    found: click.Command = typer.main.get_command(app)
    while isinstance(found, click.Group):
        if not words or words[0].startswith("-"):
            return found, words
        if words[0] not in found.commands:
            return None
        found, words = found.commands[words[0]], words[1:]
    return found, words


def missing_commands(text: str) -> Iterator[str]:
    """Commands, and long options of commands, that are not there."""
    for line in COMMAND.findall(re.sub(r"\\\n\s*", " ", text)):
        found = command_of(line.split("#")[0].split()[1:])
        if found is None:
            yield line
            continue
        command, words = found
        known = {"--help", *(option for parameter in command.params for option in parameter.opts)}
        yield from (
            f"{command.name} {option}"
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(words))
            if option not in known
        )


def missing_settings(text: str) -> Iterator[str]:
    known = {setting for name in METHODS for setting in METHODS.get(name).settings_type.model_fields}
    yield from set(SETTING.findall(text)) - known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = text_of(page)
    assert sorted(missing_files(text, page.parent)) == []
    assert sorted(missing_modules(text)) == []
    assert sorted(missing_commands(text)) == []
    assert sorted(missing_settings(text)) == []
    links = {link for link in LINK.findall(text) if page.suffix == ".md"}
    assert sorted(link for link in links if not (page.parent / link).exists()) == []


@pytest.mark.parametrize(
    "text",
    [
        "see `privacy/purse.py`",
        "see purse.py",
        "the folder `privacy/purses/`",
        "`from veilset.privacy.purse import Purse`",
        "veilset.privacy.session.Purse",
        "`veilset evaluate R --yardsticks`",
        "veilset evaluate R --test T \\\n    --yardsticks",
        "`veilset purse`",
        "`--set grain=0.3`",
    ],
)
def test_what_is_gone_is_found(text: str) -> None:
    found = [*missing_files(text, ROOT), *missing_modules(text), *missing_commands(text), *missing_settings(text)]
    assert len(found) == 1


def test_tables_are_made_from_results() -> None:
    """`scripts/bench tables` makes them again; what they show is described in benchmarks/tables/pages."""
    assert sorted(str(page.relative_to(ROOT)) for page in outdated()) == []


def typed_tables(text: str) -> list[str]:
    """First lines of tables with three numbers or more that stand outside the markers and do not say why."""
    rest = re.sub(r"<!-- no results: .+ -->\n(\|.*\n)+", "", PLACE.sub("", text))
    found = re.findall(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    return [table.split("\n")[0] for table in found if len(re.findall(r"\| \d+\.\d", table)) > 2]


def test_no_table_with_measured_numbers_is_typed() -> None:
    for page in markdown_pages():
        assert typed_tables(text_of(page)) == [], f"{page.name}: see Tables in CONTRIBUTING.md"


def test_a_typed_table_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 97.1 | 98.2 |\n| 97.3 | 98.4 |\n"
    assert typed_tables(table) == ["| a | b |"]
    assert typed_tables(f"<!-- no results: trials -->\n{table}") == []
    assert typed_tables(f"<!-- table: t -->\n{table}<!-- end of table -->\n") == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked, wanted = set(), [ROOT / "README.md"]
    while wanted:
        page = wanted.pop()
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if target.suffix == ".md" and target not in linked and target.exists():
                linked.add(target)
                wanted.append(target)
    assert sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md") if page not in linked) == []


@pytest.mark.parametrize("name", sorted(METHODS))
def test_presets_that_pages_ask_for_are_there(name: str) -> None:
    """`--preset P` in a line that names the method."""
    known = {*METHODS.get(name).presets, SMOKE}
    for page in PAGES:
        for line in COMMAND.findall(re.sub(r"\\\n\s*", " ", text_of(page))):
            if re.search(rf"(-m|--method) {name}\b", line):
                asked = set(re.findall(r"(?:-p|--preset) ([a-z][\w-]*)", line))
                assert asked <= known, f"{page.name}: {line}"


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert len(re.findall(r"^\|", PLACE.search(text)[0], re.MULTILINE)) <= 2 + 8  # type: ignore[index]


SHORTHAND = re.compile(r"\bissues? #?\d+|#\d+\b|\bour (?:goals?|targets?)\b|\.\./shared|(?<![\w.])/(?:work|tmp)/")


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=lambda page: page.name)
def test_pages_speak_of_the_project_alone(page: Path) -> None:
    """No numbers of issues, no plans of the makers, no places outside of the repository."""
    assert SHORTHAND.findall(text_of(page)) == []


def test_every_block_names_its_language() -> None:
    """`sh` and `python` are run (tests/test_code_blocks.py), the others are to read; CONTRIBUTING says more."""
    for page in (page for page in PAGES if page.suffix == ".md"):
        for block in blocks_of(page.read_text(encoding="utf-8")):
            assert block.language in {PYTHON, SHELL, *READ}, f"{page.relative_to(ROOT)}:{block.line}"
