"""One budget for several events: each gets a share, and together they cost what the budget allows."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from veilset.core.errors import InputError
from veilset.privacy.accounting import calibrate, epsilon_of, noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event


@functools.lru_cache(maxsize=64)
def noise_of_one_sum(budget: Budget) -> float:
    """The noise multiplier of a single full Gaussian sum that spends the whole budget.

    Full sums of noise s / sqrt(q), with shares q that add up to 1, cost together what one of noise s costs.
    """
    return noise_of(Event(label="once", noise_multiplier=1.0), budget)


def budget_of_share(budget: Budget, share: float) -> Budget:
    """The budget of full sums that cost a share of this one, beside others that cost the rest."""
    if not 0 < share <= 1:
        raise InputError(f"Expected a share above 0 and at most 1, got {share}.")
    once = Event(label="once", noise_multiplier=noise_of_one_sum(budget) / math.sqrt(share))
    return Budget(epsilon_of([once], budget.delta), budget.delta)


@dataclass(frozen=True, kw_only=True)
class Part:
    """An event as a function of its noise multiplier, and its share of the privacy."""

    event: Callable[[float], Event]
    share: float


def share_budget(budget: Budget, parts: Sequence[Part]) -> list[Event]:
    """The events of all parts: with s_i the noise that would spend the budget alone, f s_i / sqrt(share_i).

    For Gaussian sums over the whole vault f is 1; sampling makes it differ a little, and it is calibrated.
    """
    total = sum(part.share for part in parts)
    if not parts or min(part.share for part in parts) <= 0 or abs(total - 1) > 1e-9:
        raise InputError(f"Expected shares above 0 that add up to 1, got {[part.share for part in parts]}.")
    alone = [calibrate(budget, lambda noise, part=part: [part.event(noise)]) for part in parts]  # type: ignore[misc]
    if len(parts) == 1:
        return [parts[0].event(alone[0])]

    def together(factor: float) -> list[Event]:
        return [part.event(factor * noise / math.sqrt(part.share)) for part, noise in zip(parts, alone, strict=True)]

    return together(calibrate(budget, together))
