"""How well scores tell members from nonmembers, each number with a 95 % interval that holds for small n.

AUC: DeLong et al. (1988) on the logit scale. Where its variance is 0 (perfect or constant scores), members and
nonmembers are put into independent pairs, whose Clopper-Pearson interval holds at every n. Accuracy: Clopper-Pearson,
at a threshold that was fixed on other records. True positive rate at a false positive rate (Carlini et al.,
"Membership Inference Attacks From First Principles", S&P 2022): the threshold is itself measured, on nonmembers, so
half of the error is given to it (an order statistic) and half to the share of members beyond it (Clopper-Pearson).

Higher scores mean "member". Equal scores count half for the AUC and are put in a random order for rates.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.evaluate.metrics import Z95, Measurement

Scores = NDArray[np.float64]  # (N,), higher is "member"
Membership = NDArray[np.bool_]  # (N,)

FALSE_POSITIVE_RATES = (0.001, 0.01)
_ERROR = 0.05


def clopper_pearson(hits: int, n: int, error: float = _ERROR) -> tuple[float, float]:
    """The exact interval for a share of `hits` among `n`, wrong at most `error` of the time."""
    low = float(stats.beta.ppf(error / 2, hits, n - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - error / 2, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def area_under_curve(scores: Scores, is_member: Membership) -> Measurement:
    """The chance that a member scores above a nonmember, .5 for guesses."""
    members, others = _sides(scores, is_member)
    together = stats.rankdata(np.concatenate([members, others]))
    below = (together[: len(members)] - stats.rankdata(members)) / len(others)  # share of nonmembers under each member
    above = 1 - (together[len(members) :] - stats.rankdata(others)) / len(members)
    value = float(below.mean())
    variance = float(below.var(ddof=1) / len(members) + above.var(ddof=1) / len(others))
    if variance > 0 and 0 < value < 1:
        centre = math.log(value / (1 - value))
        reach = Z95 * math.sqrt(variance) / (value * (1 - value))
        interval = (_logistic(centre - reach), _logistic(centre + reach))
    else:
        pairs = min(len(members), len(others))
        interval = clopper_pearson(round(value * pairs), pairs)
    return Measurement(value=value, interval=interval, n=len(scores))


def accuracy_at(scores: Scores, is_member: Membership, threshold: float) -> Measurement:
    """The share of right answers when scores above `threshold` are called members."""
    _sides(scores, is_member)
    hits = int(((scores > threshold) == is_member).sum())
    return Measurement(value=hits / len(scores), interval=clopper_pearson(hits, len(scores)), n=len(scores))


def best_threshold(scores: Scores, is_member: Membership) -> float:
    """The threshold with the best balanced accuracy on records whose membership the attacker knows."""
    members, others = (np.sort(side) for side in _sides(scores, is_member))
    places = np.unique(scores)
    places = np.concatenate([places[:1] - 1, (places[1:] + places[:-1]) / 2, places[-1:]])
    found = 1 - np.searchsorted(members, places, side="right") / len(members)
    alarms = 1 - np.searchsorted(others, places, side="right") / len(others)
    return float(places[np.argmax(found - alarms)])


def true_positive_rate(scores: Scores, is_member: Membership, false_positive_rate: float) -> Measurement:
    """The share of members found by the threshold that at most this share of nonmembers exceeds."""
    members, others = _sides(_untied(scores), is_member)
    others = np.sort(others)[::-1]
    count = len(others)
    allowed = math.floor(false_positive_rate * count + 1e-9)
    hits = int((members > others[allowed]).sum()) if allowed < count else len(members)
    # Of the j-th largest nonmember score, the true share of nonmembers above it is Beta(j, count - j + 1).
    alarms = stats.binom(count, false_positive_rate)
    strict = int(alarms.ppf(_ERROR / 4))  # the largest j with P(alarms < j) <= error / 4; 0 where there is none
    loose = int(alarms.ppf(1 - _ERROR / 4)) + 1  # the smallest j with P(alarms >= j) <= error / 4
    surely = int((members > others[strict - 1]).sum()) if strict else 0
    perhaps = int((members >= others[loose - 1]).sum()) if loose <= count else len(members)
    low = clopper_pearson(surely, len(members), _ERROR / 2)[0] if strict else 0.0
    high = clopper_pearson(perhaps, len(members), _ERROR / 2)[1]
    return Measurement(value=hits / len(members), interval=(low, high), n=len(members))


def too_few_for(false_positive_rate: float, nonmembers: int) -> str | None:
    """What to tell a reader when so few nonmembers cannot show such a rate; None where they can."""
    percent, needed = f"{100 * false_positive_rate:g} %", math.ceil(1 / false_positive_rate)
    if nonmembers < needed:
        return (
            f"{nonmembers} nonmembers are too few for a false positive rate of {percent}, which needs {needed}; "
            "shown is the rate at no false positive."
        )
    needed = math.ceil(math.log(_ERROR / 4) / math.log1p(-false_positive_rate))
    if nonmembers < needed:
        return (
            f"{nonmembers} nonmembers give a value at a false positive rate of {percent} but no lower bound, "
            f"which needs {needed}."
        )
    return None


def _untied(scores: Scores) -> Scores:
    """The scores' ranks, equal ones in an order drawn by a fixed seed: a randomised attacker."""
    coins = numpy_generator(0, "ties").permutation(len(scores))
    ranks = np.empty(len(scores))
    ranks[np.lexsort((coins, scores))] = np.arange(len(scores))
    return ranks


def _sides(scores: Scores, is_member: Membership) -> tuple[Scores, Scores]:
    if scores.shape != is_member.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise InputError(f"Expected one finite score for each of {len(is_member)} records, got {scores.shape}.")
    members, others = scores[is_member], scores[~is_member]
    if min(len(members), len(others)) < 2:
        raise InputError(f"Expected at least 2 members and 2 nonmembers, got {len(members)} and {len(others)}.")
    return members, others


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
