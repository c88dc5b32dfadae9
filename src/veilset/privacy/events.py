"""What is spent, as plain frozen data: events, and the plan that lists them before any data is read."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from veilset.core.errors import InputError
from veilset.privacy.budget import Budget


@dataclass(frozen=True, kw_only=True)
class Event:
    """`count` Gaussian releases of a sum over the vault, or over fresh Poisson samples of it.

    Privacy: unit as in the vault, relation add/remove-one. `noise_multiplier` is the standard deviation of the noise
    divided by the L2 sensitivity of the WHOLE released vector: rows that move together are one event with one
    multiplier. Events of one `partition` with different `shard` touch disjoint units and compose in parallel.
    """

    label: str
    noise_multiplier: float
    sampling_rate: float = 1.0
    count: int = 1
    partition: str | None = None
    shard: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise InputError(f"Expected noise_multiplier > 0, got {self.noise_multiplier} for {self.label!r}.")
        if not 0 < self.sampling_rate <= 1:
            raise InputError(f"Expected 0 < sampling_rate <= 1, got {self.sampling_rate} for {self.label!r}.")
        if self.count < 1:
            raise InputError(f"Expected count >= 1, got {self.count} for {self.label!r}.")
        if (self.partition is None) != (self.shard is None):
            raise InputError(f"Expected partition and shard together for {self.label!r}.")

    def to_json(self) -> dict[str, Any]:
        """The event as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Event":
        """Read `to_json` back; unknown, missing or mistyped keys raise."""
        try:
            return cls(
                label=str(data["label"]),
                noise_multiplier=float(data["noise_multiplier"]),
                sampling_rate=float(data["sampling_rate"]),
                count=int(data["count"]),
                partition=None if data["partition"] is None else str(data["partition"]),
                shard=None if data["shard"] is None else int(data["shard"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Not an event: {data!r} ({error}).") from error


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The events a method will spend under a budget, drawn up without data.

    `facts` are public numbers that help a person judge the plan (noise per coordinate, expected batch, ...).
    """

    budget: Budget
    events: tuple[Event, ...]
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
