"""The limits that an account has had, and since when.

A filter's guarantee is for a limit that was fixed before the first result was seen. A limit that is set later may have
been chosen by results, and so may the moment. So an account remembers every limit with the number of runs before it:

- A run must fit all limits that stand, and not the newest alone.
- What is promised however people choose is the limit that stood when the first run was paid (`promised`).
- Raising a limit withdraws the ones that it passes; that takes force, and what is promised is weaker from then on.

docs/explanation/design.md has the argument. Older versions knew one limit, in a table of its own, which is kept up to
date for them.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from veilset.privacy.budget import Budget

TABLES = (
    "CREATE TABLE IF NOT EXISTS spending_limit (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL, delta REAL)",
    "CREATE TABLE IF NOT EXISTS limit_history (number INTEGER PRIMARY KEY, epsilon REAL NOT NULL, "
    "delta REAL NOT NULL, runs INTEGER, stands INTEGER NOT NULL)",
)


@dataclass(frozen=True)
class Limit:
    """One limit, how many runs there were when it was set (None: not known), and whether it stands."""

    budget: Budget
    runs: int | None
    stands: bool = True

    def is_below(self, other: Budget) -> bool:
        """Whether `other` would raise it."""
        return other.epsilon > self.budget.epsilon or other.delta > self.budget.delta


def limits_in(database: sqlite3.Connection, runs: int) -> tuple[Limit, ...]:
    """All limits of an account that has so many runs, oldest first; one that an older version set among them."""
    table = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'limit_history'")
    rows = "SELECT epsilon, delta, runs, stands FROM limit_history ORDER BY number"
    known = () if table.fetchone() is None else tuple(database.execute(rows))
    limits = tuple(Limit(Budget(epsilon, delta), since, bool(stands)) for epsilon, delta, since, stands in known)
    row = database.execute("SELECT epsilon, delta FROM spending_limit").fetchone()
    newest = newest_of(limits)
    if row is None or (newest is not None and newest.budget == Budget(*row)):
        return limits
    return with_limit(limits, Limit(Budget(*row), None if runs else 0))


def with_limit(limits: Sequence[Limit], new: Limit) -> tuple[Limit, ...]:
    """These limits and a new one, which withdraws those that it passes."""
    return (*(replace(old, stands=old.stands and not old.is_below(new.budget)) for old in limits), new)


def keep_limits(database: sqlite3.Connection, limits: Sequence[Limit]) -> None:
    """Write all limits of an account, inside the caller's transaction."""
    database.execute(TABLES[-1])
    database.execute("DELETE FROM limit_history")
    rows = [(x.budget.epsilon, x.budget.delta, x.runs, x.stands) for x in limits]
    database.executemany("INSERT INTO limit_history (epsilon, delta, runs, stands) VALUES (?, ?, ?, ?)", rows)
    newest = newest_of(limits)
    if newest is not None:
        pair = (newest.budget.epsilon, newest.budget.delta)
        database.execute("INSERT OR REPLACE INTO spending_limit VALUES (1, ?, ?)", pair)


def standing(limits: Sequence[Limit]) -> list[Budget]:
    """What every run must fit. Each is at least as strict as the one before, or it would have withdrawn that."""
    return [limit.budget for limit in limits if limit.stands]


def newest_of(limits: Sequence[Limit]) -> Limit | None:
    """The limit that was set last."""
    return limits[-1] if limits else None


def promised(limits: Sequence[Limit]) -> Limit | None:
    """The limit that stood when the first run was paid: nothing had been seen that it could depend on."""
    return newest_of([limit for limit in limits if limit.runs == 0])
