"""The examples in the docstrings of public names run, each in an empty folder and with accounts of its own."""

import contextvars
import doctest
import inspect
from pathlib import Path

import pytest

import veilset

OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
SHOWN_ELSEWHERE = {"Evaluation", "Job", "Release"}  # in the examples of evaluate, plan and load_release


def examples_of(name: str) -> list[doctest.DocTest]:
    thing = getattr(veilset, name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(thing, name=f"veilset.{name}", module=inspect.getmodule(thing))
    return [test for test in found if test.examples]


NAMES = sorted(set(veilset.__all__) - {"__version__"} - SHOWN_ELSEWHERE)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = examples_of(name)
    assert tests, "a public name without an example"
    for number, test in enumerate(tests):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.chdir(place)
        monkeypatch.setenv("VEILSET_STATE", str(place / "state"))
        runner = doctest.DocTestRunner(optionflags=OPTIONS)
        lines: list[str] = []
        # As outside of the tests, which read errors as the command line shows them.
        contextvars.Context().run(runner.run, test, out=lines.append)
        assert not runner.failures, "".join(lines)
