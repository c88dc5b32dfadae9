"""Averages of the weights along a private run. They read released weights only: post-processing, at no cost."""

from collections.abc import Sequence

import torch
from torch import Tensor


class WeightAverages:
    """An exponential moving average, or the plain average of the last iterates, of some parameters.

    Args:
        parameters: the trained parameters; read at each `update`, written by `apply`.
        decay: of the moving average; None averages all updates alike (Polyak and Juditsky 1992).
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float | None) -> None:
        self._parameters, self._decay = parameters, decay
        self._average = [value.detach().clone() for value in parameters]
        self._updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are."""
        self._updates += 1
        share = 1 / self._updates
        if self._decay is not None:
            # The start is forgotten quickly: an average over few steps should not hold on to random weights.
            share = max(1 - self._decay, 1 - self._updates / (9 + self._updates))
        for average, value in zip(self._average, self._parameters, strict=True):
            average.lerp_(value, share)

    @torch.no_grad()
    def apply(self) -> None:
        """Write the average into the parameters, if there is one."""
        if self._updates:
            for average, value in zip(self._average, self._parameters, strict=True):
                value.copy_(average)
