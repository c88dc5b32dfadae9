"""pldk after a release of another method on the same records, within one budget.

`options` are the `method` of that release, its `preset` and its `share` of epsilon. The student learns from all of its
images, then from the distilled ones (Table 4.5's rows with synthetic images). What the first one cost is part of the
second's certificate.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

from papers.cells import Cell  # isort: skip
from papers.data import private_and_scored  # isort: skip
from papers.utility import DELTA, measure as usual  # isort: skip

from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """The usual line of the second release."""
    private, _ = private_and_scored(cell.private, cell.units, validate=validate)
    share, epsilon = float(cell.options["share"]), cell.epsilon or 10.0
    job = Job(
        method=cell.options["method"], preset=cell.options.get("preset", "default"), epsilon=share * epsilon,
        delta=DELTA, samples=5000, seed=seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "first"
        run(Vault(private), job, workspace=Path(folder) / "run").save(place)
        settings = {**cell.settings, "release": str(place), "pretraining": "true"}
        return usual(replace(cell, settings=settings), seed, validate=validate)
