"""What people install: declared dependencies, a wheel that works, completion and a manual page."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Parts of what is declared that come as packages of their own.
PARTS = {"pydantic-core": "pydantic", "markupsafe": "jinja2"} | dict.fromkeys(
    ("httpx", "grpcio", "uvicorn", "fastapi", "starlette"), "flwr"
)
COMMAND = "import sys; sys.argv[0] = 'veilset'; from veilset.__main__ import main; main()"


def names_of(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in found if name}


def imported(nodes: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"veilset"}


def test_what_the_code_imports_is_declared() -> None:
    """At the top of a module: a core dependency, or that of an extra whose room it is. The rest may be an extra's."""
    known = packages_distributions()
    core = names_of(PROJECT["dependencies"])
    extras = set().union(*(names_of(extra) for extra in PROJECT["optional-dependencies"].values()))
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        everywhere = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        for module in imported(everywhere):
            made_by = names_of(known.get(module, [module]))
            made_by |= {PARTS[name] for name in made_by if name in PARTS}
            is_core_only = path.parts[-2] in ("core", "privacy", "data", "methods", "release", "cli")
            at_top = module in imported(tree.body)
            allowed = core if at_top and is_core_only else core | extras
            assert made_by & allowed, f"{path.relative_to(REPOSITORY)} imports {module}, which pyproject.toml lacks"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_code_is_of_every_version_that_is_named(version: str) -> None:
    """Syntax alone; the suite runs on one version."""
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    feature = tuple(map(int, version.split(".")))
    for path in SOURCE.rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=feature)


def complete(words: str, number: int) -> list[str]:
    asked = {"_VEILSET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_shell_completes_commands_and_options() -> None:
    assert complete("veilset syn", 1) == ["synthesize"]
    assert complete("veilset pu", 1) == ["publish"]
    assert "--groups-file" in complete("veilset synthesize --gro", 2)
    script = subprocess.run(
        [sys.executable, "-c", COMMAND],
        env=os.environ | {"_VEILSET_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "complete -o default -F _veilset_completion veilset" in script


def manual() -> str:
    done = subprocess.run([sys.executable, "-m", "veilset", "--man"], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_manual_has_every_command_and_option() -> None:
    import typer.main

    from veilset.cli.main import app

    page = manual().replace("\\-", "-")
    assert page.startswith('.TH VEILSET 1 ""')

    def check(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for inner, found in command.commands.items():
                check(found, f"{name} {inner}")
            return
        assert f".SS {name} " in page
        part = page.split(f".SS {name} ")[1].split(".SS ")[0]
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden and "--help" not in parameter.opts:
                assert parameter.opts[0] in part, f"{name} {parameter.opts[0]}"

    check(typer.main.get_command(app), "veilset")


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_the_manual_is_read_without_a_complaint(tmp_path: Path) -> None:
    (tmp_path / "veilset.1").write_text(manual(), encoding="utf-8")
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n", str(tmp_path / "veilset.1")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert "veilset synthesize" in text
    assert "\\" not in text


@pytest.mark.slow
def test_the_wheel_installs_and_runs(tmp_path: Path) -> None:
    """Built from a copy, put into an empty environment that borrows what is installed here."""
    pytest.importorskip("build")
    source = tmp_path / "source"
    source.mkdir()
    kept = ("pyproject.toml", "README.md", "LICENSE", "src")
    for name in kept:
        place = REPOSITORY / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(place, source / name, ignore=ignore) if place.is_dir() else shutil.copy(place, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        metadata = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
    for needed in ("py.typed", "pipeline/costs.json", "report/published.csv", "report/pages/report.html"):
        assert f"veilset/{needed}" in names
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata
    venv.create(tmp_path / "fresh", with_pip=False)
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "fresh" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (site / "borrowed.pth").write_text(f"{here}\n")  # after our own folder, so that the wheel is what runs
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = str(tmp_path / "fresh" / "bin" / "veilset")
    for words, said in ((["--version"], "veilset "), (["methods"], "merf"), (["plan", "-n", "3000"], "Time: about")):
        ran = subprocess.run(
            [command, *words], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout
    where = [str(tmp_path / "fresh" / "bin" / "python"), "-c", "import veilset; print(veilset.__file__)"]
    assert str(tmp_path) in subprocess.run(where, capture_output=True, text=True, check=True, env=environment).stdout
