"""Whether the runs of an account mean the same groups.

An account of groups adds up what runs cost each group. That holds for a person only if all images of that person are
one group in every run: a run by studies costs a patient with ten studies ten times what a run by patients does.

Names do not matter, nor new images. There must be one way to share all images out among persons with which every run
agrees: of the images that a run has, those of one person are together, and no others. Groups of two runs that share an
image are of one person, and so are all that hang together in this way; none of them may be two groups of one run.

Every image counts. An image that a run has in several groups (a blank one) does not say whose it is; it must be in as
many groups in all runs that have as many copies of it.

Privacy: depends on private records without noise, and stays in the state directory as all that finds accounts does.
Images and groups are there as hashes under the directory's key.
"""

import sqlite3
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.privacy.account import Account
from veilset.privacy.vault import Vault

Pairs = NDArray[np.uint64]
"""(n, 2): keyed hashes of each image and of its group, sorted: all images of a run."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS groupings (account TEXT NOT NULL, number INTEGER NOT NULL, pairs BLOB NOT NULL, "
    "PRIMARY KEY (account, number))",
    # Of earlier versions, which kept a sample of one run's images.
    "CREATE TABLE IF NOT EXISTS grouping (account TEXT PRIMARY KEY, pairs BLOB NOT NULL)",
)


def require_same_groups(database: sqlite3.Connection, account: Account, vault: Vault, key: bytes) -> None:
    """Refuse a run for groups beside runs for other groups of the same images; note its own."""
    _make_tables(database)
    place = str(account.path.resolve())
    known = _known(database, place) if any(run.unit == "group" for run in account.reservations) else []
    both = [*known, sorted_pairs(vault.group_hashes(key))]
    if not are_alike(both):
        raise InputError(
            f"Earlier runs of the account {place} had other groups of these images, so what they cost a group and "
            "what this run does cannot be added up. Pass the same --groups as then; or pass --unit record, and say "
            "how many images one group has at most, with --images-per-group M. No data was read."
        )
    kept = without_repeats(both)
    if known and len(kept) == len(known) and all(one is other for one, other in zip(kept, known, strict=True)):
        return
    for table in ("groupings", "grouping"):
        database.execute(f"DELETE FROM {table} WHERE account = ?", (place,))
    rows = [(place, number, pairs.astype("<u8").tobytes()) for number, pairs in enumerate(kept)]
    database.executemany("INSERT INTO groupings VALUES (?, ?, ?)", rows)


def take_over_groups(database: sqlite3.Connection, gone: str, place: str) -> None:
    """Let the account at `place`, of which nothing is noted, have the notes of one that is gone.

    It may be the same file under another name. If it is not, no run for groups is on it, and its notes do not count.
    """
    _make_tables(database)
    if not _known(database, place):
        for table in ("groupings", "grouping"):
            database.execute(f"UPDATE {table} SET account = ? WHERE account = ?", (place, gone))


def _make_tables(database: sqlite3.Connection) -> None:
    for table in _TABLES:
        database.execute(table)


def _known(database: sqlite3.Connection, place: str) -> list[Pairs]:
    """What earlier runs had, in the order in which it was kept."""
    found = database.execute("SELECT pairs FROM groupings WHERE account = ? ORDER BY number", (place,)).fetchall()
    found += database.execute("SELECT pairs FROM grouping WHERE account = ?", (place,)).fetchall()
    return [np.frombuffer(blob, "<u8").astype(np.uint64).reshape(-1, 2) for (blob,) in found]


def sorted_pairs(pairs: Pairs) -> Pairs:
    """By image, then by group."""
    found: Pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return found


def are_alike(runs: Sequence[Pairs]) -> bool:
    """Whether images can be shared out among persons so that every run has each person's images as one group."""
    return _agree_on_copies(runs) and _agree_on_persons(runs)


def without_repeats(runs: Sequence[Pairs]) -> list[Pairs]:
    """Those of these runs, which are alike, that say something: one whose images all are in another says nothing."""
    kept: list[Pairs] = []
    for run in sorted(runs, key=len, reverse=True):  # the first of equals stays
        if not any(_is_within(run, other) for other in kept):
            kept.append(run)
    return kept


def _is_within(run: Pairs, other: Pairs) -> bool:
    """Whether the other has every image of this run, in as many copies."""
    mine, copies, _ = _images_of(run)
    theirs, their_copies, _ = _images_of(other)
    places = np.searchsorted(theirs, mine).clip(max=len(theirs) - 1)
    return bool(((theirs[places] == mine) & (their_copies[places] == copies)).all())


def _images_of(run: Pairs) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The different images of a run, how many copies there are of each, and in how many groups."""
    is_first = np.concatenate([[True], run[1:, 0] != run[:-1, 0]])
    is_new = is_first | np.concatenate([[True], run[1:, 1] != run[:-1, 1]])
    starts = np.flatnonzero(is_first)
    return run[starts, 0], np.diff(starts, append=len(run)), np.add.reduceat(is_new.astype(np.int64), starts)


def _agree_on_copies(runs: Sequence[Pairs]) -> bool:
    images, copies, groups = map(np.concatenate, zip(*map(_images_of, runs), strict=True))
    order = np.lexsort((copies, images))
    images, copies, groups = images[order], copies[order], groups[order]
    comparable = (images[1:] == images[:-1]) & (copies[1:] == copies[:-1])
    return bool((groups[1:] == groups[:-1])[comparable].all())


def _agree_on_persons(runs: Sequence[Pairs]) -> bool:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    images, nodes, sizes = [], [], [0]
    for run in runs:
        own, copies, groups = _images_of(run)
        starts = np.cumsum(copies) - copies
        names, numbers = np.unique(run[starts[groups == 1], 1], return_inverse=True)
        images.append(own[groups == 1])
        nodes.append(numbers + sum(sizes))
        sizes.append(len(names))
    all_images, all_nodes = np.concatenate(images), np.concatenate(nodes)
    order = np.argsort(all_images, kind="stable")
    all_images, all_nodes = all_images[order], all_nodes[order]
    shared = all_images[1:] == all_images[:-1]
    edges = (all_nodes[:-1][shared], all_nodes[1:][shared])
    links = coo_array((np.ones(len(edges[0])), edges), shape=(sum(sizes), sum(sizes)))
    persons = connected_components(links, directed=False)[1]
    places = np.cumsum(sizes)
    return all(len(np.unique(persons[a:b])) == b - a for a, b in pairwise(places))
