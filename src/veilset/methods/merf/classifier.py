"""What the noisy sums say: mean and share of each class or kind, and a linear classifier. Post-processing.

Of several findings the classes are kinds: images that have a finding, and images that lack it (shared/findings.py).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.merf.config import CODE_PART, COUNT_PART, FEATURES_PART
from veilset.methods.shared.class_counts import sensible_counts
from veilset.methods.shared.findings import counts_of_kinds, shares_of_kinds

# Directions in which the noisy covariance is below this share of the noise's largest eigenvalue are noise.
_EIGENVALUE_FLOOR = 0.35


@dataclass(frozen=True, kw_only=True)
class ClassMeans:
    """What the noisy sums say about each class or, of findings, about each kind, in float64."""

    codes: Tensor  # (classes, code_size)
    features: Tensor  # (classes, random_features)
    shares: Tensor  # (classes,), adding up to 1; of each of F findings' two kinds, to 1/F

    @classmethod
    def from_sums(cls, sums: Tensor, code_size: int, units: int, *, findings: bool = False) -> "ClassMeans":
        """Divide the noisy sums by the noisy counts, which the public number of units keeps within reason."""
        codes, features, counts = sums[:, :code_size], sums[:, code_size:-1], sums[:, -1] / COUNT_PART
        if findings:
            counts = counts_of_kinds(counts, units)
            shares = shares_of_kinds(counts)
        else:
            counts = sensible_counts(counts, units)
            shares = counts / units
        return cls(
            codes=codes / CODE_PART / counts[:, None],
            features=features / FEATURES_PART / counts[:, None],
            shares=shares,
        )


@dataclass(frozen=True, kw_only=True)
class LinearClassifier:
    """Logits of the classes or of the findings as a linear function of the code."""

    weight: Tensor  # (code_size, classes)
    bias: Tensor  # (classes,)
    findings: bool = False

    def logits(self, code: Tensor) -> Tensor:
        """(batch, classes)."""
        return code @ self.weight.to(code) + self.bias.to(code)

    def probabilities(self, code: Tensor) -> Tensor:
        """(batch, classes): of one class among all, or of each finding by itself."""
        logits = self.logits(code)
        return logits.sigmoid() if self.findings else logits.softmax(dim=1)

    def loss(self, code: Tensor, asked: Tensor) -> Tensor:
        """The cross-entropy to the classes (b,) asked for; of findings, to having or lacking the one of this kind."""
        logits = self.logits(code)
        if not self.findings:
            return functional.cross_entropy(logits, asked)
        count = logits.shape[1]
        of_asked = logits.gather(1, (asked % count)[:, None])[:, 0]
        return functional.binary_cross_entropy_with_logits(of_asked, (asked < count).to(of_asked))


def solve_classifier(
    means: ClassMeans, moments: Tensor, noise: float, shares: Tensor | None = None
) -> LinearClassifier:
    """Linear discriminant analysis from noisy class means and noisy second moments; post-processing.

    Args:
        means: of the codes.
        moments: mean of u u' over all records, (code_size, code_size).
        noise: standard deviation of the noise on a diagonal entry; off the diagonal it is 1/sqrt(2) of that.
        shares: (classes,) that the answers are to reckon with; those of the means unless told.
    """
    shares = means.shares if shares is None else shares
    weight = _inverse_within(means.codes, means.shares, moments, noise) @ means.codes.T
    return LinearClassifier(weight=weight, bias=shares.log() - 0.5 * (means.codes.T * weight).sum(dim=0))


def solve_findings(means: ClassMeans, moments: Tensor, noise: float, shares: Tensor) -> LinearClassifier:
    """The same for each finding by itself: between those who have it and those who lack it. Arguments as above."""
    count = len(means.codes) // 2
    columns, biases = [], []
    for finding in range(count):
        pair = [finding, count + finding]
        codes = means.codes[pair]
        found = _inverse_within(codes, count * means.shares[pair], moments, noise) @ codes.T
        scores = shares[pair].log() - 0.5 * (codes.T * found).sum(dim=0)
        columns.append(found[:, 0] - found[:, 1])
        biases.append(scores[0] - scores[1])
    return LinearClassifier(weight=torch.stack(columns, dim=1), bias=torch.stack(biases), findings=True)


def _inverse_within(codes: Tensor, shares: Tensor, moments: Tensor, noise: float) -> Tensor:
    """The inverse of the covariance within classes of these means and shares, without directions that are noise."""
    within = moments - (codes.T * shares) @ codes
    # Eigenvalues of a symmetric noise matrix reach 2 sqrt(d) times the noise of an entry (Wigner).
    edge = 2 * math.sqrt(len(within) / 2) * noise
    values, vectors = torch.linalg.eigh(within)
    inverse: Tensor = (vectors / values.clamp(min=max(_EIGENVALUE_FLOOR * edge, 1e-5))) @ vectors.T
    return inverse
