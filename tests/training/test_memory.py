"""Loops that give memory back."""

from veilset.training import memory


def test_items_come_through_and_memory_is_given_back_now_and_then(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(1))
    assert list(memory.giving_back(range(33))) == list(range(33))
    assert len(calls) == 2


def test_another_c_library_is_no_error(monkeypatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    memory.give_back()
