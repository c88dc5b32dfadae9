"""How much may be spent: (epsilon, delta), checked once, at construction."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.privacy.events import Event

LEAST_DELTA = 1e-12
LEAST_UNITS = 10


@dataclass(frozen=True)
class Budget:
    """The (epsilon, delta) that may be spent.

    `carried` was spent already, by the runs whose releases enter this one. It counts: whoever fits noise to this budget
    gets what is left beside it (`accounting.calibrate`).

    >>> import veilset as vs
    >>> vs.Budget(epsilon=1.0, delta=1e-5).epsilon
    1.0
    >>> vs.Budget(epsilon=-1.0, delta=1e-5)
    Traceback (most recent call last):
    veilset.core.errors.InputError: Expected epsilon > 0, got -1.0. Common choices: 1 (strong) to 10 (weak).
    """

    epsilon: float
    delta: float
    carried: "tuple[Event, ...]" = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InputError(f"Expected epsilon > 0, got {self.epsilon}. Common choices: 1 (strong) to 10 (weak).")
        if not 0 < self.delta < 1:
            raise InputError(f"Expected 0 < delta < 1, got {self.delta}. Leave --delta out for a safe default.")
        if self.delta < LEAST_DELTA:
            raise InputError(
                f"Expected delta of at least {LEAST_DELTA:g}, got {self.delta:g}: below it the accountant's numbers "
                "are not exact. Leave --delta out for a safe default."
            )

    @classmethod
    def for_units(cls, epsilon: float, delta: float | None, units: int, unit: str) -> "Budget":
        """The budget of a run on so many units, with the default delta where none is named."""
        budget = cls(epsilon, default_delta(max(units, LEAST_UNITS)) if delta is None else delta)
        budget.require_fit(units, unit)
        return budget

    def require_fit(self, units: int, unit: str) -> None:
        """Refuse data so small that any noise that protects one unit drowns all, and a delta too large for it."""
        if units < LEAST_UNITS:
            raise InputError(
                f"Expected at least {LEAST_UNITS} {unit}s, got {units}: noise that hides one of so few hides all. "
                "Nothing was charged."
            )
        self.check_against(units)

    def check_against(self, units: int) -> None:
        """Refuse a delta so large that it would allow publishing some records outright."""
        if self.delta * units >= 1:
            raise InputError(
                f"Expected delta={self.delta:g} < 1/{units} records. Pass --delta {default_delta(units):g}."
            )


def default_delta(units: int) -> float:
    """The largest power of ten below 1/(10 units)."""
    if units < 1:
        raise InputError(f"Expected at least 1 record, got {units}.")
    # Through integers: 10 units < 10^k exactly, with no rounding of a logarithm.
    return float(f"1e-{len(str(10 * units))}")
