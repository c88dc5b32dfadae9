"""Run the tables of a paper, cell by cell, the quickest first; a cell that has a line of today's code is left out.

    scripts/bench papers/NAME [--table T ...] [--only TEXT] [--seeds 0 1] [--minutes 40] [--validate] [--list]
    scripts/bench papers                 names the papers

Each cell is a process of its own and appends one JSON line to benchmarks/results/papers/NAME.jsonl: ours, the paper's
number, whether the paper's epsilon holds, and what differs. With --minutes no cell is begun that is expected to end
later, and one that takes more than what is left is stopped. A cell that a method refuses, because its plan would drown
in noise for example, gets a line that says so. With --validate a held-out part of train is scored, and lines go to
NAME_trials.jsonl: that is how settings are chosen. Real data comes from $VEILSET_DATA, else ../shared/data.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from papers.cells import Cell, Paper, described, is_measured, lines_in, names, paper_named, results_of
from veilset.core.errors import VeilsetError
from veilset.core.registry import resolve

LONGEST = 90.0  # minutes, where nobody says


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", nargs="?", help=", ".join(names()))
    parser.add_argument("--table", nargs="+", default=None)
    parser.add_argument("--only", default="", help="cells whose name has this text")
    parser.add_argument("--seeds", nargs="+", type=int, default=None, help="instead of those of each cell")
    parser.add_argument("--minutes", type=float, default=LONGEST)
    parser.add_argument("--validate", action="store_true", help="score on a sixth of train")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("--one", nargs=3, metavar=("TABLE", "CELL", "SEED"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.paper is None:
        print("\n".join(f"{name}: {paper_named(name).title}" for name in names()))
        return 0
    paper = paper_named(asked.paper)
    if asked.one:
        table, name, seed = asked.one
        cell = next(cell for cell in paper.cells if (cell.table, cell.name) == (table, name))
        _measure(asked.paper, paper, cell, int(seed), validate=asked.validate)
        return 0
    if unknown := set(asked.table or ()) - set(paper.tables):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(paper.tables)}")
    waiting = _waiting(asked, paper)
    if asked.list:
        for cell, seed in waiting:
            print(f"{cell.table:10} {cell.name} | seed {seed} | about {cell.minutes:g} min | paper {cell.paper}")
        print(f"{len(waiting)} cells, about {sum(cell.minutes for cell, _ in waiting) / 60:.1f} h")
        return 0
    return _run(asked, waiting)


def _waiting(asked: argparse.Namespace, paper: Paper) -> list[tuple[Cell, int]]:
    """Cells and seeds without a line, first seeds first, the quickest first."""
    lines = lines_in(results_of(asked.paper, validate=asked.validate))
    chosen = [cell for cell in paper.cells if asked.table is None or cell.table in asked.table]
    pairs = [(cell, seed) for cell in chosen if asked.only in cell.name for seed in asked.seeds or cell.seeds]
    left = [(cell, seed) for cell, seed in pairs if not is_measured(cell, seed, lines)]
    return sorted(left, key=lambda pair: (pair[1], pair[0].minutes))


def _run(asked: argparse.Namespace, waiting: list[tuple[Cell, int]]) -> int:
    """Each cell in a process of its own, as far as the minutes go; 1 where one failed."""
    end, failed = time.monotonic() + 60 * asked.minutes, 0
    for cell, seed in waiting:
        left = end - time.monotonic()
        if left < 60 * cell.minutes:
            continue
        command = [sys.executable, "-m", "papers", asked.paper, "--one", cell.table, cell.name, str(seed)]
        # Accounts of its own: the same records in two sizes would be taken for one dataset under two accounts.
        try:
            with tempfile.TemporaryDirectory() as state:
                ended = subprocess.run(
                    [*command, *(["--validate"] if asked.validate else [])],
                    timeout=left,
                    check=False,
                    env={**os.environ, "VEILSET_STATE": state},
                )
        except subprocess.TimeoutExpired:
            print(f"{cell.table} {cell.name} seed {seed}: not done within {left / 60:.0f} minutes", flush=True)
            continue
        if ended.returncode:
            failed += 1
            print(f"{cell.table} {cell.name} seed {seed} did not end well", flush=True)
    return int(failed > 0)


def _measure(name: str, paper: Paper, cell: Cell, seed: int, *, validate: bool) -> None:
    from machine import append

    measure = resolve(cell.measure)
    try:
        found: dict[str, Any] = measure(cell, seed, validate=validate)
    except VeilsetError as error:
        found = {"refused": str(error)}
    line = {
        "benchmark": "papers",
        "paper": name,
        **described(cell),
        "seed": seed,
        "scored_on": "a sixth of train" if validate else "test",
        **found,
        "paper_value": cell.paper,
        "paper_epsilon_holds": cell.holds or paper.holds,
        "differs": cell.differs or paper.differs,
    }
    append(line, results_of(name, validate=validate))


if __name__ == "__main__":
    sys.exit(main())
