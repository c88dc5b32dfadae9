"""Loops that give memory back."""

from types import SimpleNamespace

import pytest

from veilset.training import memory


def test_items_come_through_and_memory_is_given_back_now_and_then(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(1))
    assert list(memory.giving_back(range(33))) == list(range(33))
    assert len(calls) == 2


def test_another_c_library_is_no_error(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    memory.give_back()


def test_trainings_within_each_other_keep_memory_until_the_last_ends(monkeypatch) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda name, value: calls.append((name, value)), malloc_trim=lambda _: None)
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    maps = memory._MMAP_MAX
    with memory.keeping_freed():
        assert (maps, 0) in calls
        with memory.keeping_freed():
            pass
        assert (maps, 65536) not in calls
    assert (maps, 65536) in calls


def test_a_training_that_fails_gives_memory_back(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with pytest.raises(ValueError, match="x"), memory.keeping_freed():
        raise ValueError("x")
    assert memory._Keeping.count == 0
