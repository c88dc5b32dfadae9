"""The notebook runs from top to bottom, as a person would run it, and is stored without results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_release.ipynb"


def content() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return loaded


def test_the_notebook_is_one_and_holds_no_results() -> None:
    notebook = content()
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    assert set(kinds) == {"markdown", "code"}
    for cell in notebook["cells"]:
        assert isinstance(cell["source"], list)
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_notebook_runs(tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in content()["cells"] if cell["cell_type"] == "code")
    environment = os.environ | {"VEILSET_STATE": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "for each record" in done.stdout
    assert "real digits are read correctly" in done.stdout
    assert "1 run, epsilon 4.00 in all" in done.stdout
