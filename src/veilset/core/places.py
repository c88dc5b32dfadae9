"""Where Veilset keeps what must outlive a run when the user names no place: accounts and unfinished runs."""

import os
from pathlib import Path


def state_directory() -> Path:
    """`$VEILSET_STATE`, or a folder for state in the user's home."""
    chosen = os.environ.get("VEILSET_STATE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "veilset"
