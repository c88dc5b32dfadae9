"""What votes cost on the data at hand: against the mechanism itself, and where nothing may be gained."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from veilset.core.errors import InputError
from veilset.evaluate.utility.vote_costs import _ORDERS, log_other_class, renyi_cost, vote_epsilons


def exact_renyi(gap: float, deviation: float, order: float) -> float:
    """Of the noisy maximum of two counts, from this dataset to a neighbour: a coin of known odds.

    The theorem speaks of this direction alone, from the dataset whose votes were counted.
    """
    costs = []
    for moved in (gap - 2, gap + 2):
        (p, other), (q, far) = (norm.logcdf([g, -g], scale=deviation * np.sqrt(2)) for g in (gap, moved))
        total = np.logaddexp(order * p + (1 - order) * q, order * other + (1 - order) * far)
        costs.append(total / (order - 1))
    return float(max(costs))


@pytest.mark.parametrize("gap", [20, 100, 180, 250])
@pytest.mark.parametrize("deviation", [20.0, 40.0])
def test_the_bound_is_above_what_two_classes_cost_exactly(gap: int, deviation: float) -> None:
    counts = np.array([[250, 250 - gap]])
    cost = renyi_cost(float(log_other_class(counts, deviation)[0]), deviation)
    for place in (5, 40, 90, 110):
        assert exact_renyi(gap, deviation, float(_ORDERS[place])) <= cost[place] + 1e-13


def test_agreement_is_cheap_and_a_tie_is_not() -> None:
    agreed, tied = np.array([[250, 0, 0]] * 100), np.array([[84, 83, 83]] * 100)
    independent, dependent = vote_epsilons(agreed, 25.0, 1e-5)
    assert dependent < 0.2 * independent
    independent, dependent = vote_epsilons(tied, 25.0, 1e-5)
    assert dependent == pytest.approx(independent)


def test_the_chance_of_another_class_is_bounded() -> None:
    counts, deviation = np.array([[30, 20, 10]]), 8.0

    def loses(noise: float) -> float:
        others = norm.cdf((30 + noise - 20) / deviation) * norm.cdf((30 + noise - 10) / deviation)
        return float((1 - others) * norm.pdf(noise, scale=deviation))

    exact = quad(loses, -80, 80)[0]
    assert exact <= np.exp(log_other_class(counts, deviation)[0]) < 1.5 * exact


@pytest.mark.parametrize(
    ("counts", "deviation", "message"),
    [(np.array([3, 2]), 1.0, "at least two classes"), (np.array([[3, 2]]), 0.0, "deviation > 0")],
)
def test_bad_counts(counts: np.ndarray, deviation: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        vote_epsilons(counts, deviation, 1e-5)
