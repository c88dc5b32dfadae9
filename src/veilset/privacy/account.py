"""The account of one private dataset over all runs and releases: a small SQLite file with an optional limit.

A run reserves its whole plan before it reads anything, in one immediate transaction, so that two processes can never
overdraw an account together. What was reserved stays spent, whatever became of the run.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from veilset.core.errors import BudgetError, InputError
from veilset.privacy.accounting import epsilon_of, fits_account, gaussian_epsilon
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan

_SCHEMA = """
CREATE TABLE IF NOT EXISTS spending_limit (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL, delta REAL);
CREATE TABLE IF NOT EXISTS reservation (
    run TEXT PRIMARY KEY, time TEXT NOT NULL, method TEXT NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    events TEXT NOT NULL, guarantee TEXT NOT NULL
);
"""
_READ = "SELECT run, time, method, epsilon, delta, events, guarantee FROM reservation ORDER BY rowid"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one run reserved."""

    run: str
    time: str
    method: str
    budget: Budget
    events: tuple[Event, ...]
    guarantee: str


class Account:
    """The spending of one private dataset. The file is created on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._connect() as database:
                database.executescript(_SCHEMA)
                # A file of an earlier version does not say which of its runs had a guarantee, so it is not guessed.
                database.execute(f"{_READ} LIMIT 0")
        except (OSError, sqlite3.DatabaseError) as error:
            raise InputError(
                f"Cannot use {path} as an account: {error}. Name another one with --account; what this one holds stays "
                "spent."
            ) from error

    def reserve(self, run: str, method: str, plan: Plan, *, guarantee: str = "dp") -> None:
        """Reserve the whole plan for `run`, or raise `BudgetError` and leave the account as it was.

        A run with `guarantee` "none" is written down, too: after it no epsilon holds for this dataset any more, and an
        account with a limit refuses it. Reserving again for the same run and the same plan changes nothing, so that a
        run can resume.
        """
        epsilon_of(plan.events, plan.budget.delta)  # loads the accountant before the lock is taken
        with self._exclusive() as database:
            reservations = _reservations(database)
            same = [r for r in reservations if r.run == run]
            if same:
                if same[0].events != plan.events:
                    raise BudgetError(f"Run {run} reserved another plan in {self.path}. Start a new run.")
                return
            limit = _limit(database)
            unbounded = guarantee != "dp" or any(r.guarantee != "dp" for r in reservations)
            if limit and unbounded:
                raise BudgetError(
                    f"{self.path} has a limit, and a run without a guarantee would break it or has broken it. "
                    "No data was read."
                )
            if limit and not fits_account([r.events for r in reservations], plan.events, limit):
                raise BudgetError(
                    f"This run would overdraw {self.path}, whose limit is epsilon={limit.epsilon:g} at "
                    f"delta={limit.delta:g}; {len(reservations)} run(s) have spent from it. No data was read. "
                    f"See what is left with: veilset account {self.path}"
                )
            database.execute(
                "INSERT INTO reservation VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    run,
                    datetime.now(UTC).isoformat(timespec="seconds"),
                    method,
                    plan.budget.epsilon,
                    plan.budget.delta,
                    json.dumps([event.to_json() for event in plan.events]),
                    guarantee,
                ),
            )

    def set_limit(self, limit: Budget, *, allow_raise: bool = False) -> None:
        """Set the limit. Raising one that was promised needs `allow_raise`."""
        with self._exclusive() as database:
            old = _limit(database)
            if old and not allow_raise and (limit.epsilon > old.epsilon or limit.delta > old.delta):
                raise BudgetError(
                    f"The limit of {self.path} is epsilon={old.epsilon:g} at delta={old.delta:g}. Raising it breaks "
                    "what was promised to the people in the data; pass --force if that is decided."
                )
            database.execute("INSERT OR REPLACE INTO spending_limit VALUES (1, ?, ?)", (limit.epsilon, limit.delta))

    @property
    def limit(self) -> Budget | None:
        """The limit, where one is set."""
        with self._connect() as database:
            return _limit(database)

    @property
    def reservations(self) -> list[Reservation]:
        """All runs, oldest first."""
        with self._connect() as database:
            return _reservations(database)

    def spent(self, delta: float) -> float | None:
        """The epsilon of all runs together at `delta`, for runs whose settings did not depend on earlier results.

        None when a run had no guarantee: then there is no such number.
        """
        runs = self.reservations
        if any(r.guarantee != "dp" for r in runs):
            return None
        return epsilon_of([event for r in runs for event in r.events], delta)

    def left(self) -> float | None:
        """The epsilon of the largest single Gaussian release that still fits the limit; None without a limit."""
        limit = self.limit
        if limit is None:
            return None
        runs = self.reservations
        if any(r.guarantee != "dp" for r in runs):
            return 0.0
        spent = [r.events for r in runs]

        def fits(noise_multiplier: float) -> bool:
            return fits_account(spent, [Event(label="rest", noise_multiplier=noise_multiplier)], limit)

        low, high = 1e-3, 1e6
        if not fits(high):
            return 0.0
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if fits(middle) else (middle, high)
        return gaussian_epsilon(high, limit.delta)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            yield database
        finally:
            database.close()

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")


def _limit(database: sqlite3.Connection) -> Budget | None:
    row = database.execute("SELECT epsilon, delta FROM spending_limit").fetchone()
    return Budget(row[0], row[1]) if row else None


def _reservations(database: sqlite3.Connection) -> list[Reservation]:
    return [
        Reservation(
            run=run,
            time=time,
            method=method,
            budget=Budget(epsilon, delta),
            events=tuple(Event.from_json(event) for event in json.loads(events)),
            guarantee=guarantee,
        )
        for run, time, method, epsilon, delta, events, guarantee in database.execute(_READ)
    ]
