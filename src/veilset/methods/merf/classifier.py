"""What the noisy sums say: mean and share of each class, and a linear classifier in closed form. Post-processing."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.methods.merf.config import CODE_PART, COUNT_PART, FEATURES_PART
from veilset.methods.shared.class_counts import sensible_counts

# Directions in which the noisy covariance is below this share of the noise's largest eigenvalue are noise.
_EIGENVALUE_FLOOR = 0.35


@dataclass(frozen=True, kw_only=True)
class ClassMeans:
    """What the noisy sums say about each class, in float64."""

    codes: Tensor  # (classes, code_size)
    features: Tensor  # (classes, random_features)
    shares: Tensor  # (classes,), adding up to 1

    @classmethod
    def from_sums(cls, sums: Tensor, code_size: int, units: int) -> "ClassMeans":
        """Divide the noisy sums by the noisy counts, which the public number of units keeps within reason."""
        codes, features, counts = sums[:, :code_size], sums[:, code_size:-1], sums[:, -1] / COUNT_PART
        counts = sensible_counts(counts, units)
        return cls(
            codes=codes / CODE_PART / counts[:, None],
            features=features / FEATURES_PART / counts[:, None],
            shares=counts / units,
        )


@dataclass(frozen=True, kw_only=True)
class LinearClassifier:
    """Class logits as a linear function of the code."""

    weight: Tensor  # (code_size, classes)
    bias: Tensor  # (classes,)

    def logits(self, code: Tensor) -> Tensor:
        """(batch, classes)."""
        return code @ self.weight.to(code) + self.bias.to(code)


def solve_classifier(means: ClassMeans, moments: Tensor, noise: float) -> LinearClassifier:
    """Linear discriminant analysis from noisy class means and noisy second moments; post-processing.

    Args:
        means: of the codes.
        moments: mean of u u' over all records, (code_size, code_size).
        noise: standard deviation of the noise on a diagonal entry; off the diagonal it is 1/sqrt(2) of that.
    """
    within = moments - (means.codes.T * means.shares) @ means.codes
    # Eigenvalues of a symmetric noise matrix reach 2 sqrt(d) times the noise of an entry (Wigner).
    edge = 2 * math.sqrt(len(within) / 2) * noise
    values, vectors = torch.linalg.eigh(within)
    inverse = (vectors / values.clamp(min=max(_EIGENVALUE_FLOOR * edge, 1e-5))) @ vectors.T
    weight = inverse @ means.codes.T
    bias = means.shares.log() - 0.5 * (means.codes.T * weight).sum(dim=0)
    return LinearClassifier(weight=weight, bias=bias)
