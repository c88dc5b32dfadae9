"""A sign of life while a command is silent: a turning mark on a terminal, a line every half minute elsewhere.

It tells how long the command has been running and what it said last, and nothing about data.
"""

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_SIGN = 1.0  # seconds of silence before the mark turns
BETWEEN_LINES = 30.0
_TURN = 0.1
_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"


class Pulse:
    """One for a process. Everything that writes calls `heard`; everything that draws or asks pauses it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._last = self._started = time.perf_counter()
        self._label = "working"
        self._drawn = False
        self._paused = 0

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Give signs until the block ends."""
        ended = threading.Event()
        self._last = self._started = time.perf_counter()
        self._label = "working"
        thread = threading.Thread(target=self._beat, args=(ended,), daemon=True, name="pulse")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.heard()

    def heard(self, label: str | None = None) -> None:
        """Something is about to be written: take the mark away, and be silent for a while."""
        with self._lock:
            if self._drawn:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
                self._drawn = False
            self._last = time.perf_counter()
            self._label = label or self._label

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No sign while a bar is drawn or a person is asked."""
        with self._lock:
            self.heard()
            self._paused += 1
        try:
            yield
        finally:
            with self._lock:
                self._paused -= 1
                self._last = time.perf_counter()

    def _beat(self, ended: threading.Event) -> None:
        is_terminal = sys.stderr.isatty()
        frames = itertools.cycle(_FRAMES)
        while not ended.wait(_TURN if is_terminal else 1.0):
            with self._lock:
                now = time.perf_counter()
                silent, seconds = now - self._last, now - self._started
                if self._paused or silent < (FIRST_SIGN if is_terminal else BETWEEN_LINES):
                    continue
                if is_terminal:
                    sys.stderr.write(f"{_CLEAR}{next(frames)} {self._label}, {seconds:.0f} s")
                    self._drawn = True
                else:
                    sys.stderr.write(f"{self._label}: {seconds:.0f} s so far\n")
                    self._last = now
                sys.stderr.flush()


PULSE = Pulse()
