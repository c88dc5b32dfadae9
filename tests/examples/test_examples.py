"""Every example runs as a person would run it and says what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_LINES = 60
SAYS = {
    "federation": "Verified: the joint release has epsilon 8.00",
    "mechanism_by_hand": "The account has spent epsilon 1.00",
    "own_arrays_and_student": "A network that saw the release alone names",
    "three_epsilons": "All three together have spent epsilon",
    "xrays_to_release": "Verified: epsilon 4.00 at delta 0.0001 for each group",
}
QUICK = {"federation", "mechanism_by_hand"}
CASES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SAYS]


def test_every_example_is_tested_and_short() -> None:
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert scripts.keys() == SAYS.keys()
    for name, text in scripts.items():
        assert len(text.splitlines()) <= MOST_LINES, name


@pytest.mark.parametrize("name", CASES)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    home.mkdir()
    environment = os.environ | {"VEILSET_STATE": str(tmp_path / "state"), "HOME": str(home)}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert list(out.iterdir())
    assert not list(home.iterdir()), "an example wrote outside of its folder"
