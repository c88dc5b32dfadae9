"""A small SQLite file that is ours: foreign files are not touched, a busy or read-only one is named in one line.

What kind of file it is stands in SQLite's own header (application id and version), and is read from the raw bytes:
opening a foreign database, even to look at it, may already leave files beside it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from veilset.core.errors import InputError, VeilsetError

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_BUSY = ("locked", "busy")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a file is for, the number that marks it, its version, its tables, and what to do about another one."""

    name: str
    application: int
    version: int
    schema: tuple[str, ...]
    advice: str


class StateFile:
    """One file of a kind. It is made at the first call that writes."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self._kind = path, kind
        self._is_new = self._check()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to look at what is there; a read-only file can be shown."""
        with self._plain_errors(), closing(self._kept() or self._empty()) as database:
            yield database

    @contextmanager
    def writing(self, patience: float = 5) -> Iterator[sqlite3.Connection]:
        """One transaction that no other process can interleave with; what raises inside changes nothing.

        Args:
            patience: seconds to wait for another process.
        """
        if self._is_new:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # it tells about private data
            except OSError as error:
                raise self._unusable(str(error.strerror)) from error
        database = self._connect("rw", patience)
        try:
            with self._plain_errors():
                database.execute("PRAGMA synchronous=EXTRA")
                database.execute("BEGIN IMMEDIATE")
                try:
                    if _version_in(database) == 0:
                        self._prepare(database)
                    yield database
                except BaseException:
                    database.execute("ROLLBACK")
                    raise
                database.execute("COMMIT")
                self._is_new = False
        finally:
            database.close()

    def _check(self) -> bool:
        """Whether the file is still to be made; one of another kind raises."""
        try:
            with self.path.open("rb") as file:
                header = file.read(_HEADER)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise self._unusable(str(error.strerror)) from error
        if not header:
            return True
        application, version = (int.from_bytes(header[place : place + 4], "big") for place in (68, 60))
        if not header.startswith(_MAGIC):
            raise self._unusable("it is no database")
        if application != self._kind.application:
            raise self._unusable("it is the database of another program, or of an earlier version of this one")
        if version != self._kind.version:
            raise self._unusable(f"it has version {version}, and this program reads version {self._kind.version}")
        return False

    def _connect(self, mode: str, patience: float) -> sqlite3.Connection:
        with self._plain_errors():
            place = f"{self.path.resolve().as_uri()}?mode={mode}"
            return sqlite3.connect(place, uri=True, timeout=patience, isolation_level=None)

    def _kept(self) -> sqlite3.Connection | None:
        """The file's content, or None where it has none.

        Where the file can be written to, SQLite first takes back what a killed process left half written. Nothing may
        be left then, though the file's raw bytes said that it is one of ours.
        """
        if self._is_new and self._check():
            return None
        database = self._connect("rw" if os.access(self.path, os.W_OK) else "ro", patience=5)
        if _version_in(database) != 0:
            return database
        database.close()
        return None

    def _empty(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None)
        self._prepare(database)
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        for statement in self._kind.schema:
            database.execute(statement)
        database.execute(f"PRAGMA application_id={self._kind.application}")
        database.execute(f"PRAGMA user_version={self._kind.version}")

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if any(word in str(error) for word in _BUSY):
                raise VeilsetError(
                    f"The {self._kind.name} {self.path} is in use by another process. Try again in a moment; no data "
                    "was read."
                ) from error
            raise self._unusable(str(error)) from error

    def _unusable(self, why: str) -> InputError:
        return InputError(f"Cannot use {self.path} as an {self._kind.name}: {why}. {self._kind.advice}")


def _version_in(database: sqlite3.Connection) -> int:
    """As `_prepare` wrote it; 0 where it never came so far."""
    return int(database.execute("PRAGMA user_version").fetchone()[0])
