"""A run's folder is used once: resumed with its own data and account, never from a copy, a cut or a deleted ledger."""

import multiprocessing
import shutil
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.opening import LEDGER, open_run
from veilset.privacy.session import Session
from veilset.privacy.sources import account_of
from veilset.privacy.vault import Vault

EVENTS = tuple(Event(label=f"sum {i}", noise_multiplier=4.0) for i in range(3))
PLAN = Plan(budget=Budget(2.0, 1e-5), events=EVENTS)
HEADER = {"method": "x", "plan": [event.to_json() for event in EVENTS]}


def vault(seed: int = 0, count: int = 40) -> Vault:
    images = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)
    return Vault(ImageSet(images, np.arange(count) % 2))


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return account_of(vault(), Account(tmp_path / "account.sqlite"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def start(account: Account, place: Path, *, resume: bool = False, data: Vault | None = None, **options: Any) -> Ledger:
    return open_run(data or vault(), PLAN, HEADER, workspace=place, account=account, resume=resume, **options)


def pay(ledger: Ledger, number: int, place: Path) -> Session:
    """The results of the first `number` sums, paid for or kept."""
    session = Session(vault(), PLAN, ledger, NoiseSource(), workspace=place)
    for event in EVENTS[:number]:
        session.gaussian_sum(lambda images, labels: images.flatten(1) / 255.0, event, clip_norm=1.0)
    return session


def test_a_run_goes_on_with_what_it_paid_for(account: Account, place: Path) -> None:
    ledger = start(account, place)
    pay(ledger, 1, place)
    ledger.close()
    ledger = start(account, place, resume=True)
    pay(ledger, 3, place)
    assert ledger.events == list(EVENTS)
    assert [r.lines for r in account.reservations] == [4]
    ledger.close()


def test_nothing_to_resume_pays_nothing(account: Account, place: Path) -> None:
    with pytest.raises(InputError, match="nothing to resume"):
        start(account, place, resume=True)
    assert not account.reservations
    assert not place.exists()


def test_other_data_and_other_accounts_do_not_resume(account: Account, place: Path, tmp_path: Path) -> None:
    start(account, place).close()
    with pytest.raises(InputError, match="other data"):
        start(account, place, resume=True, data=vault(seed=1))
    with pytest.raises(BudgetError, match="does not know this unfinished run"):
        start(Account(tmp_path / "other.sqlite"), place, resume=True)
    start(account, place, resume=True).close()


def test_other_groups_of_the_same_records_are_other_data(account: Account, place: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    first, second = (
        Vault(ImageSet(images, np.arange(40) % 2, groups=groups), unit="group")
        for groups in (np.arange(40) // 2, np.arange(40) % 20)
    )
    start(account, place, data=first).close()
    with pytest.raises(InputError, match="other data"):
        start(account, place, resume=True, data=second)


def test_a_copy_whose_twin_went_on_is_refused_before_it_reads(account: Account, place: Path, tmp_path: Path) -> None:
    ledger = start(account, place)
    pay(ledger, 1, place)
    ledger.close()
    shutil.copytree(place, tmp_path / "copy")
    ledger = start(account, place, resume=True)
    pay(ledger, 2, place)
    ledger.close()
    with pytest.raises(BudgetError, match="another copy went on"):
        start(account, tmp_path / "copy", resume=True)


def test_of_two_open_copies_one_reads(account: Account, place: Path, tmp_path: Path) -> None:
    start(account, place).close()
    shutil.copytree(place, tmp_path / "copy")
    first, second = start(account, place, resume=True), start(account, tmp_path / "copy", resume=True)
    pay(first, 1, place)
    with pytest.raises(BudgetError, match="Another copy"):
        pay(second, 1, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("paid-*")), "nothing was read"
    with pytest.raises(BudgetError, match="has stopped"):
        second.spend(EVENTS[1])


@pytest.mark.parametrize("damage", ["cut", "deleted", "rolled back"])
def test_a_ledger_that_lost_lines_is_refused(account: Account, place: Path, damage: str) -> None:
    ledger = start(account, place)
    before = (place / LEDGER).read_bytes()
    ledger.spend(EVENTS[0])
    ledger.lease(EVENTS[0], 50, 1)
    ledger.close()
    whole = (place / LEDGER).read_bytes()
    if damage == "deleted":
        (place / LEDGER).unlink()
    else:
        (place / LEDGER).write_bytes(before if damage == "rolled back" else whole[: whole[:-1].rfind(b"\n") + 1])
    with pytest.raises(VeilsetError, match=r"is gone|cut, changed or copied"):
        start(account, place, resume=True)
    assert len(account.reservations) == 1


def test_a_line_that_the_account_did_not_hear_of_is_taken_over(
    account: Account, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = start(account, place)
    with monkeypatch.context() as patch:
        patch.setattr("veilset.privacy.account._advance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ledger.spend(EVENTS[0])
    ledger.close()
    assert [r.lines for r in account.reservations] == [1]
    start(account, place, resume=True).close()
    assert [r.lines for r in account.reservations] == [2]


def test_an_ended_run_is_refused(account: Account, place: Path) -> None:
    ledger = start(account, place)
    account.end(str(ledger.header["run"]))
    ledger.close()
    with pytest.raises(BudgetError, match="has ended"):
        start(account, place, resume=True)


@pytest.mark.parametrize("damage", ["cut", "of another run", "of another line"])
def test_a_paid_result_that_is_not_its_own_is_refused(
    account: Account, place: Path, tmp_path: Path, damage: str
) -> None:
    ledger = start(account, place)
    pay(ledger, 2, place)
    ledger.close()
    kept = place / "paid-1.npy"
    if damage == "cut":
        kept.write_bytes(kept.read_bytes()[:-7])
    elif damage == "of another line":
        kept.write_bytes((place / "paid-2.npy").read_bytes())
    else:
        other = start(account, tmp_path / "other")
        pay(other, 1, tmp_path / "other")
        other.close()
        kept.write_bytes((tmp_path / "other" / "paid-1.npy").read_bytes())
    ledger = start(account, place, resume=True)
    with pytest.raises(BudgetError, match=r"paid-1.npy is damaged or of another run"):
        pay(ledger, 1, place)
    ledger.close()


def test_few_records_are_refused(account: Account, place: Path) -> None:
    with pytest.raises(InputError, match="at least 10 records, got 1"):
        start(account, place, data=Vault(ImageSet(np.zeros((1, 8, 8), np.uint8), np.zeros(1, int))))
    assert not account.reservations


def test_a_declared_bound_must_be_true(account: Account, place: Path) -> None:
    account.declare_images_per_group(3)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    with pytest.raises(InputError, match="--images-per-group 4"):
        start(account, place, data=Vault(ImageSet(images, np.arange(40) % 2, groups=np.arange(40) // 4)))


def _race(account: Path, place: Path, line: Barrier, results: Any) -> None:
    data, book = vault(), Account(account)
    line.wait(60)
    try:
        ledger = start(book, place, data=data)
    except InputError as error:
        results.put(str(error))
        line.wait(60)
    else:
        line.wait(60)
        pay(ledger, 3, place)
        results.put("ran")
        ledger.close()


def test_of_concurrent_starts_exactly_one_runs(account: Account, place: Path) -> None:
    context = multiprocessing.get_context("spawn")
    line, results = context.Barrier(4), context.Queue()
    racers = [context.Process(target=_race, args=(account.path, place, line, results)) for _ in range(4)]
    for racer in racers:
        racer.start()
    found = sorted(results.get(timeout=120) for _ in racers)
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    assert found.count("ran") == 1
    assert all("A run is alive there" in text for text in found if text != "ran")
    assert len(account.reservations) == 1


def test_a_ledger_that_was_removed_by_who_held_it_is_not_written_by_who_waited(place: Path) -> None:
    held = Ledger.hold(place / LEDGER)
    with pytest.raises(InputError, match="A run is alive there"):
        Ledger.hold(place / LEDGER)
    held.discard()
    assert not place.exists()
    ledger = Ledger.create(place / LEDGER, {"run": "x"})
    assert len((place / LEDGER).read_bytes().splitlines()) == 1
    ledger.close()


def test_lines_carry_no_clock(account: Account, place: Path) -> None:
    ledger = start(account, place)
    ledger.spend(EVENTS[0])
    assert {key for line in ledger.lines for key in line} == {"sequence", "kind", "body", "previous", "hash"}
    assert "fingerprint" not in str(ledger.lines)
    ledger.close()


def test_a_run_that_was_cut_before_its_first_line_keeps_its_guarantee(
    account: Account, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    def cut(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", cut)
        with pytest.raises(Cut):
            start(account, place)
    with pytest.raises(InputError, match="cannot go on"):
        start(account, place, resume=True, guarantee="none")
    start(account, place, resume=True).close()
    assert [r.guarantee for r in account.reservations] == ["dp"]
