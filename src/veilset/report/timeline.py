"""The ledger of a release as steps in their order, with what each adds to the price."""

from dataclasses import dataclass

from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.ledger import check_chain
from veilset.release.certificate import Certificate

# Pricing a prefix of the ledger can take a second; past this many distinct costs only the total is told.
_MOST_PRICED = 8


@dataclass(frozen=True, kw_only=True)
class Step:
    """One entry of the timeline: equal events of several shards are one entry."""

    label: str
    shards: int
    count: int
    noise_multiplier: float
    sampling_rate: float
    spent: float | None
    """Epsilon of this and all earlier entries at the certificate's delta."""


def timeline(certificate: Certificate) -> list[Step]:
    """The ledger as steps in their order. Without a guarantee no step has a price."""
    merged: dict[tuple[object, ...], list[Event]] = {}
    for number, event in enumerate(check_chain(certificate.ledger)):
        # Shards differ in nothing but their number; everything else stays an entry of its own.
        alike = (event.label, event.partition, event.noise_multiplier, event.sampling_rate, event.count, event.bands)
        merged.setdefault(alike if event.partition else (number,), []).append(event)
    priced = certificate.guarantee == "dp" and certificate.delta is not None and len(merged) <= _MOST_PRICED
    steps = []
    sofar: list[Event] = []
    for entries in merged.values():
        event = entries[0]
        sofar += entries
        steps.append(
            Step(
                label=event.label,
                shards=len(entries) if event.partition else 0,
                count=event.steps,
                noise_multiplier=event.noise_multiplier,
                sampling_rate=event.sampling_rate / event.bands,  # of all units; a step asks one group of them
                spent=epsilon_of(sofar, certificate.delta) if priced and certificate.delta is not None else None,
            )
        )
    return steps
