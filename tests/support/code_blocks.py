"""Code blocks of the pages, and how they are run: in a folder of toy data, with every method in its smallest form."""

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from veilset.cli.main import app

# Languages of blocks: these run ...
PYTHON, SHELL = "python", "sh"
# ... and these are to read.
READ = {"text", "toml", "yaml", "json", "csv", "bibtex"}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"<!-- saved as: (\w+\.py) -->\n\Z")
NOT_RUN = re.compile(r"<!-- not run: (.{8,}?) -->\n\Z")
# What is made smaller: pixels of a side, images, passes, seeds and processes.
SMALL = {"--size": "16", "--samples": "24", "--epochs": "1", "--seeds": "1", "--units": "1", "--processes": "1"}


@dataclass(frozen=True)
class Block:
    """A block, its first line on the page, why it is not run, and the file that it is, where that is so."""

    language: str
    code: str
    line: int
    not_run: str | None
    saved_as: str | None = None


def blocks_of(text: str) -> Iterator[Block]:
    """All fenced blocks of a page."""
    for found in FENCE.finditer(text):
        before = text[: found.start()]
        excused, saved = NOT_RUN.search(before), SAVED.search(before)
        reason, file = excused[1] if excused else None, saved[1] if saved else None
        yield Block(found[1].strip(), found[2], before.count("\n") + 1, reason, file)


def commands_of(code: str) -> Iterator[list[str]]:
    """The commands of a shell block, word by word, without comments."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def smaller(words: list[str]) -> list[str]:
    """A command with toy sizes; it asks nothing."""
    found = list(words)
    for place, word in enumerate(words[:-1]):
        if word in SMALL:
            found[place + 1] = SMALL[word]
    if "synthesize" in found[:1]:
        found += ["--yes"] + ([] if "--samples" in found else ["--samples", SMALL["--samples"]])
    if found[:1] == ["evaluate"] and "--epochs" not in found:
        found += ["--epochs", "1"]
    return found


def small_python(code: str) -> str:
    """A block of Python with toy sizes."""
    for name in ("size", "samples", "epochs", "seeds"):
        code = re.sub(rf"\b{name}=\d+", f"{name}={SMALL['--' + name]}", code)
    return code


def run_shell(code: str, where: str) -> None:
    """Run the commands of a block; each has to be one of veilset's, and to end well."""
    for words in commands_of(code):
        assert words[0] == "veilset", f"{where}: only veilset's commands are run; say why with <!-- not run: ... -->"
        asked = smaller(words[1:])
        for place, word in enumerate(asked[:-1]):
            if word in {"--out", "-o"} and Path(asked[place + 1]).is_dir():
                shutil.rmtree(asked[place + 1])  # an earlier example of the page made it
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, f"{where}: veilset {shlex.join(asked)}\n{done.output}\n{done.exception!r}"
