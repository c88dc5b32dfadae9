import json
import os
from pathlib import Path

import pytest

from veilset.core.errors import InputError, VeilsetError, VerificationError
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger, check_chain, read_ledger

EVENTS = [Event(label=f"sum {i}", noise_multiplier=1.0 + i) for i in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    for event in EVENTS:
        ledger.spend(event)
    ledger.close()
    return ledger.path


def test_what_is_written_is_read_back(path: Path) -> None:
    lines = read_ledger(path)
    assert lines[0]["body"] == {"run": "x"}
    assert check_chain(lines) == EVENTS


def test_reopening_goes_on_with_the_chain(path: Path) -> None:
    ledger = Ledger.reopen(path)
    ledger.lease(EVENTS[0], 50, 1)
    ledger.spend(EVENTS[0])
    assert check_chain(read_ledger(path)) == [*EVENTS, EVENTS[0]]


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "insert", "rehash"])
def test_every_change_is_found(path: Path, change: str) -> None:
    lines = read_ledger(path)
    if change == "edit":
        lines[2]["body"]["event"]["noise_multiplier"] = 100.0
    elif change == "remove":
        del lines[2]
    elif change == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif change == "insert":
        lines.insert(2, dict(lines[1]))
    else:
        lines[1]["hash"] = "0" * 64
    with pytest.raises(VerificationError):
        check_chain(lines)


def test_half_a_last_line_is_dropped(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"sequence": 4, "kind": "spe')
    assert check_chain(read_ledger(path)) == EVENTS
    ledger = Ledger.reopen(path)
    ledger.spend(EVENTS[0])
    assert len(ledger.events) == 4
    assert check_chain(read_ledger(path)) == ledger.events


def test_one_process_at_a_time(path: Path) -> None:
    held = Ledger.reopen(path)
    with pytest.raises(InputError, match="A run is alive there"):
        Ledger.reopen(path)
    held.close()
    Ledger.reopen(path).close()


def test_a_ledger_is_never_overwritten(path: Path) -> None:
    with pytest.raises(InputError, match="--resume"):
        Ledger.create(path, {})


def test_a_full_disk_stops_before_the_read_and_leaves_a_whole_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.reopen(path)
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real_write(handle, data[:10]))
    with pytest.raises(VeilsetError, match="No data was read"):
        ledger.spend(EVENTS[0])
    monkeypatch.undo()
    assert check_chain(read_ledger(path)) == EVENTS
    ledger.spend(EVENTS[1])
    assert check_chain(read_ledger(path)) == [*EVENTS, EVENTS[1]]


def test_the_line_is_on_disk_when_spend_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    real_fsync = os.fsync

    def fsync(handle: int) -> None:
        real_fsync(handle)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger.reopen(path)
    ledger.spend(EVENTS[0])
    assert json.loads(synced[-1].splitlines()[-1])["body"]["event"]["label"] == "sum 0"


@pytest.mark.parametrize("content", [b"", b"not json\n", b"[1]\n"])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "x"
    place.write_bytes(content)
    with pytest.raises(VerificationError):
        read_ledger(place)


CARRIED = [Event(label=f"their sum {i}", noise_multiplier=2.0, source="another run") for i in range(3)]


def test_what_is_carried_stands_before_anything_that_is_read(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    ledger.carry(CARRIED)
    ledger.spend(EVENTS[0])
    assert ledger.events == [*CARRIED, EVENTS[0]]
    with pytest.raises(VerificationError, match="wrong place"):
        ledger.carry([*CARRIED, CARRIED[0]])


def test_a_run_that_was_cut_off_while_it_carried_goes_on(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    ledger.carry(CARRIED[:1])
    ledger.close()
    again = Ledger.reopen(ledger.path)
    again.carry(CARRIED)
    again.carry(CARRIED)
    assert again.events == CARRIED


@pytest.mark.parametrize("event", [EVENTS[0], CARRIED[0]])
def test_an_event_of_the_wrong_kind_of_line_is_found(tmp_path: Path, event: Event) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "x"})
    with pytest.raises(VerificationError, match="wrong place"):
        ledger.spend(event) and check_chain(ledger.lines) if event.source else ledger.carry([event])
