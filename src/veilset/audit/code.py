"""The static code audit: rules that a reader of the source can check, so that private rows leave by mechanisms only.

The rules read syntax, not behaviour: a name that is built at run time, or code that is loaded from elsewhere, escapes
them. The run-time half (taint.py) and the layers (tests/test_layers.py) stand beside them.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# What opens a vault, and the files that may name it.
_OPENERS = {
    "contents_of": {"privacy/vault.py", "privacy/session.py"},
    "_CONTENTS": {"privacy/vault.py"},
    "_PASSED": {"privacy/vault.py"},
}
# Parts of a session that hold rows, coins or noise; only the object itself may use them.
SECRETS = {"_rows", "_units", "_spending", "_noise", "_models", "_cache", "_shards", "_state", "_exact_sum", "_opened"}
_OUTSIDE = ("methods", "teachers", "dpsgd", "training", "evaluate", "pipeline", "cli", "report")
_PICKLES = {"pickle", "marshal", "shelve"}
_REFLECTION = {"eval", "exec", "__import__", "globals"}
_PRINTERS = {"print", "breakpoint"}


@dataclass(frozen=True, kw_only=True)
class Breach:
    """A place in the source that breaks a rule."""

    file: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}"


def package_source() -> Path:
    """The folder of the installed package."""
    return Path(__file__).resolve().parent.parent


def check_source(root: Path | None = None) -> list[Breach]:
    """All breaches in the package; none in a sound one."""
    root = root or package_source()
    found: list[Breach] = []
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [Breach(file=file, line=line, rule=rule) for line, rule in _breaches(file, tree)]
    return found


def _breaches(file: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    layer = file.split("/", 1)[0]
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for name in _names(node):
            if name in _OPENERS and file not in _OPENERS[name]:
                yield line, f"names {name}, which opens a vault"
            if name in _PICKLES:
                yield line, f"uses {name}, which could carry private objects away"
            if name == "NoiseSource" and layer in ("methods", "teachers", "dpsgd", "training", "models", "report"):
                yield line, "names NoiseSource; noise and its cost are one act of a session"
            if name == "Vault" and layer in ("methods", "models"):
                yield line, "names Vault; a method gets a session"
            if name in _REFLECTION and layer in ("methods", "teachers", "dpsgd", "training", "privacy"):
                yield line, f"uses {name}, which no rule can follow"
            if name in _PRINTERS and layer != "cli":
                yield line, f"uses {name}, which could show private values"
        yield from _attribute_breaches(layer, node)


def _attribute_breaches(layer: str, node: ast.AST) -> Iterator[tuple[int, str]]:
    if not isinstance(node, ast.Attribute):
        return
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    if node.attr in SECRETS and not own and layer in _OUTSIDE:
        yield node.lineno, f"reaches for {node.attr} of another object"
    if node.attr == "records_without_guarantee" and layer != "methods":
        yield node.lineno, "asks for records without a guarantee outside a method's form as published"


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a node uses, not those that text or comments mention."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr if node.attr in _OPENERS else ""
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
        yield (node.module or "").split(".")[0]
    elif isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
