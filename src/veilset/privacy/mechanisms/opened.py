"""What a session hands to its mechanisms: the units that they may read, and what they pay with."""

from dataclasses import dataclass

from veilset.core.progress import Progress
from veilset.privacy.noise import NoiseSource
from veilset.privacy.spending import Spending
from veilset.privacy.unit_rows import UnitRows, Units
from veilset.privacy.vault import PublicFacts


@dataclass(frozen=True, kw_only=True, repr=False)
class Opened:
    """A vault, or one shard of it, opened to be spent on. It stays inside the mechanisms."""

    facts: PublicFacts
    rows: UnitRows
    own_units: Units
    """Those that this process reads; all of them where it is alone."""
    rank: int  # of this process
    size: int  # how many processes there are
    spending: Spending
    noise: NoiseSource
    progress: Progress
