"""What mkdocs does besides: pages made from the code, pages from outside docs/, and the pages that the menu leaves out.

`mkdocs.yml` lists the menu. An entry `FOLDER/*` stands for the pages of the folder that it does not name.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages_from_code import MADE

ROOT = Path(__file__).resolve().parents[2]
# Pages that stand outside docs/, and where the site has them.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
LINK = re.compile(r"(\]\(|(?:src|href)=\")(?!https?:|#|mailto:)([^)#\s\"]+)(#[^)\s\"]*)?")
MARKER = re.compile(r"<!-- made: ([\w-]+) -->")


def _named(entries: list[Any]) -> set[str]:
    found: set[str] = set()
    for entry in entries:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            found |= _named(value) if isinstance(value, list) else {str(value)}
    return found


def _expanded(entries: list[Any], named: set[str], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            found.append({k: _expanded(v, named, docs) if isinstance(v, list) else v for k, v in entry.items()})
        elif str(entry).endswith("/*"):
            pages = (str(path.relative_to(docs)) for path in (docs / entry[:-2]).glob("*.md"))
            found += sorted(page for page in pages if page not in named)
        else:
            found.append(entry)
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that the menu does not name where it has a star."""
    entries = config.nav or []
    config.nav = _expanded(entries, _named(entries), Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside docs/."""
    for name, place in OUTSIDE.items():
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=content))
    return files


def moved(target: str, page: str) -> str | None:
    """A link of a file of the repository as its page on the site has to say it; None where it leads off the site."""
    outside = {place: name for name, place in OUTSIDE.items()}
    source = PurePosixPath(outside.get(page, f"docs/{page}"))
    path = os.path.normpath(source.parent / target)
    if path in OUTSIDE:
        path = OUTSIDE[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    else:
        return None
    return os.path.relpath(path, PurePosixPath(page).parent)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs names them)
    """Fill in what is made from the code, and let links hold on the site."""
    uri = page.file.src_uri
    markdown = MARKER.sub(lambda found: MADE[found[1]](), markdown)

    def put(found: re.Match[str]) -> str:
        new = moved(found[2], uri)
        return f"{found[1]}{new}{found[3] or ''}" if new is not None else found[0]

    # A file that the site does not have (code, examples, a licence) is named in the words of its link.
    markdown = re.sub(
        r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)",
        lambda found: found[0] if moved(found[2], uri) is not None else found[1],
        markdown,
    )
    return LINK.sub(put, markdown)
