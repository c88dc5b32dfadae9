"""The ledger of one run: append-only JSON lines with a hash chain, on disk before the data is read.

Every line carries the hash of the line before it, so that no line can be changed, removed or inserted unseen. A line is
written, flushed and fsynced before the mechanism that it pays for reads a row. A kill can therefore leave a line
without its read (spent for nothing) or half a line (nothing was read yet), but never a read without its line.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError, VeilsetError, VerificationError
from veilset.core.files import fsync_directory
from veilset.privacy.events import Event

Line = dict[str, Any]
CHAIN_START = "0" * 64


def hash_of_line(line: Mapping[str, Any]) -> str:
    """The hash of a line: of everything in it but the hash itself."""
    content = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_chain(lines: Sequence[Mapping[str, Any]]) -> list[Event]:
    """The events that a ledger spent; a broken chain or a line of unknown form raises `VerificationError`."""
    previous = CHAIN_START
    events = []
    for sequence, line in enumerate(lines):
        if (
            line.get("sequence") != sequence
            or line.get("previous") != previous
            or line.get("hash") != hash_of_line(line)
        ):
            raise VerificationError(f"Ledger line {sequence} does not follow from the one before it: it was altered.")
        if line.get("kind") not in {"open", "spend", "lease"} or (line["kind"] == "open") != (sequence == 0):
            raise VerificationError(f"Ledger line {sequence} is of an unknown kind: {line.get('kind')!r}.")
        if line["kind"] == "spend":
            try:
                events.append(Event.from_json(line["body"]["event"]))
            except (InputError, KeyError, TypeError) as error:
                raise VerificationError(f"Ledger line {sequence} holds no valid event: {error}") from error
        previous = line["hash"]
    return events


class Ledger:
    """An open ledger. One process at a time holds it; `create` starts one, `reopen` continues one after a stop."""

    def __init__(self, path: Path, handle: int, lines: list[Line]) -> None:
        self.path = path
        self._handle = handle
        self._lines = lines

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> "Ledger":
        """Start a ledger whose first line says what the run is. The file must not exist."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            raise InputError(
                f"A ledger exists already at {path}. Pass --resume to go on, or choose another place."
            ) from None
        except OSError as error:
            raise InputError(f"Cannot write the ledger {path}: {error.strerror}. No data was read.") from error
        ledger = cls(path, handle, [])
        ledger._lock()
        ledger._append("open", dict(header))
        fsync_directory(path.parent)
        return ledger

    @classmethod
    def reopen(cls, path: Path) -> "Ledger":
        """Continue a ledger. Half a last line is dropped: its data was never read."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise InputError(f"Cannot open the ledger {path}: {error.strerror}.") from error
        ledger = cls(path, handle, [])
        ledger._lock()
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(handle, len(whole))
            os.fsync(handle)
        ledger._lines = _parse(whole, path)
        check_chain(ledger._lines)
        return ledger

    def spend(self, event: Event) -> int:
        """Record that `event` is spent, durably, and return its line number."""
        return self._append("spend", {"event": event.to_json()})

    def lease(self, event: Event, steps: int) -> int:
        """Record that `steps` more steps of the spent `event` are about to be taken."""
        return self._append("lease", {"label": event.label, "shard": event.shard, "steps": steps})

    @property
    def header(self) -> Mapping[str, Any]:
        """What the first line says of the run."""
        header: Mapping[str, Any] = self._lines[0]["body"]
        return header

    @property
    def lines(self) -> list[Line]:
        """All lines, for the certificate."""
        return list(self._lines)

    @property
    def events(self) -> list[Event]:
        """What was spent so far."""
        return check_chain(self._lines)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"Another process is writing {self.path}. Wait for it or choose another --out.") from error

    def _append(self, kind: str, body: dict[str, Any]) -> int:
        line: Line = {
            "sequence": len(self._lines),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": kind,
            "body": body,
            "previous": self._lines[-1]["hash"] if self._lines else CHAIN_START,
        }
        line["hash"] = hash_of_line(line)
        data = json.dumps(line, sort_keys=True).encode() + b"\n"
        end = os.fstat(self._handle).st_size
        try:
            if os.write(self._handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, end)
            raise VeilsetError(f"Cannot write the ledger {self.path}: {error.strerror}. No data was read.") from error
        # Only what JSON gives back counts, so that memory and disk can never disagree.
        self._lines.append(json.loads(data))
        return int(line["sequence"])


def _parse(content: bytes, path: Path) -> list[Line]:
    try:
        lines = [json.loads(line) for line in content.splitlines()]
    except ValueError as error:
        raise VerificationError(f"{path} is not a ledger: {error}.") from error
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise VerificationError(f"{path} is not a ledger: it holds no lines.")
    return lines


def read_ledger(path: Path) -> list[Line]:
    """The lines of a ledger on disk, without opening it for writing; half a last line is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read the ledger {path}: {error.strerror}.") from error
    return _parse(content[: content.rfind(b"\n") + 1], path)
