"""Attacks with shadow models: networks made like the target, each from a random half of the candidates.

LiRA: Carlini et al., "Membership Inference Attacks From First Principles" (S&P 2022), the likelihood ratio of the
target's confidence under Gaussians fitted to the shadows with and without the record; `lira-offline` uses those
without it only. With few shadows one variance for all records is steadier than one each, as they found, too. RMIA:
Zarifzadeh, Liu, Shokri, "Low-Cost High-Power Membership Inference Attacks" (ICML 2024), the confidence over its mean
under the shadows, compared with the same of other records.

Candidates enter shadow models without anybody saying which are members: that is a coin for each record and shadow.
The known half sets thresholds and is RMIA's population; no number is measured on it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, numpy_generator
from veilset.core.records import Labels
from veilset.evaluate.attacks.base import Attack, LogProbabilities, Outcome, Setting, log_probabilities
from veilset.evaluate.attacks.blackbox import confidence_scores
from veilset.evaluate.attacks.measures import Scores, best_threshold
from veilset.evaluate.attacks.splitting import Split

Confidences = NDArray[np.float64]  # (shadows, records)
Included = NDArray[np.bool_]  # (shadows, records)

RMIA_GAMMA = 2.0
_LEAST_SPREAD = 1e-3
_LARGEST_LOGIT = 50.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """What the shadow models say about the true label of the known candidates, then of the attacked ones."""

    split: Split
    included: Included
    log_confidences: Confidences
    logits: Confidences


def train_shadows(setting: Setting) -> Shadows:
    """Train the shadow models and keep their answers; each record is in half of them."""
    config, train = setting.config, setting.target.train_shadow
    if train is None:
        raise InputError("Expected a target that says how to train shadow models, got one without.")
    split = setting.split.head(config.shadow_records)
    images = np.concatenate([split.known.images, split.attacked.images])
    labels = np.concatenate([split.known.labels, split.attacked.labels])
    included = halves(config.shadows, len(labels), config.seed)
    log_confidences, logits = np.empty(included.shape), np.empty(included.shape)
    for shadow, rows in enumerate(included):
        setting.progress.note(f"shadow model {shadow + 1} of {config.shadows}")
        network = train(images[rows], labels[rows], derive_seed(config.seed, f"shadow {shadow}"))
        answers = log_probabilities(network, images)
        log_confidences[shadow], logits[shadow] = confidence_scores(answers, labels), logit_confidence(answers, labels)
    return Shadows(split=split, included=included, log_confidences=log_confidences, logits=logits)


def halves(shadows: int, records: int, seed: int) -> Included:
    """For each record a random half of the shadows, so that each has as many models with it as without it."""
    coins = numpy_generator(seed, "shadow halves").random((shadows, records))
    included: Included = coins.argsort(axis=0).argsort(axis=0) < shadows // 2
    return included


def logit_confidence(answers: LogProbabilities, labels: Labels) -> Scores:
    """log p_y - log(1 - p_y), which is close to normal over models; bounded, since nothing is learned beyond e^-50."""
    others = answers.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    scores: Scores = confidence_scores(answers, labels) - np.logaddexp.reduce(others, axis=1)
    return scores.clip(-_LARGEST_LOGIT, _LARGEST_LOGIT)


def lira_scores(target: Scores, shadows: Confidences, included: Included, *, offline: bool = False) -> Scores:
    """Log-likelihood ratio "with the record" over "without it"; offline, how far above the models without it."""
    without, spread_without = _fitted(shadows, ~included)
    if offline:
        return (target - without) / spread_without
    within, spread_within = _fitted(shadows, included)
    ratio: Scores = stats.norm.logpdf(target, within, spread_within) - stats.norm.logpdf(
        target, without, spread_without
    )
    return ratio


def _fitted(values: Confidences, chosen: Included) -> tuple[Scores, float]:
    """The mean of each record's chosen shadows, and one standard deviation around them for all records."""
    counts = chosen.sum(axis=0)
    means = (values * chosen).sum(axis=0) / counts
    squares = float((((values - means) * chosen) ** 2).sum())
    freedom = int((counts - 1).sum())
    # One model for a record says nothing of the spread among models; the spread among records stands in for it.
    spread = (squares / freedom) ** 0.5 if freedom else float(values.std())
    return means, max(_LEAST_SPREAD, spread)


def rmia_scores(
    target: Scores,
    shadows: Confidences,
    included: Included,
    population: NDArray[np.bool_],
    gamma: float = RMIA_GAMMA,
) -> Scores:
    """The share of the population whose ratio a record's exceeds `gamma` times; all in log-confidences.

    The share grows with the record's own ratio, so that ratio may order records of equal shares.
    """
    within = _log_mean(shadows, included)
    without = _log_mean(shadows, ~included)
    ratios = target - (np.logaddexp(within, without) - np.log(2))
    ordered = np.sort(ratios[population])
    share = np.searchsorted(ordered, ratios - np.log(gamma), side="right")
    scores: Scores = (share + stats.rankdata(ratios) / (2 * len(ratios))) / len(ordered)
    return scores


def _log_mean(values: Confidences, chosen: Included) -> Scores:
    """The logarithm of the mean over each record's chosen shadows of exp(values)."""
    kept = np.where(chosen, values, -np.inf)
    mean: Scores = np.logaddexp.reduce(kept, axis=0) - np.log(chosen.sum(axis=0))
    return mean


def _outcome(setting: Setting, scores: Scores, threshold: float | None = None) -> Outcome:
    split = setting.shadows.split
    known = len(split.known.labels)
    if threshold is None:
        threshold = best_threshold(scores[:known], split.known.is_member)
    return Outcome(
        candidates=split.attacked,
        scores=scores[known:],
        threshold=threshold,
        details={"shadow_models": len(setting.shadows.included)},
    )


def _target_answers(setting: Setting) -> tuple[LogProbabilities, Labels]:
    """The target's answers on the shadows' candidates; the split's order is random, so these are its first ones."""
    split = setting.shadows.split
    answers = [setting.known[: len(split.known.labels)], setting.attacked[: len(split.attacked.labels)]]
    return np.concatenate(answers), np.concatenate([split.known.labels, split.attacked.labels])


def _lira(setting: Setting) -> Outcome:
    shadows = setting.shadows
    scores = lira_scores(logit_confidence(*_target_answers(setting)), shadows.logits, shadows.included)
    return _outcome(setting, scores, threshold=0.0)


def _lira_offline(setting: Setting) -> Outcome:
    shadows = setting.shadows
    target = logit_confidence(*_target_answers(setting))
    return _outcome(setting, lira_scores(target, shadows.logits, shadows.included, offline=True))


def _rmia(setting: Setting) -> Outcome:
    shadows, known = setting.shadows, setting.shadows.split.known
    population = np.zeros(shadows.included.shape[1], dtype=np.bool_)
    population[: len(known.labels)] = ~known.is_member
    target = confidence_scores(*_target_answers(setting))
    return _outcome(setting, rmia_scores(target, shadows.log_confidences, shadows.included, population))


LIRA = Attack(
    name="lira",
    title="Likelihood ratio against shadow models",
    needs="shadow models",
    run=_lira,
    paper="Carlini et al., S&P 2022",
)
LIRA_OFFLINE = Attack(
    name="lira-offline",
    title="Likelihood under shadow models without the record",
    needs="shadow models",
    run=_lira_offline,
    paper="Carlini et al., S&P 2022",
)
RMIA = Attack(
    name="rmia",
    title="Confidence relative to shadow models and other records",
    needs="shadow models",
    run=_rmia,
    paper="Zarifzadeh, Liu, Shokri, ICML 2024",
)
