"""Whether the runs of an account mean the same groups.

An account of groups adds up what runs cost each group. That holds for a person only if all images of that person are
one group in every run: a run by studies costs a patient with ten studies ten times what a run by patients does.

Names do not matter, nor new images: of the images that two runs share, those that were together must stay together,
and no others. The smallest keyed hashes of many images are a random sample, and enough to tell.

Privacy: depends on private records without noise, and stays in the state directory as all that finds accounts does.
"""

import sqlite3

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault

Pairs = NDArray[np.uint64]
"""(n, 2): keyed hashes of an image and of its group, by image; images that are there twice are left out."""

_MOST = 1 << 14
_TABLE = "CREATE TABLE IF NOT EXISTS grouping (account TEXT PRIMARY KEY, pairs BLOB NOT NULL)"


def require_same_groups(database: sqlite3.Connection, account: Account, vault: Vault, key: bytes) -> None:
    """Refuse a run for groups beside runs for other groups of the same images; note those of the first one."""
    if vault.facts.unit != "group":
        return
    database.execute(_TABLE)
    place, found = str(account.path.resolve()), _pairs_of(vault, key)
    row = database.execute("SELECT pairs FROM grouping WHERE account = ?", (place,)).fetchone()
    if row is not None and any(run.unit == "group" for run in account.reservations):
        known = np.frombuffer(row[0], "<u8").astype(np.uint64).reshape(-1, 2)
        if not are_alike(known, found):
            raise InputError(
                f"Earlier runs of the account {place} had other groups of these images, so what they cost a group and "
                "what this run does cannot be added up. Pass the same --groups as then; or pass --unit record, and say "
                "how many images one group has at most, with --images-per-group M. No data was read."
            )
        found = max(known, found, key=len)
    database.execute("INSERT OR REPLACE INTO grouping VALUES (?, ?)", (place, found.astype("<u8").tobytes()))


def are_alike(first: Pairs, second: Pairs) -> bool:
    """Whether the images that both know are together in one of them exactly where they are in the other."""
    _, here, there = np.intersect1d(first[:, 0], second[:, 0], assume_unique=True, return_indices=True)
    both = np.unique(np.stack([first[here, 1], second[there, 1]], axis=1), axis=0)
    return len(both) == len(np.unique(both[:, 0])) == len(np.unique(both[:, 1]))


def _pairs_of(vault: Vault, key: bytes) -> Pairs:
    pairs = vault.group_hashes(key)
    _, places, counts = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    kept: Pairs = pairs[places[counts == 1]][:_MOST]
    return kept
