"""The one way to open a run: find the account, hold the ledger, reserve the whole plan, write the first line.

The command line, Python, comparisons, paid accuracies, reference scores and the sites of a federation come through
`opened`. A run's folder is used once: the account knows how far the run's ledger got, on which data, and whether the
run has ended.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.privacy.account import Account
from veilset.privacy.events import Event, Plan, source_of
from veilset.privacy.ledger import Ledger, Line
from veilset.privacy.sources import account_of, confirm_groups
from veilset.privacy.vault import Vault

if TYPE_CHECKING:
    from veilset.privacy.noise import NoiseSource
    from veilset.privacy.processes import SharedLedger
    from veilset.privacy.session import Session

LEDGER = "ledger.jsonl"

_SHOWN = 60  # letters of a value in an error


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A session to spend a plan through, and the lines that its ledger has so far."""

    session: "Session"
    ledger: "Ledger | SharedLedger"

    def finished_lines(self) -> list[Line]:
        """All lines of the ledger, once the whole plan is spent; under torchrun, every process asks."""
        self.session.finish()
        if not isinstance(self.ledger, Ledger):
            self.ledger.synchronise()
        return self.ledger.lines


@contextmanager
def opened(
    vault: Vault,
    plan: Plan,
    header: Mapping[str, Any],
    *,
    workspace: Path,
    account: Account | None = None,
    resume: bool = False,
    guarantee: str = "dp",
    paid_as: str | None = None,
    noise: "NoiseSource | None" = None,
    progress: Progress = SILENT,
) -> Iterator[OpenRun]:
    """From a plan to a session: the account reserves all of it, the ledger is on disk, and only then can rows be read.

    Under torchrun every process calls this; rank 0 alone pays and writes.

    Args:
        vault: the private data.
        plan: what the run will spend.
        header: public words that decide what is read and what it costs; the ledger's first line.
        workspace: the run's own folder.
        account: who pays; None is the one that is kept for the vault's source.
        resume: go on with the unfinished run in `workspace`; there must be one.
        guarantee: "none" for a run that will not have one.
        paid_as: see `open_run`.
        noise: where noise comes from; None is the operating system's entropy.
        progress: told of the work.
    """
    from veilset.privacy.noise import NoiseSource
    from veilset.privacy.processes import SharedLedger, rank_and_size
    from veilset.privacy.session import Session

    rank, size = rank_and_size()
    held = None
    if rank == 0:
        payer = account or account_of(vault, None, progress)
        held = open_run(
            vault, plan, header, workspace=workspace, account=payer, resume=resume, guarantee=guarantee, paid_as=paid_as
        )
    ledger = held if held is not None and size == 1 else SharedLedger(held)
    try:
        session = Session(vault, plan, ledger, noise or NoiseSource(), workspace=workspace, progress=progress)
        yield OpenRun(session=session, ledger=ledger)
    finally:
        ledger.close()


def open_run(
    vault: Vault,
    plan: Plan,
    header: Mapping[str, Any],
    *,
    workspace: Path,
    account: Account,
    resume: bool = False,
    guarantee: str = "dp",
    paid_as: str | None = None,
) -> Ledger:
    """The ledger of a run, new or resumed, after the account has reserved all of its plan.

    Args:
        vault: the private data.
        plan: what the run will spend.
        header: public words that decide what is read and what it costs; the ledger's first line.
        workspace: the run's own folder.
        account: who pays, from `account_of`.
        resume: go on with the unfinished run in `workspace`; there must be one.
        guarantee: "none" for a run that will not have one.
        paid_as: where the plan is part of another reservation on this account, the name of that part, which is taken
            once; the run only gets its place there.
    """
    plan.budget.require_fit(vault.facts.units, vault.facts.unit)
    _check_declared(vault, account)
    fingerprint = vault.fingerprint()
    paid = replace(plan, events=() if paid_as else _unpaid(plan, header, account, vault.facts.unit))
    ledger = Ledger.hold(workspace / LEDGER)
    try:
        if resume:
            run = _resumed(ledger, paid, header, workspace, account, fingerprint, guarantee)
        else:
            if ledger.lines:
                raise InputError(
                    f"An unfinished run is in {workspace}. Pass --resume to go on with what it paid for, "
                    "or remove that folder to start anew; what it reserved stays spent."
                )
            run = paid_as or uuid.uuid4().hex
            account.reserve(
                run,
                str(header.get("method", "paid test accuracy")),
                paid,
                guarantee=guarantee,
                unit=vault.facts.unit,
                workspace=workspace,
                fingerprint=fingerprint,
            )
        if not paid_as:
            confirm_groups(vault, account)
        ledger.start({"run": run, **header}, plan.budget.carried, partial(account.advance, run))
    except BaseException:
        ledger.discard()
        raise
    return ledger


def _unpaid(plan: Plan, header: Mapping[str, Any], account: Account, unit: str) -> tuple[Event, ...]:
    """The plan's events without those of releases that this account has paid for already, when they were made."""
    paid = {r.run: Counter(r.events) for r in account.reservations if (r.guarantee, r.unit) == ("dp", unit)}
    settled: set[str | None] = set()
    for found in header.get("inputs", ()):
        source = source_of(found["certificate_sha256"])
        theirs = Counter(replace(event, source=None) for event in plan.budget.carried if event.source == source)
        if theirs <= paid.get(found["run"], Counter()):
            settled.add(source)
    return tuple(event for event in plan.events if event.source not in settled)


def has_unfinished_run(workspace: Path) -> bool:
    """Whether a run was begun in this folder, for who goes on with one wherever there is one."""
    path = workspace / LEDGER
    return path.exists() and b"\n" in path.read_bytes()


def _resumed(
    ledger: Ledger,
    plan: Plan,
    header: Mapping[str, Any],
    workspace: Path,
    account: Account,
    fingerprint: str,
    guarantee: str,
) -> str:
    """The name of the run that goes on, once everything about it is as it was."""
    if not ledger.lines:
        begun = account.unfinished(workspace)
        for found in begun:
            asked = (found.fingerprint, found.events, found.guarantee) == (fingerprint, plan.events, guarantee)
            if found.lines == 0 and asked:
                return found.run  # cut off between its reservation and its first line
        if begun:
            raise InputError(
                f"The ledger of the unfinished run in {workspace} is gone, so it cannot go on; what it reserved stays "
                "spent. Put the folder back, or leave --resume out to start a new run, which is paid for anew."
            )
        raise InputError(
            f"There is nothing to resume in {workspace}. Check --out, or leave --resume out to start a new run, which "
            "is paid for. No data was read."
        )
    kept = {name: value for name, value in ledger.header.items() if name != "run"}
    now = json.loads(json.dumps(header))
    if kept != now:
        raise InputError(
            f"The unfinished run in {workspace} has other {', '.join(_differences(kept, now))}. Resume it with the "
            "options it was started with, or remove that folder to start anew; what it reserved stays spent."
        )
    run = str(ledger.header["run"])
    account.resume(run, fingerprint=fingerprint, heads=[line["hash"] for line in ledger.lines])
    return run


def _differences(kept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is otherwise than at the start, as people said it: an option, then and now. The plan follows from these."""
    found = []
    for name in sorted({*kept, *now} - {"plan"}):
        then, today = kept.get(name), now.get(name)
        if isinstance(then, dict) and isinstance(today, dict):
            pairs = [(key, then.get(key), today.get(key)) for key in sorted({*then, *today})]
        else:
            pairs = [(name, then, today)]
        found += [f"{key} ({str(a)[:_SHOWN]} then, {str(b)[:_SHOWN]} now)" for key, a, b in pairs if a != b]
    return list(dict.fromkeys(found)) or ["plan, though all options are the same: another version of Veilset began it"]


def _check_declared(vault: Vault, account: Account) -> None:
    declared = account.images_per_group
    most = None if declared is None else vault.most_images_of_a_group()
    if declared is not None and most is not None and most > declared:
        raise InputError(
            f"{account.path} declares at most {declared} images for each group, and this data has a group with "
            f"{most}. Declare the true bound: veilset account {account.path} --images-per-group {most}"
        )
