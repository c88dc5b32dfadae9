"""Suites: read strictly, resumed without doing a cell twice, failures kept apart, tables with published numbers."""

import json
from dataclasses import replace

import pytest

from veilset.core.errors import InputError
from veilset.data.archives.reading import Reading
from veilset.methods import METHODS
from veilset.pipeline.compare.comparison import RESULTS, CellError, compare, read_lines, run_cell
from veilset.pipeline.compare.suite import Cell, Dataset, cell_from, cells, data_folder, located, read_suite
from veilset.pipeline.compare.suite_checks import check_data
from veilset.pipeline.compare.worker import measure
from veilset.report.comparison import html, markdown, plots_of, rows_of
from veilset.report.published import published, published_for

TEXT = """
name = "small"
methods = ["merf", { method = "merf", title = "merf, quick", preset = "fast", settings = { steps = 2 } }]
epsilons = [1, 10]
seeds = [0, 1]
delta = 1e-5

[[datasets]]
name = "digits"
train = "digits.npz:train"
test = "digits.npz:test"
published = "mnist"
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "suite.toml").write_text(TEXT)
    return read_suite(tmp_path / "suite.toml")


def result_of(cell: Cell, folder) -> dict:
    """A made-up result that depends on the cell."""
    accuracy = 0.5 + cell.epsilon / 50 + cell.seed / 100
    return {"accuracy": accuracy, "seconds": 10 * cell.epsilon, "peak_mb": 100, "guarantee": "dp"}


def test_cells_are_the_product_and_survive_json(suite):
    every = cells(suite)
    assert len(every) == len({cell.key for cell in every}) == 2 * 2 * 2
    assert [cell.seed for cell in every[:4]] == [0] * 4
    again = [cell_from(json.loads(json.dumps(cell.to_json()))) for cell in every]
    assert [cell.key for cell in again] == [cell.key for cell in every]
    assert every[1].entrant.settings == {"steps": "2"}


def test_a_dataset_says_how_archives_are_read(tmp_path):
    place = tmp_path / "suite.toml"
    place.write_text(TEXT + '[datasets.reading]\nfindings = ["A", "B"]\nuncertain = "zeros"\n')
    cell = cells(read_suite(place))[0]
    assert cell.dataset.read_as() == Reading(findings=("A", "B"), uncertain="zeros")
    again = cell_from(json.loads(json.dumps(cell.to_json())))
    assert again.key == cell.key
    assert again.dataset.read_as() == cell.dataset.read_as()
    for words, problem in (('frame = "first"', "Did you mean frames"), ('frames = "last"', "first, middle or all")):
        place.write_text(TEXT + f"[datasets.reading]\n{words}\n")
        with pytest.raises(InputError, match=problem):
            read_suite(place)
    place.write_text(TEXT + 'reading = "findings"\n')
    with pytest.raises(InputError, match="reading as a table"):
        read_suite(place)


def test_finished_cells_are_not_run_again(suite, tmp_path):
    ran = []

    def runner(cell, folder):
        ran.append(cell.key)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return result_of(cell, folder)

    with pytest.raises(KeyboardInterrupt):
        compare(suite, tmp_path / "out", tmp_path, runner=runner)
    assert len(read_lines(tmp_path / "out" / RESULTS)) == 3
    assert len(compare(suite, tmp_path / "out", tmp_path, runner=runner, run_missing=False).lines) == 3
    done = compare(suite, tmp_path / "out", tmp_path, runner=runner)
    assert len(done.lines) == 8
    assert len(ran) == 9  # only the interrupted cell ran twice
    assert compare(suite, tmp_path / "out", tmp_path, runner=runner).lines == done.lines
    assert len(ran) == 9
    assert {"commit", "settings", "seconds", "peak_mb", "seed", "veilset"} <= set(done.lines[0])


def test_half_a_line_is_dropped_and_its_cell_runs_again(suite, tmp_path):
    compare(suite, tmp_path / "out", tmp_path, runner=result_of)
    place = tmp_path / "out" / RESULTS
    place.write_bytes(place.read_bytes()[:-20])
    done = compare(suite, tmp_path / "out", tmp_path, runner=result_of)
    assert len(done.lines) == 8
    assert len(read_lines(place)) == 8
    place.write_bytes(b"not json\n")
    with pytest.raises(InputError, match="Line 1 of"):
        compare(suite, tmp_path / "out", tmp_path, runner=result_of)


def test_a_failed_cell_is_told_and_tried_again(suite, tmp_path):
    def runner(cell, folder):
        if cell.epsilon == 10:
            raise CellError("out of luck")
        return result_of(cell, folder)

    done = compare(suite, tmp_path / "out", tmp_path, runner=runner)
    assert len(done.lines) == len(done.failures) == 4
    assert done.failures[0] == ("merf on digits, epsilon 10, seed 0", "out of luck")
    assert len(compare(suite, tmp_path / "out", tmp_path, runner=result_of).lines) == 8


def test_a_cell_in_its_own_process_says_why_it_failed(suite, tmp_path):
    with pytest.raises(CellError, match=r"digits\.npz"):
        run_cell(cells(suite)[0], tmp_path)


def test_a_cell_refuses_private_images_as_public_ones(suite, tmp_path):
    digits = "builtin:mnist5k:train"
    dataset = Dataset(name="digits", train=digits, test="builtin:mnist5k:test", public=digits, limit=100)
    with pytest.raises(InputError, match="public images coincide with private ones"):
        measure(replace(cells(suite)[0], dataset=dataset), tmp_path)


@pytest.mark.slow
def test_a_real_cell(tmp_path):
    (tmp_path / "suite.toml").write_text(
        'methods = [{ method = "merf", preset = "fast", '
        "settings = { steps = 2, pictures = 200, random_features = 64, code_size = 16 } }]\n"
        "epsilons = [5]\nseeds = [0]\ndelta = 1e-5\nsamples = 100\nepochs = 1\n"
        '[[datasets]]\nname = "mnist"\ntrain = "builtin:mnist5k:train"\ntest = "builtin:mnist5k:test"\nlimit = 200\n'
    )
    done = compare(read_suite(tmp_path / "suite.toml"), tmp_path / "out", tmp_path)
    assert done.failures == []
    line = done.lines[0]
    assert 0 <= line["accuracy"] <= 1
    assert line["guarantee"] == "dp"
    assert line["spent_epsilon"] == pytest.approx(5, rel=0.01)
    assert line["peak_mb"] > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seeds = [0, 1]", "seeds = []"), "expected a list of seeds"),
        (("epsilons", "epsilonz"), "Did you mean epsilons"),
        (('"merf", {', '"merv", {'), "Did you mean merf"),
        ((', title = "merf, quick"', ""), "different methods, got merf, merf"),
        (("train =", "trian ="), "Did you mean train"),
        (('test = "digits.npz:test"', ""), "test"),
        (("[[datasets]]", "[[datasets"), "not a TOML file"),
        (("epsilons = [1", "epsilons = [-1"), "expected epsilons > 0, got -1"),
        (("epsilons = [1", 'epsilons = ["1"'), "expected epsilons > 0, got '1'"),
        (("seeds = [0, 1]", 'seeds = "01"'), "expected seeds = a list, got '01'"),
        (("seeds = [0, 1]", "seeds = [0.5]"), "whole numbers from 0, got 0.5"),
        (("delta = 1e-5", "delta = 2"), "0 < delta < 1, got 2"),
        (("seeds =", "samples = 0\nseeds ="), "expected samples as a whole number of at least 1"),
        (("seeds =", 'student = "convnte"\nseeds ='), "Did you mean convnet"),
        (('test = "digits.npz:test"', "test = 3"), "expected test as text, got 3"),
        (("steps = 2", "stepz = 2"), "Did you mean steps"),
    ],
)
def test_mistakes_in_a_suite_are_named(tmp_path, change, message):
    (tmp_path / "suite.toml").write_text(TEXT.replace(*change))
    with pytest.raises(InputError, match=message):
        read_suite(tmp_path / "suite.toml")
    with pytest.raises(InputError, match="no suite at"):
        read_suite(tmp_path / "none.toml")


def test_data_that_is_missing_is_found_first(suite, tmp_path):
    with pytest.raises(InputError, match=r"digits, train: .*digits.npz does not exist.*Relative paths start at"):
        check_data(suite, tmp_path)
    (tmp_path / "digits.npz").touch()
    check_data(suite, tmp_path)


def test_all_grows_with_the_registry(tmp_path):
    (tmp_path / "suite.toml").write_text('methods = "all"' + TEXT[TEXT.index("\nepsilons") :])
    names = [entrant.method for entrant in read_suite(tmp_path / "suite.toml").methods]
    assert names == [name for name in METHODS if METHODS.get(name).guarantee == "dp"]
    assert "merf" in names


def test_data_paths(tmp_path, monkeypatch):
    monkeypatch.delenv("VEILSET_DATA", raising=False)
    assert data_folder(tmp_path / "a.toml", None) == tmp_path
    assert located("x.npz:train", tmp_path) == str(tmp_path / "x.npz:train")
    assert located("builtin:digits", tmp_path) == "builtin:digits"
    monkeypatch.setenv("VEILSET_DATA", "/data")
    assert str(data_folder(tmp_path / "a.toml", None)) == "/data"


def test_tables_show_ours_and_what_was_published(suite, tmp_path):
    lines = compare(suite, tmp_path / "out", tmp_path, runner=result_of).lines
    rows = rows_of(lines, {"digits": "mnist"})
    table = markdown("small", rows, lines)
    assert "| digits | 1 | 52.5 ± 0.7 (2) | 52.5 ± 0.7 (2) | 80.3 (DP-MERF) | 96.8 (FETA-Pro) | 95.1 (DPDFD) |" in table
    assert "does NOT hold" in table
    assert "adjacency on synthetic samples" in table
    pictures = plots_of(rows)
    assert set(pictures) == {"digits-epsilon.svg", "digits-seconds.svg"}
    for picture in pictures.values():
        assert picture.startswith("<svg")
        assert "merf, quick" in picture
        assert "nan" not in picture
    page = html("small", rows, lines, pictures)
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "FETA-Pro" in page


def test_published_numbers_are_all_there():
    assert len(published()) == 262
    found = published_for("mnist", 1)
    assert found[0].method == "FETA-Pro"
    assert [row.accuracy for row in found] == sorted((row.accuracy for row in found), reverse=True)
    assert {row.holds for row in published()} == {"yes", "no", "unchecked", "no claim"}
    assert all(row.source for row in published())
