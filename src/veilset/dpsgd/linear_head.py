"""Softmax or sigmoid regression on fixed features: per-unit clipping that is exact and free.

The gradient of one record is an outer product of its features and the error of its probabilities, so that its norm is
the product of two lengths. Several findings per image have a sigmoid each, and all their errors are one vector. No
autograd is needed, and no per-record gradient is ever written out.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.settings import require_clip_norm
from veilset.dpsgd.exact import clip_factors, in_double
from veilset.dpsgd.passes import FindingsLoss
from veilset.privacy.rows import fixed_batches

_ROWS = (256, 64, 16, 4, 1)  # of a pass: the first that leaves a row's bits alone


class LinearHeadGradients:
    """Clipped sums for an `nn.Linear` under cross-entropy; the same results as `ClippedGradients`, sooner.

    Targets are class numbers (b,) or probabilities (b, classes); with a `FindingsLoss`, zeros and ones (b, findings).

    Privacy: as `ClippedGradients`: unit one record, add/remove-one, sensitivity `clip_norm`, rounding included, over
    all classes or findings together and whatever weights these have; assumes that a row of features depends on its own
    record only. A row that is not finite counts as zero.
    """

    def __init__(
        self, head: nn.Linear, clip_norm: float, *, loss: FindingsLoss | None = None, automatic: bool = False
    ) -> None:
        require_clip_norm(clip_norm, "a linear head")
        if not all(value.requires_grad for value in head.parameters()):
            raise InputError("Expected a head whose weight and bias both require a gradient. Use ClippedGradients.")
        self.head = head
        self.parameters: list[nn.Parameter] = list(head.parameters())
        self.sensitivity = float(clip_norm)
        self.steps_done = 0
        self._automatic, self._loss = automatic, loss
        with torch.no_grad():
            self._rows = next(rows for rows in _ROWS if self._keeps_bits(rows))

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Refuse features of the wrong shape; nothing here can mix records."""
        if inputs.ndim != 2 or inputs.shape[1] != self.head.in_features or len(targets) != len(inputs):
            raise InputError(
                f"Expected features (b, {self.head.in_features}) and as many targets, got {tuple(inputs.shape)} and "
                f"{tuple(targets.shape)}."
            )

    @torch.no_grad()
    def sum(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """The sum of clipped gradients of weight and bias, in float64; zeros for an empty batch."""
        self.check(inputs, targets)
        if not all(bool(torch.isfinite(value.sum())) for value in self.parameters):
            raise VeilsetError(f"The weights are not finite after {self.steps_done} steps. Lower the learning rate.")
        self.steps_done += 1
        totals = [torch.zeros_like(value, dtype=torch.float64, requires_grad=False) for value in self.parameters]
        for (rows, wanted), real in fixed_batches((inputs, targets), self._rows):
            for total, part in zip(totals, self._clipped_part(rows, wanted, real), strict=False):
                total += part
        return totals

    def _clipped_part(self, inputs: Tensor, targets: Tensor, real: int) -> list[Tensor]:
        """The clipped sums of one pass, whose first `real` rows count."""
        errors = self._errors(self.head(inputs), targets)
        has_bias = len(self.parameters) == 2
        lengths = inputs.double().square().sum(1) + (1.0 if has_bias else 0.0)
        squares = lengths * errors.double().square().sum(1)
        factors = clip_factors(squares, squares, self.sensitivity, automatic=self._automatic)
        factors[real:] = 0.0
        scaled = in_double(errors, factors, scale=True)
        return [scaled.t() @ in_double(inputs, factors), scaled.sum(0)]

    def _keeps_bits(self, rows: int) -> bool:
        """As in probe.py: a row leaves the same bits at every place and in any company. Tried with random numbers."""
        coins = torch.Generator(device="cpu").manual_seed(rows)
        classes, width = self.head.weight.shape
        weight, some = (torch.randn(n, width, generator=coins, device="cpu").to(self.head.weight) for n in (classes, 3))
        bias = None if self.head.bias is None else weight[:, 0].clone()
        sides = () if self._loss is None else (classes,)
        targets = torch.zeros(rows, *sides, dtype=torch.int64, device=weight.device)
        others = torch.arange(rows, device=weight.device) % 3
        alone, among = (
            self._errors(functional.linear(some[chosen], weight, bias), targets) for chosen in (others * 0, others)
        )
        return torch.equal(alone, alone[:1].expand_as(alone)) and torch.equal(alone[::3], among[::3])

    def _errors(self, logits: Tensor, targets: Tensor) -> Tensor:
        return _errors(logits, targets) if self._loss is None else self._loss.errors(logits, targets)


def _errors(logits: Tensor, targets: Tensor) -> Tensor:
    """d cross-entropy / d logits."""
    classes = functional.one_hot(targets, logits.shape[1]) if targets.ndim == 1 else targets
    wanted = classes.to(logits)
    return torch.softmax(logits, dim=1) * wanted.sum(1, keepdim=True) - wanted
