"""The suites of the papers: cells that can be configured, that are skipped when measured, and a line for each."""

import json
from pathlib import Path

import numpy as np
import pytest

import papers.cells
import papers.data
from papers.__main__ import _measure, main
from papers.cells import Cell, Paper, described, is_measured, names, paper_named
from papers.data import is_grouped
from papers.utility import RELEASED
from veilset.core.errors import InputError
from veilset.core.registry import resolve
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.models import build_network
from veilset.pipeline.job import Job, draw_plan
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import TeacherSettings
from veilset.teachers.planning import plan_teacher
from veilset.training.settings import TrainingConfig
from versions import versions_of

PAPERS = names()
TEACHER, CONVERTED = "papers.networks:teacher", "papers.conversion:measure"
WITHOUT_A_PLAN = {"papers.networks:clipped", "papers.networks:real", "papers.leaks:undefended", CONVERTED}
# One plan for all epsilons of a cell, at the largest of them.
EPSILON_ASIDE = ("table", "cell", "epsilon", "samples_asked", "asked_of", "recipe")
SHAPES = {
    "mnist": (60_000, (28, 28, 1), 10),
    "fashion_mnist": (60_000, (28, 28, 1), 10),
    "cifar10_15k": (15_000, (32, 32, 3), 10),
    "celeba_32:gender": (8000, (32, 32, 3), 2),
    "celeba_32:hair": (4590, (32, 32, 3), 3),
    "celeba_64:gender": (8000, (64, 64, 3), 2),
    "celeba_64:hair": (4590, (64, 64, 3), 3),
    "chest_xray_64": (2420, (64, 64, 1), 2),
    "chest_xray_64:3": (2420, (64, 64, 1), 3),
    "chest_xray_224": (2420, (224, 224, 1), 2),
}
CELL = Cell(table="T", name="a", method="merf", private="toy", epsilon=10.0, preset="smoke", samples=20, paper=12.5)


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_can_be_configured(name: str) -> None:
    """A misspelt setting shows here and not in the middle of a night's run."""
    paper = paper_named(name)
    assert {cell.table for cell in paper.cells} == set(paper.tables)
    for cell in paper.cells:
        if cell.method != "engine":
            METHODS.get(cell.method).configure(cell.preset, cell.settings, as_published=cell.as_published)
        TrainingConfig(**dict(cell.recipe))
        assert callable(resolve(cell.measure))
        assert cell.minutes <= 60, cell.name
    named = {student for cell in paper.cells for student in cell.students if cell.measure != CONVERTED}
    named |= {cell.options["network"] for cell in paper.cells if "network" in cell.options}
    for network in named - {RELEASED}:
        build_network(network, shape=(32, 32, 3), classes=2)


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_can_be_planned(name: str) -> None:
    """A setting that does not suit the images is found by a plan, which needs their shape and no data.

    A plan may refuse what would be all noise: such a cell gets a line that says so.
    """
    planned = set()
    for cell in sorted(paper_named(name).cells, key=lambda cell: -(cell.epsilon or 0)):
        about = {name: value for name, value in described(cell).items() if name not in EPSILON_ASIDE}
        key = json.dumps(about, sort_keys=True)
        if cell.measure in WITHOUT_A_PLAN or key in planned:
            continue
        planned.add(key)
        refused = why_refused(cell)
        assert refused is None or "noise" in refused, f"{cell.table} {cell.name}: {refused}"


def why_refused(cell: Cell) -> str | None:
    try:
        if cell.measure == TEACHER:
            budget = Budget(cell.epsilon or 10.0, 1e-5)
            plan_teacher(facts_of(cell), budget, TeacherSettings(**dict(cell.options)))
        else:
            draw_plan(job_of(cell), facts_of(cell))
    except InputError as error:
        return str(error)
    return None


def job_of(cell: Cell) -> Job:
    return Job(
        method=cell.method,
        epsilon=cell.epsilon or 10.0,
        delta=1e-5,
        preset=cell.preset,
        settings=dict(cell.settings),
        samples=cell.samples,
        as_published=cell.as_published,
    )


def facts_of(cell: Cell) -> PublicFacts:
    """What a vault of the cell's records would say of itself."""
    units, shape, classes = SHAPES[cell.private]
    names = tuple(str(number) for number in range(classes))
    unit = "group" if is_grouped(cell.private) else "record"
    return PublicFacts(units=cell.units or units, unit=unit, shape=shape, class_names=names)


def line_of(cell: Cell, seed: int = 0, **fields: object) -> dict[str, object]:
    return {**described(cell), "seed": seed, "versions": versions_of(cell.method), **fields}


def test_a_cell_is_left_out_once_it_has_a_line_of_todays_code() -> None:
    assert not is_measured(CELL, 0, [])
    assert is_measured(CELL, 0, [line_of(CELL)])
    assert is_measured(CELL, 0, [line_of(CELL, refused="too few records")])
    assert not is_measured(CELL, 1, [line_of(CELL)])
    assert not is_measured(CELL, 0, [line_of(CELL, versions={"merf": 0})])
    assert not is_measured(CELL, 0, [line_of(CELL, settings={"steps": "1"})])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """A paper of two cells on forty little images, with results of its own."""
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
    records = ImageSet(images, np.arange(40) % 2)
    monkeypatch.setattr(papers.data, "load", lambda name, side: records)
    monkeypatch.setattr(papers.cells, "RESULTS", tmp_path)
    return Paper(title="Toy", holds="no", differs="All of it.", tables={"T": "one"}, cells=[CELL])


def test_a_line_has_the_papers_number_beside_ours(toy: Paper, tmp_path: Path) -> None:
    cell = Cell(**{**CELL.__dict__, "recipe": {"epochs": 1}, "students": ("linear_student:linear",)})
    _measure("toy", toy, cell, 0, validate=False)
    (line,) = map(json.loads, (tmp_path / "toy.jsonl").read_text().splitlines())
    assert line["paper_value"] == 12.5
    assert line["paper_epsilon_holds"] == "no"
    assert line["differs"] == "All of it."
    assert line["guarantee"] == "dp"
    assert 0 < line["certified_epsilon"] <= 10
    assert 0 <= line["value"] <= 100
    assert is_measured(cell, 0, [line])


LINEAR = "linear_student:linear"


@pytest.mark.parametrize(
    ("measure", "fields"),
    [
        ("papers.networks:clipped", {"options": {"rule": "signs", "keep": "3", "steps": "2", "network": LINEAR}}),
        ("papers.networks:clipped", {"options": {"rule": "per_layer", "steps": "2", "network": LINEAR}}),
        ("papers.networks:teacher", {"options": {"kind": "network", "steps": "2", "bands": "1", "network": LINEAR}}),
        ("papers.networks:real", {"students": (LINEAR,), "recipe": {"epochs": 1}}),
        ("papers.leaks:measure", {"options": {"attack": "gan-leaks"}, "recipe": {"epochs": 1}}),
        ("papers.leaks:undefended", {"options": {"attack": "entropy"}, "students": (LINEAR,), "recipe": {"epochs": 1}}),
        ("papers.travel:measure", {"options": {"what": "weights"}, "method": "sanitized_gan", "preset": "default"}),
        ("papers.travel:measure", {"options": {"what": "answer"}, "method": "sanitized_gan", "preset": "default"}),
    ],
)
def test_other_measures_give_a_value_and_say_of_how_many(
    measure: str, fields: dict[str, object], toy: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {side: papers.data.load("toy", side) for side in ("train", "test")}
    others = ImageSet(255 - sides["test"].images, sides["test"].labels)
    monkeypatch.setattr(papers.data, "load", lambda name, side: sides["train"] if side == "train" else others)
    found = resolve(measure)(Cell(**{**CELL.__dict__, "measure": measure, **fields}), 0, validate=False)
    assert found["value"] >= 0
    assert found["n"] > 0
    assert found["metric"] in ("accuracy", "auc", "bytes")


def test_what_a_method_refuses_gets_a_line_that_says_so(toy: Paper, tmp_path: Path) -> None:
    cell = Cell(**{**CELL.__dict__, "method": "dpaf", "epsilon": 0.001})
    _measure("toy", toy, cell, 0, validate=True)
    (line,) = map(json.loads, (tmp_path / "toy_trials.jsonl").read_text().splitlines())
    assert line["refused"]
    assert line["scored_on"] == "a sixth of train"


def test_the_runner_lists_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["papers", PAPERS[0], "--list"])
    assert main() == 0
    assert "cells, about" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="No paper is called"):
        paper_named("nothing")
