"""The account of one private dataset over all runs and releases: a small SQLite file with an optional limit.

A run reserves its whole plan before it reads anything, in one immediate transaction, so that two processes can never
overdraw an account together. What was reserved stays spent, whatever became of the run. For each run the account also
keeps how far its ledger got: a line is valid once the account has taken it over from the line before, so of two copies
of a run's folder only one can go on.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from veilset.core.errors import BudgetError, InputError
from veilset.privacy.accounting import epsilon_of, gaussian_epsilon
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.filters import bound_of, fits_account
from veilset.privacy.ledger import CHAIN_START
from veilset.privacy.limits import TABLES, Limit, keep_limits, limits_in, newest_of, promised, standing, with_limit
from veilset.privacy.state_file import Kind, StateFile
from veilset.privacy.units import in_one_unit, unit_of_all
from veilset.privacy.vault import Unit

_KIND = Kind(
    name="account",
    application=0x5645494C,
    version=2,
    advice="Nothing in it was changed. Name another one with --account; what an older account holds stays spent.",
    schema=(
        *TABLES,
        "CREATE TABLE declared (id INTEGER PRIMARY KEY CHECK (id = 1), images_per_group INTEGER)",
        """CREATE TABLE reservation (
            run TEXT PRIMARY KEY, time TEXT NOT NULL, method TEXT NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
            events TEXT NOT NULL, guarantee TEXT NOT NULL, unit TEXT NOT NULL, workspace TEXT NOT NULL,
            fingerprint TEXT NOT NULL, head TEXT NOT NULL, lines INTEGER NOT NULL, ended TEXT
        )""",
        # That it is there says that the account's limit was judged with it from the first run on (filters.py).
        "CREATE TABLE gaussian_filter (id INTEGER PRIMARY KEY CHECK (id = 1))",
    ),
)
_READ = (
    "SELECT run, time, method, epsilon, delta, events, guarantee, unit, fingerprint, lines, ended FROM reservation "
    "ORDER BY rowid"
)
_MOST_EXACT = 40  # different events that are composed exactly; the total of more is a bound by Renyi DP


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one run reserved, for whom, on which data, how many lines its ledger has, and when it ended."""

    run: str
    time: str
    method: str
    budget: Budget
    events: tuple[Event, ...]
    guarantee: str
    unit: Unit
    fingerprint: str
    lines: int
    ended: str | None


class Account:
    """The spending of one private dataset. The file is made when something is first written to it.

    >>> import veilset as vs
    >>> account = vs.Account("account.sqlite")
    >>> account.set_limit(vs.Budget(epsilon=2.0, delta=1e-5))
    >>> vault = vs.Vault.open("builtin:digits:train")
    >>> release = vs.Method("merf", epsilon=1.5, preset="smoke", samples=60).fit(vault, account=account)
    >>> vs.Method("merf", epsilon=1.5, preset="smoke", samples=60).fit(vault, account=account)
    Traceback (most recent call last):
    veilset.core.errors.BudgetError: This run would overdraw ...
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = StateFile(self.path, _KIND)

    def make(self) -> None:
        """Make the file where there is none yet."""
        with self._file.writing():
            pass

    def reserve(
        self,
        run: str,
        method: str,
        plan: Plan,
        *,
        guarantee: str = "dp",
        unit: Unit = "record",
        workspace: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        """Reserve the whole plan for a new `run`, or raise `BudgetError` and leave the account as it was.

        A run with `guarantee` "none" is written down, too: after it no epsilon holds for this dataset any more, and an
        account with a limit refuses it. A run reserves once; one that goes on calls `resume`.
        """
        epsilon_of(plan.events, plan.budget.delta)  # loads the accountant before the lock is taken
        with self._file.writing() as database:
            reservations = _reservations(database)
            if any(r.run == run for r in reservations):
                raise BudgetError(f"Run {run} has reserved its share in {self.path} already. Start a new run.")
            keep_limits(database, self._limits_with_room(database, plan, guarantee, unit))
            database.execute(
                "INSERT INTO reservation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, NULL)",
                (
                    run,
                    _now(),
                    method,
                    plan.budget.epsilon,
                    plan.budget.delta,
                    json.dumps([event.to_json() for event in plan.events]),
                    guarantee,
                    unit,
                    "" if workspace is None else str(workspace.resolve()),
                    fingerprint,
                    CHAIN_START,
                ),
            )

    def check_room(self, plan: Plan, *, unit: Unit) -> None:
        """Raise what `reserve` would raise now, and reserve nothing."""
        epsilon_of(plan.events, plan.budget.delta)
        with self._file.reading() as database:
            self._limits_with_room(database, plan, "dp", unit)

    def _limits_with_room(
        self, database: sqlite3.Connection, plan: Plan, guarantee: str, unit: Unit
    ) -> tuple[Limit, ...]:
        """All limits, once the plan was found to fit those that stand."""
        reservations, images = _reservations(database), _images_per_group(database)
        if images is None and {r.unit for r in reservations} | {unit} == {"record", "group"}:
            raise InputError(_mixed(self.path, unit))
        plans = [*((r.events, r.unit) for r in reservations), (plan.events, unit)]
        whole, (*spent, counted) = in_one_unit(plans, images)
        limits = limits_in(database, len(reservations))
        stand = standing(limits)
        unbounded = guarantee != "dp" or any(r.guarantee != "dp" for r in reservations)
        if stand and unbounded:
            raise BudgetError(
                f"{self.path} has a limit, and a run without a guarantee would break it or has broken it. "
                "No data was read."
            )
        for limit in stand:
            if not fits_account(spent, counted, limit, knows_gaussians=_knows_gaussians(database)):
                raise BudgetError(
                    f"This run would overdraw {self.path}, whose limit is epsilon={limit.epsilon:g} at "
                    f"delta={limit.delta:g} for each {whole}; {len(reservations)} run(s) have spent from it. "
                    f"No data was read. See what is left with: veilset account {self.path}"
                )
        return limits

    def resume(self, run: str, *, fingerprint: str, heads: Sequence[str]) -> None:
        """Let `run` go on with the ledger whose lines have these hashes, or raise.

        The ledger may be one line ahead, where the run was cut off between the line and its entry here: nothing was
        read for that line. A ledger that is behind was cut off at its end or is an old copy.
        """
        with self._file.writing() as database:
            row = database.execute(
                "SELECT fingerprint, head, lines, ended FROM reservation WHERE run = ?", (run,)
            ).fetchone()
            if row is None:
                raise BudgetError(
                    f"{self.path} does not know this unfinished run: it was paid from another account, or for other "
                    "data. Resume it with the account and the data that it was started with. No data was read."
                )
            known, head, lines, ended = row
            if ended is not None:
                raise BudgetError("This run has ended and published its release. Start a new run; it is paid for anew.")
            if known != fingerprint:
                raise InputError(
                    "The unfinished run was started on other data. Resume it with the data and the view (--size, "
                    "--channels, --limit, --labels, --groups) that it was started with. No data was read."
                )
            places = [CHAIN_START, *heads]
            ahead = len(heads) - lines
            if ahead not in (0, 1) or places[lines] != head:
                raise BudgetError(
                    f"The run's ledger has {len(heads)} lines and is not the one that {self.path} knows, with {lines}: "
                    "it was cut, changed or copied, and another copy went on. Go on with that copy, or start a new "
                    "run, which is paid for anew. No data was read."
                )
            if ahead:
                _advance(database, run, head, heads[-1])

    def advance(self, run: str, old: str, new: str) -> None:
        """Take over a ledger line that follows `old`. Of two copies of a run only the first gets here."""
        with self._file.writing(patience=60) as database:
            if not _advance(database, run, old, new):
                raise BudgetError(
                    "Another copy of this run's folder went on with it, or the run has ended. Go on with that copy. "
                    "No data was read."
                )

    def end(self, run: str) -> None:
        """Say that the release of `run` is safe: from now on nothing resumes it."""
        with self._file.writing(patience=60) as database:
            database.execute("UPDATE reservation SET ended = ? WHERE run = ? AND ended IS NULL", (_now(), run))

    def unfinished(self, workspace: Path) -> list[Reservation]:
        """Runs that were begun in this folder and have not ended, newest first."""
        with self._file.reading() as database:
            begun = database.execute(
                "SELECT run FROM reservation WHERE workspace = ? AND ended IS NULL", (str(workspace.resolve()),)
            ).fetchall()
            return [found for found in reversed(_reservations(database)) if (found.run,) in begun]

    def set_limit(self, limit: Budget, *, allow_raise: bool = False) -> None:
        """Set the limit; earlier ones that are not passed by it stand. Raising one needs `allow_raise`."""
        with self._file.writing() as database:
            runs = len(_reservations(database))
            limits = limits_in(database, runs)
            old = newest_of(limits)
            if old and not allow_raise and old.is_below(limit):
                raise BudgetError(
                    f"The limit of {self.path} is epsilon={old.budget.epsilon:g} at delta={old.budget.delta:g}. "
                    "Raising it breaks what was promised to the people in the data; pass --force if that is decided."
                )
            keep_limits(database, with_limit(limits, Limit(Budget(limit.epsilon, limit.delta), runs)))

    def declare_images_per_group(self, images: int, *, allow_lower: bool = False) -> None:
        """Declare how many images a person has at most, so that runs for each record count for persons, too."""
        if images < 1:
            raise InputError(f"Expected --images-per-group of at least 1, got {images}.")
        with self._file.writing() as database:
            old = _images_per_group(database)
            if old is not None and images < old and not allow_lower:
                raise BudgetError(
                    f"{self.path} declares up to {old} images of one person. A smaller number makes earlier runs look "
                    "cheaper; pass --force to `veilset account` if it is true."
                )
            database.execute("INSERT OR REPLACE INTO declared VALUES (1, ?)", (images,))

    @property
    def limit(self) -> Budget | None:
        """The limit that was set last, where one is set."""
        found = newest_of(self.limits)
        return None if found is None else found.budget

    @property
    def limits(self) -> tuple[Limit, ...]:
        """All limits that were ever set, oldest first; a run must fit those that stand."""
        with self._file.reading() as database:
            return limits_in(database, len(_reservations(database)))

    @property
    def images_per_group(self) -> int | None:
        """The declared bound on the images of one person."""
        with self._file.reading() as database:
            return _images_per_group(database)

    @property
    def reservations(self) -> list[Reservation]:
        """All runs, oldest first."""
        with self._file.reading() as database:
            return _reservations(database)

    @property
    def unit(self) -> Unit:
        """For whom totals and limit hold: a group once a run was for groups or the images of one are declared."""
        return unit_of_all({r.unit for r in self.reservations}, self.images_per_group)

    def spent(self, delta: float) -> float | None:
        """The epsilon of all runs together at `delta`, for runs whose settings did not depend on earlier results.

        None when a run had no guarantee: then there is no such number.
        """
        runs = self.reservations
        if any(r.guarantee != "dp" for r in runs):
            return None
        events = _merged([event for number, plan in enumerate(self._plans(runs)) for event in _own(plan, number)])
        return epsilon_of(events, delta, "pld" if len(events) <= _MOST_EXACT else "rdp")

    def guaranteed(self) -> Budget | None:
        """What holds for all runs together, however each was chosen by the results of earlier ones.

        The limit, where it stood before the first run and still does. Otherwise a bound whose rule and delta were
        fixed before anything was seen; the delta is that of the first limit or, without one, of the first run. None
        when there is no such number.

        Privacy: for every set S of results, P(S) is at most the integral over S of e^epsilon dQ, plus delta. Epsilon
        is what is said here after those results. A limit that was withdrawn has its delta counted beside the bound's.
        """
        runs, first = self.reservations, promised(self.limits)
        if any(r.guarantee != "dp" for r in runs):
            return None
        if not runs:
            return None if first is None else first.budget
        with self._file.reading() as database:
            knows = _knows_gaussians(database)
        plans = self._plans(runs)
        # The images of a person may have been declared after runs that cost this person more than the limit.
        if first and first.stands and fits_account(plans[:-1], plans[-1], first.budget, knows_gaussians=knows):
            return first.budget
        delta, times = (runs[0].budget.delta, 1) if first is None else (first.budget.delta, 2)
        epsilon = bound_of(plans, delta, knows_gaussians=knows)
        return None if epsilon is None or times * delta >= 1 else Budget(epsilon, times * delta)

    def left(self) -> float | None:
        """The epsilon of the largest single Gaussian release that still fits all limits; None without a limit."""
        limits = standing(self.limits)
        if not limits:
            return None
        runs = self.reservations
        if any(r.guarantee != "dp" for r in runs):
            return 0.0
        spent = self._plans(runs)
        with self._file.reading() as database:
            knows = _knows_gaussians(database)

        def fits(noise_multiplier: float) -> bool:
            rest = [Event(label="rest", noise_multiplier=noise_multiplier)]
            return all(fits_account(spent, rest, limit, knows_gaussians=knows) for limit in limits)

        low, high = 1e-3, 1e6
        if not fits(high):
            return 0.0
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if fits(middle) else (middle, high)
        return gaussian_epsilon(high, limits[-1].delta)

    def _plans(self, runs: Sequence[Reservation]) -> list[list[Event]]:
        """What each run counts in the account's own unit."""
        return in_one_unit([(r.events, r.unit) for r in runs], self.images_per_group)[1]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _own(events: Sequence[Event], number: int) -> list[Event]:
    """Shards of one run are not those of another, whatever both call them: their keys differ."""
    return [e if e.partition is None else replace(e, partition=f"{number}/{e.partition}") for e in events]


def _merged(events: Sequence[Event]) -> list[Event]:
    """The same events with equal ones counted once; labels do not matter to a price."""
    counts: Counter[Event] = Counter()
    for event in events:
        counts[replace(event, label="", count=1)] += event.count
    return [replace(event, count=count) for event, count in counts.items()]


def _mixed(path: Path, unit: Unit) -> str:
    other = "group" if unit == "record" else "record"
    return (
        f"{path} holds runs for each {other}, and this one is for each {unit}: the two cannot be added up. Say how "
        "many images one group (a patient) has at most, with --images-per-group M, and runs for each record count "
        "M-fold; "
        f"or use --unit {other}. No data was read."
    )


def _advance(database: sqlite3.Connection, run: str, old: str, new: str) -> bool:
    changed = database.execute(
        "UPDATE reservation SET head = ?, lines = lines + 1 WHERE run = ? AND head = ? AND ended IS NULL",
        (new, run, old),
    )
    return changed.rowcount == 1


def _knows_gaussians(database: sqlite3.Connection) -> bool:
    """Whether the account was opened with the Gaussian filter. A rule that changes on the way could pass the limit."""
    found = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'gaussian_filter'")
    return found.fetchone() is not None


def _images_per_group(database: sqlite3.Connection) -> int | None:
    row = database.execute("SELECT images_per_group FROM declared").fetchone()
    return int(row[0]) if row else None


def _reservations(database: sqlite3.Connection) -> list[Reservation]:
    return [
        Reservation(
            run=run,
            time=time,
            method=method,
            budget=Budget(epsilon, delta),
            events=tuple(Event.from_json(event) for event in json.loads(events)),
            guarantee=guarantee,
            unit=unit,
            fingerprint=data,
            lines=lines,
            ended=ended,
        )
        for run, time, method, epsilon, delta, events, guarantee, unit, data, lines, ended in database.execute(_READ)
    ]
