"""Which account pays for which data: one for each source, whatever view of it is taken.

The state directory keeps, for each account, where its data was read from and a sketch of the records: the smallest
keyed hashes of the images as the source holds them. Another size, other colours, a limit or other labels do not change
them. The key never leaves the directory, so a sketch alone tells nobody anything.

Privacy: everything here depends on private records without noise. It decides which file is charged, on the custodian's
own machine, and nothing of it reaches a release.
"""

import os
import re
import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import BudgetError, InputError
from veilset.core.places import state_directory
from veilset.core.progress import SILENT, Progress
from veilset.privacy.account import Account
from veilset.privacy.same_groups import require_same_groups, take_over_groups
from veilset.privacy.state_file import Kind, StateFile
from veilset.privacy.vault import Vault

Hashes = NDArray[np.uint64]  # sorted and distinct
Likeness = Literal["same", "unsure", "other"]

_KIND = Kind(
    name="index of accounts",
    application=0x56534958,
    version=1,
    advice="Set VEILSET_STATE to a folder of your own that can be written to.",
    schema=(
        "CREATE TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL)",
        "CREATE TABLE account (path TEXT PRIMARY KEY, sketch BLOB NOT NULL)",
        "CREATE TABLE place (origin TEXT NOT NULL, account TEXT NOT NULL, PRIMARY KEY (origin, account))",
    ),
)
_SKETCH = 1 << 14  # hashes kept for each account
_SURELY = 0.9  # of the smaller set: the same source, grown or shrunk
_PERHAPS = 0.1
_LEAST_SHARED = 2  # one image alone may be a blank that many sources hold


@dataclass(frozen=True, kw_only=True)
class KnownAccount:
    """An account and where its data was read from."""

    path: Path
    origins: tuple[str, ...]


def account_of(vault: Vault, account: Account | None, progress: Progress = SILENT) -> Account:
    """The account that pays: the one that was named, or the one that is kept for this data."""
    if account is None:
        return account_for(vault)
    others = remember(vault, account)
    if others:
        progress.note(f"The same data is also on the account {others[0]}; its runs are not counted here.")
    return account


def account_for(vault: Vault) -> Account:
    """The account that is kept for this data; a new one where its records are on none.

    It raises where the records are partly on an account that was opened for another source: a person has to say
    whether these are the same people.
    """
    with _index().writing() as database:
        hashes = vault.source_hashes(_key(database))
        likeness = {path: _likeness(database, path, hashes, vault.origin) for path in _paths(database)}
        same = [path for path, found in likeness.items() if found == "same"]
        unsure = [path for path, found in likeness.items() if found == "unsure"]
        if len(same) > 1:
            raise InputError(
                f"Several accounts know these records: {', '.join(same)}. Name the one that pays with --account. "
                "No data was read."
            )
        if not same and unsure:
            raise InputError(
                f"Many of these records, or others from the same place, are on the account {unsure[0]} already. If "
                f"they are of the same people, pass --account {unsure[0]} to go on with it; if not, pass --account "
                "NEW.sqlite to open one. No data was read."
            )
        path = Path(same[0]) if same else _new_place(vault.origin)
        if same and not path.exists():
            raise InputError(
                f"The account of this data, {path}, is gone, and what was spent with it. Put it back, or name "
                "another one with --account."
            )
        account = Account(path)
        account.make()
        _remember(database, account, vault, hashes, path)
    return account


def remember(vault: Vault, account: Account) -> list[Path]:
    """Note that `account`, which a person named, pays for this data; the other accounts that know these records."""
    account.make()
    if (vault.origin or "").startswith("builtin:"):
        return []  # pictures that everybody has; an account of a trial run should not follow them for ever
    with _index().writing() as database:
        hashes = vault.source_hashes(_key(database))
        own = str(account.path.resolve())
        others = []
        for path in _paths(database):
            if path != own and _likeness(database, path, hashes, vault.origin) == "same":
                if not Path(path).exists():  # a person has named another account since it went, or has moved it
                    take_over_groups(database, path, own)
                    _forget(database, path)
                    continue
                if Account(Path(path)).limit is not None:
                    raise BudgetError(
                        f"These records are on the account {path}, which has a limit; another account would let them "
                        f"pass it. Pass --account {path}, or leave --account out. No data was read."
                    )
                others.append(Path(path))
        _remember(database, account, vault, hashes, Path(own))
    return others


def confirm_groups(vault: Vault, account: Account) -> None:
    """Refuse a run that has reserved its plan where another, begun at the same moment, is for other groups.

    Until a run has reserved, its notes do not bind others: it may never pay. Of two that both noted groups and then
    both reserved, the one whose notes are gone is found here, before it reads anything.
    """
    if vault.facts.unit != "group":
        return
    with _index().writing() as database:
        try:
            require_same_groups(database, account, vault, _key(database))
        except InputError as error:
            raise InputError(f"{error} What this run reserved stays spent.") from error


def known_accounts(origin: str | None = None) -> list[KnownAccount]:
    """All accounts that were used here, or those whose data was read from `origin`."""
    with _index().reading() as database:
        places: dict[str, list[str]] = {path: [] for path in _paths(database)}
        for place, account in database.execute("SELECT origin, account FROM place ORDER BY rowid"):
            places.setdefault(account, []).append(place)
    return [
        KnownAccount(path=Path(path), origins=tuple(origins))
        for path, origins in places.items()
        if origin is None or origin in origins
    ]


def _index() -> StateFile:
    return StateFile(state_directory() / "accounts.index", _KIND)


def _key(database: sqlite3.Connection) -> bytes:
    row = database.execute("SELECT key FROM secret").fetchone()
    if row is None:
        row = (os.urandom(32),)
        database.execute("INSERT INTO secret VALUES (1, ?)", row)
    key: bytes = row[0]
    return key


def _paths(database: sqlite3.Connection) -> list[str]:
    return [str(path) for (path,) in database.execute("SELECT path FROM account ORDER BY rowid")]


def _sketch(database: sqlite3.Connection, path: str) -> Hashes:
    row = database.execute("SELECT sketch FROM account WHERE path = ?", (path,)).fetchone()
    return np.frombuffer(row[0] if row else b"", "<u8").astype(np.uint64)


def _likeness(database: sqlite3.Connection, path: str, hashes: Hashes, origin: str | None) -> Likeness:
    place = database.execute("SELECT 1 FROM place WHERE origin = ? AND account = ?", (origin, path)).fetchone()
    return likeness_of(_sketch(database, path), hashes, same_place=place is not None)


def likeness_of(sketch: Hashes, hashes: Hashes, *, same_place: bool) -> Likeness:
    """Whether records with these hashes belong to the account with this sketch.

    A full sketch holds the smallest hashes of its source, so only those of the new records that are small enough to be
    in it can tell; they are a random sample of the new records.
    """
    comparable = hashes[: np.searchsorted(hashes, sketch[-1], side="right")] if len(sketch) >= _SKETCH else hashes
    places = np.searchsorted(comparable, sketch)
    inside = places < len(comparable)
    shared = int((comparable[places[inside]] == sketch[inside]).sum())
    share = max(shared / max(1, len(comparable)), shared / max(1, len(sketch)))
    if share >= _SURELY or (same_place and (shared > 0 or not len(comparable))):
        return "same"
    return "unsure" if same_place or (share > _PERHAPS and shared >= _LEAST_SHARED) else "other"


def _remember(database: sqlite3.Connection, account: Account, vault: Vault, hashes: Hashes, path: Path) -> None:
    """Note that the account at `path` pays for this data, once its groups were found to be those of earlier runs."""
    if vault.facts.unit == "group":
        require_same_groups(database, account, vault, _key(database))
    grown = np.union1d(_sketch(database, str(path)), hashes[:_SKETCH])[:_SKETCH]
    database.execute("INSERT OR REPLACE INTO account VALUES (?, ?)", (str(path), grown.astype("<u8").tobytes()))
    if vault.origin is not None:
        database.execute("INSERT OR IGNORE INTO place VALUES (?, ?)", (vault.origin, str(path)))


def _forget(database: sqlite3.Connection, path: str) -> None:
    database.execute("DELETE FROM account WHERE path = ?", (path,))
    database.execute("DELETE FROM place WHERE account = ?", (path,))


def _new_place(origin: str | None) -> Path:
    """A name that a person may recognise, and that no other account has."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(origin or "").stem).strip("-")[:40]
    name = f"{stem or 'data'}-{uuid.uuid4().hex[:8]}.sqlite"
    return (state_directory() / "accounts" / name).resolve()
