"""Code blocks of README and docs run, in a folder of toy data. CONTRIBUTING says how a page opts out.

Every preset is the method's smallest one (`smoke`), so that a block takes seconds.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import toy_world
from code_blocks import PYTHON, SHELL, SMALL, Block, blocks_of, commands_of, run_shell, small_python, smaller

from veilset.methods import METHODS
from veilset.methods.base import SMOKE, Method

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
BLOCKS = {page: list(blocks_of(page.read_text(encoding="utf-8"))) for page in PAGES}
GIVEN = re.compile(r"<!-- given: release -->")


def runs(block: Block) -> bool:
    return block.language in {PYTHON, SHELL} and block.not_run is None


RUN = [page for page in PAGES if any(runs(block) for block in BLOCKS[page])]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("world")
    toy_world.make(place)
    return place


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "here"
    shutil.copytree(world, place)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("VEILSET_STATE", str(tmp_path / "state"))
    configure = Method.configure.__func__  # type: ignore[attr-defined]

    def smallest(kind: Any, preset: str = "default", settings: Mapping[str, Any] | None = None, **options: Any) -> Any:
        configure(kind, preset, settings, **options)  # refuses what does not exist
        return configure(kind, SMOKE, settings, **options)

    monkeypatch.setattr(Method, "configure", classmethod(smallest))
    for name in METHODS:
        monkeypatch.setattr(METHODS.get(name), "default_samples", lambda method, facts: int(SMALL["--samples"]))
    return place


@pytest.mark.parametrize("page", RUN, ids=named)
def test_blocks_run(page: Path, here: Path) -> None:
    if GIVEN.search(page.read_text(encoding="utf-8")):
        toy_world.make_release()
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in filter(runs, BLOCKS[page]):
        where = f"{named(page)}:{block.line}"
        if block.saved_as is not None:
            (here / block.saved_as).write_text(block.code, encoding="utf-8")
        elif block.language == SHELL:
            run_shell(block.code, where)
        else:
            exec(compile(small_python(block.code), where, "exec"), names)


def test_a_block_without_an_excuse_runs() -> None:
    text = "a\n```sh\nveilset x\n```\n<!-- not run: needs a server -->\n```sh\nveilset y\n```\n"
    first, second = blocks_of(text)
    assert (first.not_run, first.line, second.not_run) == (None, 2, "needs a server")
    assert next(blocks_of("<!-- not run: no -->\n```sh\nveilset y\n```\n")).not_run is None  # too short a reason


def test_commands_are_made_small_and_nothing_else() -> None:
    (words,) = commands_of("veilset synthesize x --size 64 \\\n   --out r  # why\n")
    assert smaller(words[1:]) == ["synthesize", "x", "--size", "16", "--out", "r", "--yes", "--samples", "24"]


@pytest.mark.usefixtures("here")
def test_a_block_that_fails_is_found() -> None:
    with pytest.raises(AssertionError, match="No such option"):
        run_shell("veilset verify release --nonsense\n", "page:1")
    with pytest.raises(AssertionError, match="only veilset's commands"):
        run_shell("rm -r x\n", "page:1")
