"""Noise whose parts cancel over the steps of a training: banded matrix factorisation.

docs/explanation/engine.md ("Correlated noise") has the mechanism and the argument that its event is right. Two numbers
matter here: a step's noise takes back parts of the last `bands` - 1, and the weights of that have length 1.

Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization for private training"; the weights are those of
Kalinin and Lampert 2024, "Banded square root matrix factorization for differentially private model training".
"""

import math
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import VeilsetError

if TYPE_CHECKING:
    import torch

Weights = NDArray[np.float64]

# Rounding in the length of the weights is below this; they are made shorter by as much.
_ROUNDING = 1e-12


def band_weights(bands: int, momentum: float) -> Weights:
    """The first coefficients of (1 - s)^(-1/2) (1 - momentum s)^(-1/2), scaled to length 1 or a hair less."""
    lags = np.arange(1, bands)
    root = np.cumprod([1.0, *((2 * lags - 1) / (2 * lags))])
    both: Weights = np.convolve(root, root * momentum ** np.arange(bands))[:bands]
    return both / np.linalg.norm(both) * (1 - _ROUNDING)


def noise_in_weights(weights: Weights, steps: int, momentum: float) -> float:
    """How much the noise of SGD's weights deviates, as the root of its mean square over all steps.

    In units of learning rate / (1 - momentum) and of the deviation of fresh noise. The noise of the steps is the
    series 1 / weights, and momentum and the sum over steps are series as well, so that rows of the matrix need not be
    written out: lag k occurs in steps - k of the steps.
    """
    inverse = np.zeros(steps)
    for step in range(steps):
        past = min(step, len(weights) - 1)
        taken_back = weights[1 : past + 1] @ inverse[step - past : step][::-1]
        inverse[step] = (float(step == 0) - taken_back) / weights[0]
    followed = np.convolve(inverse, 1 - momentum ** np.arange(1, steps + 1))[:steps]
    return math.sqrt(float((np.arange(steps, 0, -1) * followed**2).sum()) / steps)


class CorrelatedNoise:
    """The noise of one run of steps, of which each takes back parts of the last ones.

    What it remembers is secret: whoever knows it can subtract it. So it stays in memory, is never stored, cannot be
    copied, and is forgotten in a forked process, as at the beginning of a run.
    """

    def __init__(self, weights: Sequence[float] | Weights) -> None:
        self._weights = [float(weight) for weight in weights]
        if self._weights[0] <= 0 or math.fsum(weight**2 for weight in self._weights) > 1:
            raise VeilsetError("Expected weights of noise of length at most 1, the first above 0. Report this.")
        self._earlier: deque[torch.Tensor] = deque(maxlen=len(self._weights) - 1)  # the last one first
        self._process = os.getpid()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied or stored: two sums with the same noise reveal it."""
        raise VeilsetError("Expected noise to stay where it was drawn: it cannot be copied or stored.")

    def following(self, fresh: "torch.Tensor") -> "torch.Tensor":
        """The noise of the next step, made of `fresh` independent variates, which it may overwrite."""
        if self._process != os.getpid():
            self._earlier.clear()
            self._process = os.getpid()
        for weight, earlier in zip(self._weights[1:], self._earlier, strict=False):
            fresh.sub_(earlier, alpha=weight)
        fresh.div_(self._weights[0])
        self._earlier.appendleft(fresh)
        return fresh.clone()
