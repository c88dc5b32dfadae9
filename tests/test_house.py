"""The house of the methods: one folder each, whose method.py alone calls the session, and what they share."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilset.methods import METHODS

SOURCE = Path(__file__).parent.parent / "src" / "veilset"
FOLDERS = SOURCE / "methods"
LONGEST = 400  # lines of a module
REPEATED = 10  # lines that may stand in two places
# Who else may name a method's own files: a federation and a conversion run one method, and a command trains for one.
USERS = {
    "latent": {"cli/generator.py"},
    "dfd": {"pipeline/convert.py"},
}
NAMES = sorted(METHODS)
FILES = sorted(path for name in NAMES for path in (FOLDERS / name).rglob("*.py"))
SHARED = sorted(path for path in (FOLDERS / "shared").glob("*.py") if path.name != "__init__.py")


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("veilset."):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_folder(name: str) -> None:
    """Its line in the registry and its folder are all there is of it."""
    assert METHODS._targets[name].startswith(f"veilset.methods.{name}.config:")
    assert {"__init__.py", "config.py", "method.py"} <= {path.name for path in (FOLDERS / name).iterdir()}
    for path in SOURCE.rglob("*.py"):
        within = shown(path)
        if within.startswith((f"methods/{name}/", *USERS.get(name, ()))):
            continue
        found = [module for module in imported(path) if re.match(rf"veilset\.methods\.{name}(\.|$)", module)]
        assert not found, f"{within} imports {found[0]}, so that {name} is more than its folder"


def test_no_folder_is_left_over() -> None:
    folders = {path.name for path in FOLDERS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*NAMES, "shared"}


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_only_method_py_calls_the_session(path: Path) -> None:
    if path.name == "method.py" and path.parent.parent == FOLDERS:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name | ast.arg):
            name = node.id if isinstance(node, ast.Name) else node.arg
            assert name != "session", f"{shown(path)} has a session in its hands"
        if isinstance(node, ast.ImportFrom) and node.module == "veilset.privacy.session":
            names = {alias.name for alias in node.names}
            assert names <= {"PerImage", "ClippedSum"}, f"{shown(path)} imports {names} of the session"


@pytest.mark.parametrize("path", SHARED, ids=shown)
def test_what_is_shared_says_by_whom(path: Path) -> None:
    """Its docstring names the methods that use it: all that import it themselves, and none that do not use it."""
    users = {name for name in NAMES if path.stem in shared_by(name)}
    assert len(users) >= 2, f"{shown(path)} is used by {users or 'nobody'}: it belongs into that folder"
    direct = {name for name in NAMES if path.stem in shared_by(name, further=False)}
    said = set(re.findall(rf"\b({'|'.join(NAMES)})\b", ast.get_docstring(ast.parse(path.read_text())) or ""))
    assert direct <= said <= users, f"{shown(path)} says {sorted(said)} and is used by {sorted(direct or users)}"
    assert said, f"{shown(path)} does not say who uses it"


def shared_by(name: str, *, further: bool = True) -> set[str]:
    """The shared modules that a method uses, itself or (`further`) through another one."""
    wanted, seen = [path for path in FILES if path.is_relative_to(FOLDERS / name)], set()
    while wanted:
        for found in imported(wanted.pop()):
            parts = found.split(".")
            if parts[:3] == ["veilset", "methods", "shared"] and len(parts) > 3 and parts[3] not in seen:
                place = FOLDERS / "shared" / f"{parts[3]}.py"
                seen |= {parts[3]} if place.exists() else set()
                wanted += [place] if place.exists() and further else []
    return seen


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=shown)
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_nothing_is_written_twice() -> None:
    """No run of more than `REPEATED` lines stands in two places; blank lines and indents do not tell places apart."""
    places: dict[tuple[str, ...], str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        lines = [(number, line.strip()) for number, line in numbered if line.strip()]
        for first in range(len(lines) - REPEATED):
            run = tuple(line for _, line in lines[first : first + REPEATED + 1])
            here = f"{shown(path)}:{lines[first][0]}"
            assert places.setdefault(run, here) == here, f"{here} says again what {places[run]} says. Write it once."


def test_no_word_of_the_old_vocabulary() -> None:
    """Names that a newcomer would have to learn have given way to plain ones."""
    old = re.compile(r"\b(purse|yardsticks?|sight)\b", re.IGNORECASE)
    for path in SOURCE.rglob("*.py"):
        found = old.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{shown(path)} speaks of {found.group() if found else ''}"
