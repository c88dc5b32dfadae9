"""Where tables stand: between `<!-- table: NAME -->` and `<!-- end of table -->` on any page."""

import importlib
import pkgutil
import re
from pathlib import Path

from tables import pages
from tables.cells import Table

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def described() -> dict[str, Table]:
    """Every table by name, from the modules of benchmarks/tables/pages."""
    found: dict[str, Table] = {}
    for module in pkgutil.iter_modules(pages.__path__):
        tables: dict[str, Table] = importlib.import_module(f"tables.pages.{module.name}").TABLES
        for name in tables:
            if name in found:
                raise SystemExit(f"Two tables are called {name}; the second is in tables/pages/{module.name}.py.")
        found |= tables
    return found


def markdown_pages(root: Path = ROOT) -> list[Path]:
    """Pages that may hold tables."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def renewed(text: str, tables: dict[str, Table], page: str = "page") -> str:
    """A page with its tables made again."""

    def put(found: re.Match[str]) -> str:
        if found[2] not in tables:
            raise SystemExit(f"{page}: no table is called {found[2]!r}; there are {', '.join(sorted(tables))}.")
        return f"{found[1]}{tables[found[2]].text()}\n{found[4]}"

    return PLACE.sub(put, text)


def outdated(root: Path = ROOT) -> dict[Path, str]:
    """Pages that differ from their results, with what they should say."""
    tables, found = described(), {}
    for page in markdown_pages(root):
        text = page.read_text(encoding="utf-8")
        new = renewed(text, tables, page.name)
        if new != text:
            found[page] = new
    return found
