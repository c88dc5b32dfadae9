"""Groups of the same images: every image counts, over all runs of an account together."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.core.errors import InputError
from veilset.data import ImageSet
from veilset.privacy import sources
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.opening import open_run
from veilset.privacy.same_groups import Pairs, are_alike, sorted_pairs, without_repeats
from veilset.privacy.sources import account_for, account_of
from veilset.privacy.vault import Vault

PLAN = Plan(budget=Budget(1.0, 1e-3), events=(Event(label="sum", noise_multiplier=4.0),))


def run(**groups: str) -> Pairs:
    """A run in which each group has these images, a letter each."""
    rows = [(ord(image), index) for index, images in enumerate(groups.values()) for image in images]
    return sorted_pairs(np.array(rows, np.uint64).reshape(-1, 2))


@pytest.mark.parametrize(
    "runs",
    [
        [run(p="ab", q="c"), run(x="c", y="ab")],
        [run(p="ab"), run(p="cd"), run(p="abcd")],  # new images of a known person
        [run(p="ab", q="cd"), run(p="ef"), run(p="abef", q="cd")],
        [run(p="a_", q="b_"), run(x="b_", y="a_")],  # a blank image that two persons have
        [run(p="a_", q="b_"), run(p="a_")],  # of which a view has one
        [run(p="aa", q="b"), run(p="a", q="b")],
    ],
)
def test_runs_that_one_way_of_sharing_out_explains(runs: list[Pairs]) -> None:
    assert are_alike(runs)
    assert are_alike(runs[::-1])


@pytest.mark.parametrize(
    "runs",
    [
        [run(p="ab"), run(p="a", q="b")],
        [run(p="ab", q="c"), run(p="a", q="bc")],
        [run(p="a", q="b"), run(p="bc"), run(p="ac")],  # each two of them agree
        [run(p="ab", q="cd"), run(p="be", q="f"), run(p="ef")],  # e is of the first person, f of another
        [run(p="aabb"), run(p="ab", q="ab")],  # a patient has each image twice, and two studies have it once
    ],
)
def test_runs_that_nothing_explains(runs: list[Pairs]) -> None:
    assert not are_alike(runs)
    assert not are_alike(runs[::-1])


@pytest.mark.parametrize("size", [1, 128, 256, 512])
def test_groups_of_any_size_are_told_apart(size: int) -> None:
    images = np.arange(2 * size)
    whole, halves = (np.stack([images, groups], axis=1).astype(np.uint64) for groups in (images * 0, images // size))
    assert are_alike([whole, whole])
    assert are_alike([halves, halves])
    assert not are_alike([whole, halves])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=3), st.data())
def test_it_is_what_trying_all_ways_finds(views: list[list[int]], data: st.DataObject) -> None:
    """Runs of a few images, each once, against every way to share them out."""
    runs = []
    for view in views:
        images = data.draw(st.permutations(range(6)))[: len(view)]
        runs.append(sorted_pairs(np.array(list(zip(images, view, strict=True)), np.uint64)))

    def ways(count: int) -> list[list[int]]:
        if count == 0:
            return [[]]
        return [[*way, person] for way in ways(count - 1) for person in range(max(way, default=-1) + 2)]

    def explains(way: list[int], known: Pairs) -> bool:
        seen = {(int(group), way[int(image)]) for image, group in known}
        return len(seen) == len({group for group, _ in seen}) == len({person for _, person in seen})

    assert are_alike(runs) == any(all(explains(way, known) for known in runs) for way in ways(6))


def test_what_another_run_has_too_is_not_kept() -> None:
    small, large, apart = run(p="a", q="c"), run(p="ab", q="c"), run(p="cd")
    kept = without_repeats([small, large, apart, large.copy()])
    assert [len(each) for each in kept] == [3, 2]
    assert kept[0] is large
    assert len(without_repeats([run(p="aa", q="b"), run(p="a")])) == 2, "another number of copies says something else"


def vault(groups: np.ndarray, rows: slice = slice(None)) -> Vault:
    """Tiny images that all differ, in these groups."""
    numbers = np.arange(len(groups), dtype="<u4")
    images = numbers.view(np.uint8).reshape(-1, 2, 2, 1)
    return Vault(ImageSet(images[rows], numbers[rows] % 2, groups=groups[rows]), unit="group")


def test_one_image_among_many_that_changes_its_group_is_found() -> None:
    """A sample of 16,384 of these images would know it with one chance in two."""
    patients = np.arange(40_000) // 4
    account = account_for(vault(patients))
    account.reserve("run", "merf", PLAN, unit="group")
    moves = np.random.default_rng(0).choice(40_000, 6, replace=False)
    for place in moves:
        other = patients.copy()
        other[place] = (patients[place] + 7) % 10_000
        with pytest.raises(InputError, match="other groups"):
            account_for(vault(other))
    assert account_for(vault(patients[::-1].copy()[::-1])).path == account.path


def test_an_earlier_run_is_not_forgotten_for_a_larger_one() -> None:
    patients = np.arange(200) // 4
    account = account_for(vault(patients, slice(0, 100)))
    account.reserve("first", "merf", PLAN, unit="group")
    account_for(vault(patients, slice(4, 200)))  # shares most with it, and has more
    account.reserve("second", "merf", PLAN, unit="group")
    other = patients.copy()
    other[0] = 1000  # only the first run has seen this patient
    with pytest.raises(InputError, match="other groups"):
        account_for(vault(other))
    assert account_for(vault(patients)).path == account.path
    with sources._index().reading() as database:
        assert len(database.execute("SELECT 1 FROM groupings").fetchall()) == 1, "the whole says all"


def test_an_account_that_was_moved_keeps_its_groups(tmp_path: Path) -> None:
    patients = np.arange(200) // 4
    account = account_for(vault(patients))
    account.reserve("first", "merf", PLAN, unit="group")
    moved = Account(account.path.rename(tmp_path / "moved.sqlite"))
    with pytest.raises(InputError, match="other groups"):
        account_of(vault(np.arange(200) // 2), moved)
    assert account_of(vault(patients), moved).path == moved.path
    with pytest.raises(InputError, match="other groups"):
        account_of(vault(np.arange(200) // 2), moved)


@pytest.mark.parametrize("order", ["first opens first", "second opens first"])
def test_of_two_runs_that_begin_together_with_other_groups_one_is_refused(order: str, tmp_path: Path) -> None:
    by_patient, by_study = vault(np.arange(200) // 4), vault(np.arange(200) // 2)
    account = account_for(by_patient)
    account_of(by_study, account)  # nobody has reserved yet, so both find nothing
    runs = [by_patient, by_study] if order == "first opens first" else [by_study, by_patient]
    taken = []
    for number, data in enumerate(runs):
        try:
            open_run(data, PLAN, {"method": "x"}, workspace=tmp_path / str(number), account=account).close()
            taken.append(data)
        except InputError as error:
            assert re.search("other groups.*stays spent", str(error))  # noqa: PT017
    assert taken == [by_study], "whose groups stand"
    open_run(by_study, PLAN, {"method": "x"}, workspace=tmp_path / "later", account=account).close()


def test_another_account_in_the_place_of_one_that_is_gone_begins_anew(tmp_path: Path) -> None:
    account = account_for(vault(np.arange(200) // 4))
    account.reserve("first", "merf", PLAN, unit="group")
    account.path.unlink()
    other = Account(tmp_path / "other.sqlite")
    assert account_of(vault(np.arange(200) // 2), other).path == other.path


def test_what_an_earlier_version_kept_counts() -> None:
    patients = np.arange(200) // 4
    account = account_for(vault(patients))
    account.reserve("first", "merf", PLAN, unit="group")
    with sources._index().writing() as database:
        pairs = np.frombuffer(database.execute("SELECT pairs FROM groupings").fetchone()[0], "<u8").reshape(-1, 2)
        database.execute("DELETE FROM groupings")
        sample = (str(account.path.resolve()), pairs[:120].tobytes())
        database.execute("INSERT INTO grouping VALUES (?, ?)", sample)
    with pytest.raises(InputError, match="other groups"):
        account_for(vault(np.arange(200)))
    account_for(vault(patients))
    with sources._index().reading() as database:
        assert len(database.execute("SELECT 1 FROM grouping").fetchall()) == 0
        (kept,) = database.execute("SELECT pairs FROM groupings").fetchone()
    assert len(kept) == 16 * 200
