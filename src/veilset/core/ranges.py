"""Ranges of public settings: a number far outside would vanish, overflow or never end where it is used."""

from veilset.core.errors import InputError

RATES = (1e-12, 1e6)  # of learning


def require_range(name: str, value: float, least: float, most: float) -> None:
    """Refuse what is outside of `least` to `most`, and what is not a number."""
    if not least <= value <= most:
        raise InputError(f"Expected {name} from {least:g} to {most:g}, got {value}.")
