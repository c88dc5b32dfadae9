"""`scripts/new-method NAME` on a copy of the tree: what it writes passes every test that a method must pass."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
NAME = "a_new_method"  # before `base`, so that imports have to be sorted anew


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    for part in ("src", "docs", "scripts", "tests"):
        shutil.copytree(REPOSITORY / part, place / part, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    shutil.copy(REPOSITORY / "pyproject.toml", place)
    return place


def new_method(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VEILSET_VENV": sys.prefix}
    command = [sys.executable, str(tree / "scripts" / "new-method"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def contents(tree: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(tree)): path.read_bytes() if path.is_file() else None
        for path in tree.rglob("*")
        if "__pycache__" not in path.parts
    }


def test_what_it_writes_is_a_method(tree: Path) -> None:
    before = contents(tree)
    done = new_method(tree, NAME)
    assert done.returncode == 0, done.stderr
    after = contents(tree)
    assert {path for path in after if path not in before or after[path] != before[path]} == {
        f"src/veilset/methods/{NAME}",
        f"tests/methods/{NAME}",
        "src/veilset/methods/__init__.py",
        *(f"src/veilset/methods/{NAME}/{file}" for file in ("__init__.py", "config.py", "method.py")),
        f"docs/methods/{NAME}.md",
        f"tests/methods/{NAME}/test_{NAME}.py",
    }
    python = [path for path in after if NAME in path and path.endswith(".py")]
    subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", *python], cwd=tree, check=True)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--no-cache", "--check", *python], cwd=tree, check=True)
    tests = ["tests/contract", "tests/methods", "tests/neighbours", "tests/test_layers.py", "tests/test_house.py"]
    command = [sys.executable, "-m", "pytest", "-v", "-x", "-p", "no:cacheprovider", *tests, "-k", NAME]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    passed = {line.split("::")[0] for line in run.stdout.splitlines() if "PASSED" in line}
    assert passed == {
        "tests/contract/test_methods.py",
        "tests/methods/test_claims.py",
        "tests/methods/test_stored.py",
        f"tests/methods/{NAME}/test_{NAME}.py",
        "tests/neighbours/test_runs.py",
        "tests/neighbours/test_sessions.py",
        "tests/test_house.py",
        "tests/test_layers.py",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage: scripts/new-method NAME"),
        (["one", "two"], "Usage: scripts/new-method NAME"),
        *(
            ([name], "Expected a name of small letters")
            for name in ("", "Upper", "2nd", "a-b", "a__b", "_a", "../up", "a b", "class", "ä", "x" * 25)
        ),
        (["merf"], "src/veilset/methods/merf exists already"),
        (["shared"], "src/veilset/methods/shared exists already"),
        (["base"], "src/veilset/methods/base.py exists already"),
        (["index"], "docs/methods/index.md exists already"),
        (["method"], "means something else here"),
        (["event"], "means something else here"),
    ],
    ids=str,
)
def test_a_name_that_cannot_be_taken_is_refused_in_one_line(tree: Path, arguments: list[str], said: str) -> None:
    before = contents(tree)
    done = new_method(tree, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(tree) == before


def test_all_is_written_or_nothing(tree: Path) -> None:
    shutil.rmtree(tree / "tests" / "methods")
    (tree / "tests" / "methods").write_text("in the way", encoding="utf-8")
    before = contents(tree)
    done = new_method(tree, NAME)
    assert done.returncode == 1
    assert done.stderr.startswith("Nothing was written. ")
    assert contents(tree) == before


def test_the_line_of_the_registry_keeps_the_order_of_names(tree: Path) -> None:
    for name in ("aaa", "mmm", "zzz"):
        assert new_method(tree, name).returncode == 0
    text = (tree / "src" / "veilset" / "methods" / "__init__.py").read_text(encoding="utf-8")
    names = [line.split('"')[1] for line in text.splitlines() if ".config:" in line]
    assert {"aaa", "merf", "mmm", "zzz"} <= set(names)
    assert names == sorted(names)


def test_people_can_run_it() -> None:
    assert os.access(REPOSITORY / "scripts" / "new-method", os.X_OK)
