"""What is spent, as plain frozen data: events, and the plan that lists them before any data is read."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from veilset.core.errors import InputError
from veilset.privacy.budget import Budget

LEAST_NOISE, MOST_NOISE = 1e-9, 1e7
"""Less noise hides nothing; more says nothing. Beyond these, numbers of the accountants mean nothing, either."""
_LEAST_RATE = 1e-9
_MOST_COUNT = 10**9
_LONGEST = 200
_KEYS = ("label", "noise_multiplier", "sampling_rate", "count", "partition", "shard")
_SOURCE, _SOURCE_LETTERS = "source", 32
_BANDS, _MOST_BANDS = "bands", 1024
_OPTIONAL = {_SOURCE: None, _BANDS: 1}
"""Keys that are left out where they say nothing, and what they say then."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """`count` Gaussian releases of a sum over the vault, or over fresh Poisson samples of it.

    Privacy: unit as in the vault, relation add/remove-one. `noise_multiplier` is the standard deviation of the noise
    divided by the L2 sensitivity of the WHOLE released vector: rows that move together are one event with one
    multiplier. Events of one `partition` with different `shard` touch disjoint units and compose in parallel; they are
    of one partition only when they are of one `source`, too.

    With `bands` b above 1 the event is of count times b steps with correlated noise: a unit may take part in one of any
    b in a row, and the noise multiplier is that of all it adds to them (docs/explanation/engine.md). What it costs
    follows from the other numbers.

    An event with a `source` was spent by an earlier run, whose release enters this one; nothing is read for it again.
    """

    label: str
    noise_multiplier: float
    sampling_rate: float = 1.0
    count: int = 1
    partition: str | None = None
    shard: int | None = None
    source: str | None = None
    bands: int = 1

    def __post_init__(self) -> None:
        for name, text in (("label", self.label), ("partition", self.partition), (_SOURCE, self.source)):
            if text is not None and len(text) > _LONGEST:
                raise InputError(f"Expected a {name} of at most {_LONGEST} letters, got {len(text)}.")
        if not LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE:
            raise InputError(
                f"Expected noise_multiplier from {LEAST_NOISE:g} to {MOST_NOISE:g}, got {self.noise_multiplier} for "
                f"{self.label!r}."
            )
        if not _LEAST_RATE <= self.sampling_rate <= 1:
            raise InputError(
                f"Expected sampling_rate from {_LEAST_RATE:g} to 1, got {self.sampling_rate} for {self.label!r}."
            )
        if not 1 <= self.count <= _MOST_COUNT:
            raise InputError(f"Expected count from 1 to {_MOST_COUNT:g}, got {self.count} for {self.label!r}.")
        if not 1 <= self.bands <= _MOST_BANDS or self.steps > _MOST_COUNT:
            raise InputError(f"Expected bands from 1 to {_MOST_BANDS}, got {self.bands} for {self.label!r}.")
        if (self.partition is None) != (self.shard is None):
            raise InputError(f"Expected partition and shard together for {self.label!r}.")

    @property
    def steps(self) -> int:
        """How many sums may be released: `count`, or with correlated noise `bands` times as many."""
        return self.count * self.bands

    def to_json(self) -> dict[str, Any]:
        """The event as JSON-ready data; without `source` and `bands` where there are none."""
        return {name: value for name, value in asdict(self).items() if _OPTIONAL.get(name, ...) != value}

    @classmethod
    def from_json(cls, data: Any) -> "Event":
        """Read `to_json` back; unknown, missing or mistyped keys raise. Nothing is converted: 3.0 is not a count."""
        if not isinstance(data, Mapping) or set(data) - set(_OPTIONAL) != set(_KEYS):
            raise InputError(f"Not an event: {repr(data)[:_LONGEST]}. Expected exactly {', '.join(_KEYS)}.")
        texts = [data["label"], *(data.get(name) for name in ("partition", _SOURCE) if data.get(name) is not None)]
        wholes = [data["count"], data.get(_BANDS, 1), *([] if data["shard"] is None else [data["shard"]])]
        numbers = [data["noise_multiplier"], data["sampling_rate"]]
        if (
            any(type(value) is not str for value in texts)
            or any(type(value) is not int for value in wholes)
            or any(type(value) not in (int, float) for value in numbers)
            or any(name in data and data[name] == nothing for name, nothing in _OPTIONAL.items())
        ):
            raise InputError(f"Not an event: {repr(data)[:_LONGEST]}. A value is not of its type.")
        return cls(**data)


def sampling_rate_for(batch_size: int, units: int) -> float:
    """The rate at which a Poisson batch has `batch_size` units on average."""
    if not 1 <= batch_size <= units:
        raise InputError(f"Expected a batch of 1 to {units} units, got {batch_size}. The vault holds no more.")
    return batch_size / units


def source_of(certificate_sha256: str, earlier: str | None = None) -> str:
    """Whose an event is: of the release with this certificate, or of one that entered that release.

    The certificate's hash is part of it, so two releases that claim one source are still two.
    """
    if earlier is None:
        return certificate_sha256[:_SOURCE_LETTERS]
    return hashlib.sha256(f"{certificate_sha256}/{earlier}".encode()).hexdigest()[:_SOURCE_LETTERS]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The events a method will spend under a budget, drawn up without data.

    `facts` are public numbers that help a person judge the plan (noise per coordinate, expected batch, ...).
    """

    budget: Budget
    events: tuple[Event, ...]
    facts: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def own(self) -> tuple[Event, ...]:
        """The events that this run itself spends: all but those that a release brought along."""
        return tuple(event for event in self.events if event.source is None)
