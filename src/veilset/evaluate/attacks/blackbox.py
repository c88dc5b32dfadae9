"""Black-box attacks without training: only the network's answers on a record and its true label are used.

Confidence in the true label (Yeom et al., 2018); entropy and modified entropy of the answer (Song and Mittal,
"Systematic Evaluation of Privacy Risks of Machine Learning Models", USENIX Security 2021); label only, as the share
of slightly shifted copies that are still classified rightly (Choquette-Choo et al., "Label-Only Membership Inference
Attacks", ICML 2021).
"""

import itertools
from collections.abc import Callable

import numpy as np
from torch import nn

from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import Attack, LogProbabilities, Outcome, Setting
from veilset.evaluate.attacks.measures import Scores, best_threshold
from veilset.training.classifier import predict

_TINY = 1e-300


def confidence_scores(answers: LogProbabilities, labels: Labels) -> Scores:
    """Log-probability of the true label, which is minus the loss."""
    return answers[np.arange(len(labels)), labels]


def entropy_scores(answers: LogProbabilities, labels: Labels) -> Scores:  # noqa: ARG001 (one signature for all)
    """Minus the entropy of the answer."""
    scores: Scores = (np.exp(answers) * answers).sum(axis=1)
    return scores


def modified_entropy_scores(answers: LogProbabilities, labels: Labels) -> Scores:
    """Minus -(1-p_y) log p_y - sum over other classes of p_i log(1-p_i); unlike the entropy it knows the true label."""
    rows = np.arange(len(labels))
    shares = np.exp(answers)
    rest = np.maximum(-np.expm1(answers), _TINY)  # 1 - p without cancellation
    terms = shares * np.log(rest)
    terms[rows, labels] = rest[rows, labels] * answers[rows, labels]
    scores: Scores = terms.sum(axis=1)
    return scores


def label_only_scores(network: nn.Module, images: Images, labels: Labels) -> Scores:
    """The share of the image and its eight shifts by one pixel that get the true label."""
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    right = np.zeros(len(labels))
    for down, across in itertools.product(range(3), range(3)):
        shifted = padded[:, down : down + height, across : across + width]
        right += predict(network, shifted).argmax(axis=1) == labels
    return right / 9


def _by_answers(rule: Callable[[LogProbabilities, Labels], Scores]) -> Callable[[Setting], Outcome]:
    def run(setting: Setting) -> Outcome:
        known, attacked = setting.split.known, setting.split.attacked
        return Outcome(
            candidates=attacked,
            scores=rule(setting.attacked, attacked.labels),
            threshold=best_threshold(rule(setting.known, known.labels), known.is_member),
        )

    return run


def _label_only(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked
    return Outcome(
        candidates=attacked,
        scores=label_only_scores(setting.network, attacked.images, attacked.labels),
        threshold=best_threshold(label_only_scores(setting.network, known.images, known.labels), known.is_member),
    )


CONFIDENCE = Attack(
    name="confidence",
    title="Confidence in the true label",
    needs="model",
    run=_by_answers(confidence_scores),
    paper="Yeom et al., CSF 2018",
)
ENTROPY = Attack(
    name="entropy",
    title="Entropy of the answer",
    needs="model",
    run=_by_answers(entropy_scores),
    paper="Song, Mittal, USENIX Security 2021",
)
MODIFIED_ENTROPY = Attack(
    name="modified-entropy",
    title="Entropy of the answer, given the true label",
    needs="model",
    run=_by_answers(modified_entropy_scores),
    paper="Song, Mittal, USENIX Security 2021",
)
LABEL_ONLY = Attack(
    name="label-only",
    title="Predicted labels of slightly shifted copies",
    needs="model",
    run=_label_only,
    paper="Choquette-Choo et al., ICML 2021",
)
