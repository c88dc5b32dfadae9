"""AUC and calibration against scikit-learn and torchmetrics, and the intervals against their promise."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import MulticlassCalibrationError

from veilset.core.errors import InputError
from veilset.evaluate.utility.confidence import Auc, CalibrationError


def scored(seed, classes=4, count=400, sharpness=1.0):
    coins = np.random.default_rng(seed)
    labels = coins.integers(0, classes, count)
    logits = coins.normal(size=(count, classes))
    logits[np.arange(count), labels] += sharpness
    logits = logits.round(1)  # ties
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return labels.astype(np.int64), probabilities


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [2, 4])
def test_values_equal_other_implementations(seed, classes):
    labels, probabilities = scored(seed, classes)
    expected = np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in range(classes)])
    assert Auc()(labels, probabilities).value == pytest.approx(expected, abs=1e-12)
    metric = MulticlassCalibrationError(num_classes=classes, n_bins=15, norm="l1")
    theirs = float(metric(torch.from_numpy(probabilities), torch.from_numpy(labels)))
    assert CalibrationError()(labels, probabilities).value == pytest.approx(theirs, abs=1e-5)


def test_auc_interval_covers_about_95_percent():
    """Two classes with scores N(0,1) and N(1,1): the true area is Phi(1/sqrt 2)."""
    coins, runs, covered = np.random.default_rng(0), 400, 0
    true = 0.5 * (1 + math.erf(0.5))
    labels = np.repeat([0, 1], [120, 60])
    for _ in range(runs):
        score = coins.normal(size=180) + labels
        share = 1 / (1 + np.exp(-score))
        low, high = Auc()(labels, np.stack([1 - share, share], axis=1)).interval
        covered += low <= true <= high
    assert 0.906 < covered / runs < 0.994  # 0.95 +- 4 standard errors of 400 runs


def test_perfect_order_keeps_an_interval_and_one_class_has_no_area():
    labels = np.array([0, 1] * 10)
    perfect = np.eye(2)[labels]
    result = Auc()(labels, perfect)
    assert result.value == 1
    assert result.interval[0] < 0.8
    assert math.isnan(Auc()(labels * 0, perfect).value)
    assert CalibrationError()(labels, perfect).value == 0


def test_overconfidence_is_seen():
    labels = np.zeros(200, dtype=np.int64)
    sure = np.tile([0.95, 0.05], (200, 1))
    sure[:100] = sure[:100, ::-1]  # half of the answers are wrong, all claim 95 %
    result = CalibrationError()(labels, sure)
    assert result.value == pytest.approx(0.45)
    assert result.interval[0] > 0.35
    assert not CalibrationError.higher_is_better
    assert CalibrationError.needs_private_data
    assert Auc.needs_private_data


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        (np.zeros(0, np.int64), np.zeros((0, 2)), "at least one test label"),
        (np.zeros(3, np.int64), np.zeros((2, 2)), "one row of probabilities"),
        (np.array([0, 5]), np.full((2, 2), 0.5), "labels below 2, got 5"),
        (np.array([0, 1]), np.full((2, 2), np.nan), "diverged"),
    ],
)
def test_misfits_are_named(labels, rows, message):
    for metric in (Auc(), CalibrationError()):
        with pytest.raises(InputError, match=message):
            metric(labels, rows)
