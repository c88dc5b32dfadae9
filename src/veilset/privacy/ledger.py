"""The ledger of one run: append-only JSON lines with a hash chain, on disk before the data is read.

Every line carries the hash of the line before it, so that no line can be changed, removed or inserted unseen. A line is
written, flushed and fsynced, and taken over by the account where the ledger is bound to one, before the mechanism that
it pays for reads a row. A kill can therefore leave a line without its read (spent for nothing) or half a line (nothing
was read yet), but never a read without its line. Lines are published with the release, so they carry no clock: how long
a step took depends on the private rows.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from veilset.core.errors import BudgetError, InputError, VeilsetError, VerificationError
from veilset.core.files import fsync_directory
from veilset.privacy.events import Event

Line = dict[str, Any]
CHAIN_START = "0" * 64
TakeOver = Callable[[str, str], None]
"""Told the hash of a line and of the line before it; raises where the run is no longer this copy's."""
# An event is spent by this run, or carried over from the run whose release it builds upon, before anything is read.
_PAYS = ("spend", "carried")
_BEFORE_READS = ("open", "carried")


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
        if line.get("kind") not in {"open", *_PAYS, "lease"} or (line["kind"] == "open") != (sequence == 0):
            raise VerificationError(f"Ledger line {sequence} is of an unknown kind: {line.get('kind')!r}.")
        if line["kind"] in _PAYS:
            try:
                event = Event.from_json(line["body"]["event"])
            except (InputError, KeyError, TypeError) as error:
                raise VerificationError(f"Ledger line {sequence} holds no valid event: {error}") from error
            carried = line["kind"] == "carried"
            if (event.source is not None) != carried or (carried and lines[sequence - 1]["kind"] not in _BEFORE_READS):
                raise VerificationError(f"Ledger line {sequence}: an event of another run stands in a wrong place.")
            events.append(event)
        previous = line["hash"]
    return events


class Ledger:
    """An open ledger. One process at a time holds it; `create` starts one, `reopen` continues one after a stop."""

    def __init__(self, path: Path, handle: int, lines: list[Line]) -> None:
        self.path = path
        self._handle = handle
        self._lines = lines
        self._take_over: TakeOver | None = None
        self._is_sound = True

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> "Ledger":
        """Start a ledger whose first line says what the run is. There must be none yet."""
        ledger = cls.hold(path)
        if ledger.lines:
            ledger.close()
            raise InputError(f"A ledger exists already at {path}. Pass --resume to go on, or choose another place.")
        ledger.begin(header)
        return ledger

    @classmethod
    def reopen(cls, path: Path) -> "Ledger":
        """Continue a ledger. Half a last line is dropped: its data was never read."""
        if not path.exists():
            raise InputError(f"Cannot open the ledger {path}: there is none.")
        ledger = cls.hold(path)
        if not ledger.lines:
            ledger.close()
            raise VerificationError(f"{path} is not a ledger: it holds no lines.")
        return ledger

    @classmethod
    def hold(cls, path: Path) -> "Ledger":
        """The ledger at `path`, with or without lines yet, that no other process can open until it is closed.

        It is never removed but by who holds it: a process that waited for a removed file looks again.
        """
        while True:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise InputError(f"Cannot write the ledger {path}: {error.strerror}. No data was read.") from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(handle)
                raise InputError(
                    f"A run is alive there: another process is writing {path}. Wait for it, or choose another --out."
                ) from error
            if _is_still_there(path, handle):
                break
            os.close(handle)
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.ftruncate(handle, len(whole))
                os.fsync(handle)
            lines = _parse(whole, path) if whole else []
            check_chain(lines)
        except BaseException:
            os.close(handle)
            raise
        return cls(path, handle, lines)

    def start(self, header: Mapping[str, Any], carried: Sequence[Event], take_over: TakeOver) -> None:
        """Write what comes before any read, as far as it is not there yet: `header` and what earlier runs spent.

        From now on a line is valid only once `take_over` was told of it and agreed.
        """
        self._take_over = take_over
        if not self._lines:
            self.begin(header)
        self.carry(carried)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the first line, which says what the run is."""
        self._append("open", dict(header))
        fsync_directory(self.path.parent)

    def discard(self) -> None:
        """Let go of the file, and remove it, and its folder if that is empty, where it holds no line."""
        if not self._lines:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()
        self.close()

    def spend(self, event: Event) -> int:
        """Record that `event` is spent, durably, and return its line number."""
        return self._append("spend", {"event": event.to_json()})

    def carry(self, events: Sequence[Event]) -> None:
        """Record what earlier runs spent, before anything is read; of a reopened ledger only what is missing."""
        known = [Event.from_json(line["body"]["event"]) for line in self._lines if line["kind"] == "carried"]
        for event in events[len(known) :]:
            self._append("carried", {"event": event.to_json()})
        check_chain(self._lines)

    def lease(self, event: Event, steps: int, line: int) -> int:
        """Record that `steps` more steps of `event`, which `line` spent, are about to be taken."""
        return self._append("lease", {"label": event.label, "shard": event.shard, "steps": steps, "line": line})

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

    def _append(self, kind: str, body: dict[str, Any]) -> int:
        if not self._is_sound:
            raise BudgetError(f"The run in {self.path.parent} has stopped. Go on with --resume. No data was read.")
        line: Line = {
            "sequence": len(self._lines),
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
        if self._take_over is not None:
            # Until it agrees, nobody knows whether this line counts, so nothing may follow it in this process.
            self._is_sound = False
            self._take_over(line["previous"], line["hash"])
            self._is_sound = True
        # Only what JSON gives back counts, so that memory and disk can never disagree.
        self._lines.append(json.loads(data))
        return int(line["sequence"])


def _is_still_there(path: Path, handle: int) -> bool:
    """Whether the open file is the one that has the name: who held it before may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))  # noqa: PTH116 (beside fstat)
    except FileNotFoundError:
        return False


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
