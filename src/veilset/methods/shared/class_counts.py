"""How many units each class has, read off a noisy sum (dfd, dpgan, imgsyn, latent, merf, pate). Post-processing."""

from torch import Tensor

from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.counts import Counts
from veilset.teachers.planning import hidden_below

_LEAST = 0.1  # of what even classes would have


def sensible_counts(noisy: Tensor, units: int, *, findings: bool = False) -> Tensor:
    """Noisy counts (classes,), none of them next to nothing, that add up to the public number of units.

    Findings may come together, so theirs need not add up to anything; none is above the number of units.
    """
    if findings:
        return noisy.clamp(_LEAST * units / len(noisy), units)
    counts = noisy.clamp(min=_LEAST * units / len(noisy))
    return counts * (units / counts.sum())


def drowned_classes(noisy: Tensor, deviation: float, facts: PublicFacts, budget: Budget) -> tuple[str, ...]:
    """A warning for each class or finding of fewer units than noise hides, by noisy counts and their deviation.

    Of findings the counts are those of the two kinds of each (shared/findings.py), weighted as the rows are; what they
    say is brought to the public number of units.
    """
    if facts.findings:
        has, lacks = noisy.chunk(2)
        per_weight = facts.units / float((has + lacks).mean().clamp(min=1.0))
        noisy, deviation = per_weight * has, per_weight * deviation
    counts = Counts(noisy=noisy, deviation=deviation, units=facts.units, findings=facts.findings)
    return tuple(counts.drowned(facts.class_names, hidden_below(budget)))
