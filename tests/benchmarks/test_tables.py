"""Tables from results: what a cell finds, what is stale, and where a page differs."""

import json
from pathlib import Path

import pytest

import tables.cells
import versions
from tables.cells import FOOTNOTE, Cell, Joined, Table, lines_of
from tables.making import described, renewed
from veilset.methods import METHODS
from versions import Valid, is_stale, matches, subject_of, versions_of

NOW = {"merf": METHODS.get("merf").version, "students": versions_of("merf")["students"]}
OLD = {**NOW, "merf": NOW["merf"] + 1}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tables.cells, "RESULTS", tmp_path)
    monkeypatch.setattr(versions, "declared_valid", tuple)
    lines_of.cache_clear()
    yield tmp_path / "merf.jsonl"
    lines_of.cache_clear()


def put(results: Path, *lines: dict[str, object]) -> None:
    results.write_text("".join(json.dumps({"benchmark": "merf", **line}) + "\n" for line in lines))


def test_a_cell_shows_each_seed_of_the_lines_that_match(results: Path) -> None:
    put(
        results,
        {"seed": 1, "accuracy": 0.9025, "epsilon": 1.0, "versions": NOW},
        {"seed": 0, "accuracy": 0.5, "epsilon": 1.0, "versions": NOW},
        {"seed": 0, "accuracy": 0.1, "epsilon": 10.0, "versions": NOW},
    )
    cell = Cell(results="merf.jsonl", where={"epsilon": 1.0}, times=100)
    assert cell.text() == "50.0, 90.3"
    assert Cell(results="merf.jsonl", where={"epsilon": 1.0}, times=100, show="mean").text() == "70.1"
    assert Cell(results="merf.jsonl", where={"epsilon": 1.0}, times=100, show="range").text() == "50.0 to 90.3"
    assert Cell(results="merf.jsonl", where={"epsilon": 5.0}).text() == "-"
    assert Cell(results="merf.jsonl", where={"seed": 1}, times=100).text() == "90.3 (seed 1)"


def test_a_line_of_another_version_is_marked(results: Path) -> None:
    put(results, {"seed": 0, "accuracy": 1.0, "versions": OLD}, {"seed": 1, "accuracy": 2.0, "versions": NOW})
    assert Cell(results="merf.jsonl").text() == "1.0†, 2.0"
    put(results, {"seed": 0, "accuracy": 1.0}, {"seed": 1, "accuracy": 2.0})
    lines_of.cache_clear()
    cell = Cell(results="merf.jsonl")
    assert cell.text() == "1.0, 2.0†"
    assert Joined(parts=(cell, " against ", cell)).text() == "1.0, 2.0 against 1.0, 2.0†"
    assert FOOTNOTE in Table(heads=("a",), rows=[(cell,)]).text()


def test_a_current_line_wins_over_a_stale_one_wherever_it_stands(results: Path) -> None:
    put(results, {"seed": 0, "accuracy": 1.0, "versions": NOW}, {"seed": 0, "accuracy": 2.0, "versions": OLD})
    assert Cell(results="merf.jsonl").text() == "1.0"
    put(results, {"seed": 0, "accuracy": 1.0, "versions": NOW}, {"seed": 0, "accuracy": 2.0, "versions": NOW})
    lines_of.cache_clear()
    assert Cell(results="merf.jsonl").text() == "2.0"


def test_a_declaration_covers_its_lines_and_its_versions_alone() -> None:
    line = {"benchmark": "merf", "epsilon": 1.0, "date": "2026-11-18"}
    here = Valid(results="merf.jsonl", where={"epsilon": 1.0, "date_from": "2026-11-17"}, versions=NOW, reason="so")
    assert not is_stale(line, "merf.jsonl", (here,))
    assert is_stale({**line, "epsilon": 2.0}, "merf.jsonl", (here,))
    assert is_stale({**line, "date": "2026-11-16"}, "merf.jsonl", (here,))
    assert is_stale(line, "merf.jsonl", (Valid(results="merf.jsonl", versions=OLD, reason="so"),))
    assert is_stale(line, "merf.jsonl", ())


def test_every_declaration_has_a_reason_and_covers_a_line() -> None:
    for valid in versions.declared_valid():
        assert len(valid.reason) > 20
        assert any(matches(line, valid.where) for line in lines_of(valid.results)), valid


def test_a_line_names_what_it_is_about() -> None:
    assert subject_of({"benchmark": "plan", "method": "dfd"}, "dfd.jsonl") == "plan"
    assert subject_of({"method": "pate", "suite": "x"}, "mnist_fashion/results.jsonl") == "pate"
    assert subject_of({"data": "mnist"}, "teachers.jsonl") == "teachers"
    assert set(versions_of("imgsyn")) == {"imgsyn", "students", "teachers"}
    assert set(versions_of("merf")) == {"merf", "students"}


def test_a_page_is_renewed_between_its_markers_alone() -> None:
    table = Table(heads=("a", "b"), rows=[("1", "2")])
    page = "x\n<!-- table: t -->\n| old |\n<!-- end of table -->\ny"
    new = renewed(page, {"t": table})
    assert new == "x\n<!-- table: t -->\n| a | b |\n|---|---|\n| 1 | 2 |\n<!-- end of table -->\ny"
    assert renewed(new, {"t": table}) == new
    with pytest.raises(SystemExit, match="no table is called"):
        renewed(page, {})


def test_every_described_table_stands_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in tables.making.markdown_pages())
    assert sorted(name for name in described() if f"<!-- table: {name} -->" not in pages) == []
