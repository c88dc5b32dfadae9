"""Metrics against scikit-learn and scipy, and their intervals against their own promise."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from veilset.core.errors import InputError
from veilset.evaluate.metrics import Accuracy, BalancedAccuracy, ClassRecall, wilson_interval


def predictions_of(seed, classes=5, count=300, skew=True):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(classes)) if skew else np.full(classes, 1 / classes)
    labels = rng.choice(classes, count, p=shares).astype(np.int64)
    wrong = rng.random(count) < 0.3
    return labels, np.where(wrong, rng.integers(0, classes, count), labels).astype(np.int64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
def test_values_equal_scikit_learn(seed):
    labels, predictions = predictions_of(seed)
    present = np.unique(labels)
    recalls = reference.recall_score(labels, predictions, labels=present, average=None)
    assert Accuracy()(labels, predictions).value == pytest.approx(reference.accuracy_score(labels, predictions))
    assert BalancedAccuracy()(labels, predictions).value == pytest.approx(
        reference.balanced_accuracy_score(labels, predictions)
    )
    ours = [ClassRecall(int(label))(labels, predictions) for label in present]
    np.testing.assert_allclose([recall.value for recall in ours], recalls)
    assert [recall.n for recall in ours] == np.bincount(labels)[present].tolist()


@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (0, 50), (50, 50), (13, 40), (9_800, 10_000)])
def test_wilson_equals_scipy(hits, n):
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_balanced_interval_covers_about_95_percent():
    rng = np.random.default_rng(0)
    recalls, counts, covered, runs = np.array([0.95, 0.7, 0.5]), [400, 60, 30], 0, 600
    labels = np.repeat(np.arange(3), counts)
    for _ in range(runs):
        predictions = np.where(rng.random(len(labels)) < recalls[labels], labels, (labels + 1) % 3)
        low, high = BalancedAccuracy()(labels, predictions).interval
        covered += low <= recalls.mean() <= high
    assert 0.915 < covered / runs < 0.985  # 0.95 +- 4 standard errors of 600 runs


def test_intervals_hold_their_value_and_do_not_collapse():
    labels = np.arange(20, dtype=np.int64) % 2
    for predictions in (labels, 1 - labels):
        for metric in (Accuracy(), BalancedAccuracy(), ClassRecall(1)):
            low, high = (result := metric(labels, predictions)).interval
            assert 0 <= low <= result.value <= high <= 1
            assert high - low > 0.1


def test_absent_class_has_no_recall():
    result = ClassRecall(7)(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert math.isnan(result.value)
    assert (result.interval, result.n) == ((0.0, 1.0), 0)


@pytest.mark.parametrize("metric", [Accuracy(), BalancedAccuracy(), ClassRecall(2)])
def test_metrics_declare_what_they_are(metric):
    assert metric.higher_is_better
    assert metric.needs_private_data
    assert metric.name in {"accuracy", "balanced_accuracy", "recall_2"}
    with pytest.raises(InputError, match="one prediction for each"):
        metric(np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="one prediction for each"):
        metric(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
