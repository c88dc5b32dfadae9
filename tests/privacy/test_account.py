import multiprocessing
import sqlite3
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan

LIMIT = Budget(1.0, 1e-5)


def plan(noise: float) -> Plan:
    return Plan(budget=Budget(1, 1e-5), events=(Event(label="sum", noise_multiplier=noise),))


def test_reservations_last(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.reserve("run-1", "merf", plan(10))
    again = Account(tmp_path / "a.sqlite")
    assert [r.run for r in again.reservations] == ["run-1"]
    assert again.spent(1e-5) == pytest.approx(epsilon_of(plan(10).events, 1e-5))
    assert again.left() is None


def test_overdrawing_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.reserve("run-1", "merf", plan(8))
    left = account.left()
    with pytest.raises(BudgetError, match="overdraw"):
        account.reserve("run-2", "merf", plan(4))
    assert len(account.reservations) == 1
    assert account.left() == left
    assert left is not None
    assert 0 < left < 1


def test_a_run_reserves_once(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.reserve("run-1", "merf", plan(8))
    for _ in range(4):
        with pytest.raises(BudgetError, match="already"):
            account.reserve("run-1", "merf", plan(8))
    assert len(account.reservations) == 1


def test_a_limit_is_lowered_freely_and_raised_only_by_force(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.set_limit(Budget(0.5, 1e-6))
    with pytest.raises(BudgetError, match="--force"):
        account.set_limit(LIMIT)
    account.set_limit(LIMIT, allow_raise=True)
    assert account.limit == LIMIT


def test_an_account_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "account.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE reservation (run TEXT, time TEXT, method TEXT, epsilon REAL, delta REAL, events TEXT)"
        )
    with pytest.raises(InputError, match="stays spent"):
        Account(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "not.sqlite"
    place.write_text("this is not a database, and it is long enough to be looked at" * 20)
    with pytest.raises(InputError, match="as an account"):
        Account(place)


def _spend_all(path: Path, name: str, start: Barrier) -> None:
    account = Account(path)
    epsilon_of(plan(30).events, 1e-5, "rdp")  # loads the accountant, so that both start together
    start.wait(60)
    for number in range(200):
        try:
            account.reserve(f"{name}-{number}", "merf", plan(30))
        except BudgetError:
            return
        time.sleep(0.05)  # SQLite's lock is not fair; without a pause the first racer takes all


def test_two_processes_racing_never_overspend(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    Account(path).set_limit(LIMIT)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    racers = [context.Process(target=_spend_all, args=(path, name, start)) for name in "ab"]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
        assert racer.exitcode == 0
    account = Account(path)
    assert account.spent(LIMIT.delta) <= LIMIT.epsilon
    with pytest.raises(BudgetError):
        account.reserve("one more", "merf", plan(30))
    assert len({r.run[0] for r in account.reservations}) == 2, "both took part, so it was a race"


def test_a_crash_inside_the_transaction_leaves_no_lock(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    abandoned = sqlite3.connect(account.path, isolation_level=None)
    abandoned.execute("BEGIN IMMEDIATE")
    abandoned.close()
    account.reserve("run-1", "merf", plan(8))


def test_after_a_run_without_a_guarantee_no_epsilon_holds(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.reserve("run-1", "merf", plan(8))
    account.reserve("run-2", "merf", plan(8), guarantee="none")
    assert account.spent(1e-5) is None
    account.set_limit(LIMIT)
    assert account.left() == 0.0
    with pytest.raises(BudgetError, match="without a guarantee"):
        account.reserve("run-3", "merf", plan(100))


def test_an_account_with_a_limit_refuses_a_run_without_a_guarantee(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    with pytest.raises(BudgetError, match="without a guarantee"):
        account.reserve("run-1", "merf", plan(100), guarantee="none")
    assert not account.reservations


def test_shards_of_two_runs_are_not_the_same_shards(tmp_path: Path) -> None:
    """A record may lie in the cheap shard of one run and in the dear one of the other."""
    account = Account(tmp_path / "a.sqlite")
    for run, noises in (("one", (2.0, 50.0)), ("two", (50.0, 2.0))):
        events = tuple(Event(label="x", noise_multiplier=n, partition="p", shard=k) for k, n in enumerate(noises))
        account.reserve(run, "merf", Plan(budget=Budget(9, 1e-5), events=events))
    worst = [Event(label="x", noise_multiplier=2.0, count=2)]
    assert account.spent(1e-5) == pytest.approx(epsilon_of(worst, 1e-5), rel=1e-6)


def test_records_and_groups_need_a_bound_to_be_added_up(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.reserve("run-1", "merf", plan(20))
    assert account.unit == "record"
    with pytest.raises(InputError, match="--images-per-group M"):
        account.reserve("run-2", "merf", plan(20), unit="group")
    account.declare_images_per_group(10)
    assert account.unit == "group"
    account.reserve("run-2", "merf", plan(20), unit="group")
    together = [Event(label="x", noise_multiplier=2.0), Event(label="y", noise_multiplier=20.0)]
    assert account.spent(1e-5) == pytest.approx(epsilon_of(together, 1e-5))
    with pytest.raises(BudgetError, match="--force"):
        account.declare_images_per_group(3)


def test_a_limit_holds_for_people_once_their_images_are_declared(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.declare_images_per_group(10)
    with pytest.raises(BudgetError, match="for each group"):
        account.reserve("run-1", "merf", plan(8))
    account.reserve("run-2", "merf", plan(8), unit="group")


def test_a_run_goes_on_only_from_where_the_account_left_it(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.reserve("run", "merf", plan(8), fingerprint="data")
    account.advance("run", "0" * 64, "a")
    account.advance("run", "a", "b")
    with pytest.raises(BudgetError, match="Another copy"):
        account.advance("run", "a", "c")
    account.resume("run", fingerprint="data", heads=["a", "b"])
    for heads in ([], ["a"], ["a", "c"], ["a", "b", "c", "d"]):
        with pytest.raises(BudgetError, match="cut, changed or copied"):
            account.resume("run", fingerprint="data", heads=heads)
    account.resume("run", fingerprint="data", heads=["a", "b", "c"])  # cut off before the account heard of the line
    with pytest.raises(BudgetError, match="cut, changed or copied"):
        account.resume("run", fingerprint="data", heads=["a", "b"])
    with pytest.raises(InputError, match="other data"):
        account.resume("run", fingerprint="others", heads=["a", "b", "c"])
    with pytest.raises(BudgetError, match="another account"):
        account.resume("unknown", fingerprint="data", heads=["a"])
    account.end("run")
    with pytest.raises(BudgetError, match="has ended"):
        account.resume("run", fingerprint="data", heads=["a", "b", "c"])


def test_a_database_of_another_program_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE reservation (guest TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="another program"):
        Account(path)
    assert path.read_bytes() == before
    assert [place.name for place in tmp_path.iterdir()] == ["theirs.sqlite"]


def test_a_read_only_account_can_be_shown(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    account = Account(folder / "a.sqlite")
    account.reserve("run-1", "merf", plan(8))
    account.path.chmod(0o400)
    folder.chmod(0o500)
    try:
        assert len(Account(account.path).reservations) == 1
        assert list(folder.iterdir()) == [account.path]
    finally:
        folder.chmod(0o700)


def test_a_busy_account_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.make()
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **(k | {"timeout": 0.1})))
    holder = real(account.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    for call in (lambda: account.reserve("run-1", "merf", plan(8)), lambda: account.reservations):
        with pytest.raises(VeilsetError, match="in use by another process"):
            call()
    holder.close()
    account.reserve("run-1", "merf", plan(8))


def test_looking_at_an_account_that_is_not_there_makes_none(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    assert account.reservations == []
    assert account.spent(1e-5) == 0
    assert not account.path.exists()


def test_an_account_that_a_kill_left_empty_is_an_empty_one(tmp_path: Path) -> None:
    """Killed while its first entry is written: the raw bytes show our mark, and SQLite takes all of it back."""
    path = tmp_path / "account.sqlite"
    account = Account(path)
    account.make()
    marked = path.read_bytes()
    again = Account(path)
    path.write_bytes(b"")  # what is left once SQLite has taken the half-written entry back
    assert again.reservations == []
    again.make()
    assert path.read_bytes()[:100].count(marked[68:72]) == 1
    assert Account(path).reservations == []


def test_a_run_must_fit_every_limit_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter judges each limit at an order of its own, so a run that fits a lower limit may still pass the first."""
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.reserve("run-1", "merf", plan(20))
    account.set_limit(Budget(0.9, 1e-6))
    judged: list[Budget] = []

    def fits(_spent: object, _wanted: object, limit: Budget, **_: object) -> bool:
        judged.append(limit)
        return limit != LIMIT

    monkeypatch.setattr("veilset.privacy.account.fits_account", fits)
    with pytest.raises(BudgetError, match="epsilon=1 at delta=1e-05"):
        account.reserve("run-2", "merf", plan(20))
    account.set_limit(Budget(2.0, 1e-5), allow_raise=True)
    judged.clear()
    account.reserve("run-2", "merf", plan(20))
    assert judged == [Budget(2.0, 1e-5)], "force has withdrawn the others"


def test_what_is_promised_is_the_limit_before_the_first_run(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(Budget(3.0, 1e-5))
    account.set_limit(LIMIT)
    account.reserve("run-1", "merf", plan(8))
    assert account.guaranteed() == LIMIT
    account.set_limit(Budget(0.7, 1e-6))
    account.reserve("run-2", "merf", plan(40))
    assert account.limit == Budget(0.7, 1e-6)
    assert account.guaranteed() == LIMIT, "the lower one may have been chosen by the first result"
    account.set_limit(Budget(5.0, 1e-5), allow_raise=True)
    account.reserve("run-3", "merf", plan(2))
    found = account.guaranteed()
    assert found is not None
    assert found.delta == 2e-5, "the limit that was given up has its own share"
    assert found.epsilon > account.spent(1e-5)


def test_a_limit_after_the_first_run_refuses_and_promises_nothing(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.reserve("run-1", "merf", plan(8))
    account.set_limit(LIMIT)
    account.reserve("run-2", "merf", plan(8))
    with pytest.raises(BudgetError, match="overdraw"):
        account.reserve("run-3", "merf", plan(4))
    found, spent = account.guaranteed(), account.spent(1e-5)
    assert found is not None
    assert spent is not None
    assert found.delta == 1e-5
    assert spent < found.epsilon < 1.5 * spent
    assert [limit.runs for limit in account.limits] == [1]


def test_a_promise_is_for_people_once_their_images_are_declared(tmp_path: Path) -> None:
    account = Account(tmp_path / "a.sqlite")
    account.set_limit(LIMIT)
    account.reserve("run-1", "merf", plan(8))
    account.declare_images_per_group(10)
    found = account.guaranteed()
    assert found is not None
    assert found.epsilon > 5


def test_of_an_older_account_nobody_knows_whether_the_limit_came_first(tmp_path: Path) -> None:
    used, fresh, changed = (Account(tmp_path / f"{name}.sqlite") for name in ("used", "fresh", "changed"))
    for account in (used, fresh, changed):
        account.set_limit(LIMIT)
    for account in (used, changed):
        account.reserve("run-1", "merf", plan(20))
    for account in (used, fresh):
        with sqlite3.connect(account.path) as database:
            database.execute("DROP TABLE limit_history")
    with sqlite3.connect(changed.path) as database:  # by an older version, with force
        database.execute("UPDATE spending_limit SET epsilon = 4")
    for account in (used, fresh, changed):
        account.reserve("run-2", "merf", plan(20))
    assert [(limit.runs, limit.stands) for limit in used.limits] == [(None, True)]
    assert used.limit == LIMIT
    assert used.guaranteed() != LIMIT
    assert fresh.guaranteed() == LIMIT, "it had no run, so the limit came first"
    assert [(limit.runs, limit.stands) for limit in changed.limits] == [(0, False), (None, True)]
    with pytest.raises(BudgetError, match="overdraw"):
        used.reserve("run-3", "merf", plan(3))
