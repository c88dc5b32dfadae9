"""Softmax regression on fixed features: per-unit clipping that is exact and free.

The gradient of one record is an outer product of its features and the error of its probabilities, so that its norm is
the product of two lengths. No autograd is needed, and no per-record gradient is ever written out.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.training.dpsgd.tape import clip_factors


class LinearHeadGradients:
    """Clipped sums for an `nn.Linear` under cross-entropy; the same results as `ClippedGradients`, sooner.

    Targets are class numbers (b,) or probabilities (b, classes).

    Privacy: as `ClippedGradients`: unit one record, add/remove-one, sensitivity `clip_norm`; assumes that a row of
    features depends on its own record only.
    """

    def __init__(self, head: nn.Linear, clip_norm: float, *, automatic: bool = False, stabiliser: float = 0.01) -> None:
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise InputError(f"Expected clip_norm > 0, got {clip_norm}. Clipping to nothing would leave only noise.")
        if not all(value.requires_grad for value in head.parameters()):
            raise InputError("Expected a head whose weight and bias both require a gradient. Use ClippedGradients.")
        self.head = head
        self.parameters: list[nn.Parameter] = list(head.parameters())
        self.sensitivity = float(clip_norm)
        self.steps_done = 0
        self._automatic, self._stabiliser = automatic, stabiliser

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Refuse features of the wrong shape; nothing here can mix records."""
        if inputs.ndim != 2 or inputs.shape[1] != self.head.in_features or len(targets) != len(inputs):
            raise InputError(
                f"Expected features (b, {self.head.in_features}) and as many targets, got {tuple(inputs.shape)} and "
                f"{tuple(targets.shape)}."
            )

    @torch.no_grad()
    def sum(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """The sum of clipped gradients of weight and bias; zeros for an empty batch."""
        self.check(inputs, targets)
        self.steps_done += 1
        logits = self.head(inputs)
        if not bool(torch.isfinite(logits).all()):
            raise VeilsetError(f"The loss is not finite at step {self.steps_done}. Lower the learning rate.")
        classes = functional.one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets
        wanted = classes.to(logits)
        errors = torch.softmax(logits, dim=1) * wanted.sum(1, keepdim=True) - wanted  # d cross-entropy / d logits
        has_bias = len(self.parameters) == 2
        lengths = torch.linalg.vector_norm(inputs, dim=1).double().square() + (1.0 if has_bias else 0.0)
        norms = lengths.sqrt() * torch.linalg.vector_norm(errors, dim=1).double()
        factors = clip_factors(norms, self.sensitivity, automatic=self._automatic, stabiliser=self._stabiliser)
        errors.mul_(factors.to(errors)[:, None])
        return [errors.t() @ inputs, errors.sum(0)] if has_bias else [errors.t() @ inputs]
