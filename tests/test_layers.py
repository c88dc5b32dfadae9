"""Imports point down only, the vault's contents have one reader, and the public surface is what the docs say."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilset.audit.code import SECRETS

SOURCE = Path(__file__).parent.parent / "src" / "veilset"
# From the bottom up; the layers of one row never import each other unless the row says so.
ROWS = [
    {"core"},
    {"privacy"},
    {"models", "data"},
    {"training"},
    {"dpsgd"},
    {"teachers"},
    {"release"},
    {"evaluate", "methods"},
    {"report", "audit"},
    {"pipeline"},
    {"cli"},
]
HEIGHT = {layer: height for height, row in enumerate(ROWS) for layer in row}
MODULES = sorted(SOURCE.rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    layer = path.relative_to(SOURCE).parts[0]
    if layer.endswith(".py"):
        return  # the package's own front door may name every layer
    assert layer in HEIGHT, f"{layer} is in no row of the architecture"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "veilset" or parts[1] == layer or parts[1] not in HEIGHT:
            continue
        assert HEIGHT[parts[1]] < HEIGHT[layer], f"{layer} imports {name}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_mechanisms_open_the_vault(path: Path) -> None:
    # The code audit names them to forbid them; it is under its own rules.
    if str(path.relative_to(SOURCE)) in ("privacy/vault.py", "privacy/session.py", "audit/code.py"):
        return
    text = path.read_text(encoding="utf-8")
    for secret in ("contents_of", "_CONTENTS"):
        assert secret not in text, f"{path.name} reaches for {secret}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            assert node.attr not in SECRETS, f"{path.name} reaches for {node.attr} of a session"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_privacy_noise_comes_from_one_file(path: Path) -> None:
    layer = path.relative_to(SOURCE).parts[0]
    if layer != "privacy" or path.name == "noise.py":
        return
    text = path.read_text(encoding="utf-8")
    for source in ("randn", "np.random", "torch.normal", "import random", "secrets."):
        assert source not in text, f"{path.name} draws {source} of its own"


def test_nothing_is_unpickled() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text, path
        assert "allow_pickle=True" not in text, path
        assert "torch.load(" not in text or "weights_only=True" in text, path


def test_importing_veilset_loads_nothing_heavy() -> None:
    heavy = "('torch', 'scipy', 'dp_accounting', 'PIL')"
    code = f"import sys, veilset, veilset.cli.main; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_importing_veilset_is_quick() -> None:
    """Modules are counted, not seconds: a busy machine changes only those."""
    code = "import sys; before = set(sys.modules); import veilset; print(len(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) < 80


def test_the_public_surface() -> None:
    import veilset

    expected = ["Account", "Budget", "Release", "Vault", "__version__", "load_release", "open_images", "synthesize"]
    expected += ["verify", "About", "Evaluation", "ImageSet", "Job", "Method", "evaluate", "export", "plan", "train"]
    assert sorted(veilset.__all__) == sorted(expected)
    for name in expected:
        assert getattr(veilset, name) is not None
    with pytest.raises(AttributeError):
        veilset.nothing  # noqa: B018


def test_the_function_evaluate_stays_when_its_room_is_imported() -> None:
    code = "import veilset.evaluate.metrics, veilset as vs; print(callable(vs.evaluate), vs.evaluate.__module__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True", "veilset.pipeline.evaluate"]
