"""What a guarantee means for one person: how often the best possible attacker is right about them.

The card, the label and the report all say it, and all take it from here.
"""

import math
from dataclasses import dataclass

from veilset.privacy.accounting import delta_of
from veilset.privacy.events import Event
from veilset.privacy.ledger import check_chain
from veilset.release.certificate import Certificate


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """The attacker's best accuracy from even odds: by this ledger, and by epsilon and delta alone."""

    epsilon: float
    delta: float
    best_guess: float
    from_epsilon: float

    @property
    def right_of_100(self) -> int:
        """Of 100 guesses, how many are right at most; rounded up."""
        return min(100, math.ceil(100 * self.best_guess - 1e-9))


def meaning_of(certificate: Certificate) -> Meaning | None:
    """The meaning of a release's guarantee; None where there is none."""
    if certificate.guarantee != "dp" or certificate.epsilon is None or certificate.delta is None:
        return None
    events = check_chain(certificate.ledger)
    from_epsilon = guess_from_epsilon(certificate.epsilon, certificate.delta)
    return Meaning(
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        best_guess=min(guess_from_events(events), from_epsilon),
        from_epsilon=from_epsilon,
    )


def guess_from_events(events: list[Event]) -> float:
    """How often the best test between "in the data" and "not in it" is right, when both are equally likely before.

    The attacker sees the release and picks the likelier of two distributions P and Q. He is right with probability
    (1 + TV(P, Q)) / 2, and no rule does better (Neyman and Pearson). TV is the hockey-stick divergence at epsilon 0,
    which the privacy loss distribution of the ledger's events bounds: tighter than any single (epsilon, delta).
    """
    return (1 + delta_of(events, 0.0)) / 2


def guess_from_epsilon(epsilon: float, delta: float) -> float:
    """The same from (epsilon, delta) alone: (e^eps + delta) / (1 + e^eps).

    The error rates a, b of a test obey e^eps a + b >= 1 - delta and a + e^eps b >= 1 - delta (Kairouz, Oh, Viswanath
    2015, Theorem 2.1); adding both, a + b >= 2 (1 - delta) / (1 + e^eps), and the share of right guesses is
    1 - (a + b) / 2.
    """
    return 1 - (1 - delta) / (1 + math.exp(epsilon)) if epsilon < 700 else 1.0
