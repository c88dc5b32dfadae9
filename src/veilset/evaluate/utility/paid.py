"""A test accuracy that may be published: counted by a mechanism, paid from the test set's account.

Everything else in this layer reads test images without noise, so its numbers stay with the custodian.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.evaluate.metrics import Z95, wilson_interval
from veilset.privacy.account import Account
from veilset.privacy.accounting import calibrate, epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Line
from veilset.privacy.opening import has_unfinished_run, opened
from veilset.privacy.sources import account_of
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict

_LABEL = "right and wrong answers on the test set"


@dataclass(frozen=True, kw_only=True)
class PaidAccuracy:
    """A noisy accuracy with the interval of both the finite test set and the noise, and what it cost."""

    accuracy: float
    interval: tuple[float, float]
    epsilon: float
    delta: float
    noise_multiplier: float
    unit: str
    units: int
    student: str
    ledger: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-ready data; it may be published."""
        return {
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "unit": self.unit,
            "n": self.units,
            "student": self.student,
            "needs_private_data": False,
            "ledger": json.loads(json.dumps(self.ledger)),
        }


def paid_accuracy(
    network: nn.Module, test: Vault, *, epsilon: float, delta: float | None, account: Account | None, workspace: Path,
    student: str,
) -> PaidAccuracy:  # fmt: skip
    """The accuracy of `network`, which saw nothing of the test set, for `epsilon` of the test set's account.

    Privacy: unit as in the vault (a group counts with the average of its images); relation add/remove-one; sensitivity
    1 (a unit adds +1 for a right answer, -1 for a wrong one); event one Gaussian, un-subsampled; assumes that the
    network does not depend on the test set.
    """
    facts = test.facts
    budget = Budget.for_units(epsilon, delta, facts.units, facts.unit)
    noise = calibrate(budget, lambda multiplier: [Event(label=_LABEL, noise_multiplier=multiplier)])
    event = Event(label=_LABEL, noise_multiplier=noise)
    plan = Plan(budget=budget, events=(event,))
    if has_unfinished_run(workspace):
        raise InputError(f"An unfinished paid evaluation is in {workspace}; its share is spent. Choose another --out.")
    header = {"method": "paid test accuracy", "as_published": False, "facts": facts.to_json()}
    with opened(test, plan, header, workspace=workspace, account=account_of(test, account)) as run:

        def right_or_wrong(images: Tensor, labels: Tensor) -> Tensor:
            guesses = torch.from_numpy(predict(network, images.numpy()).argmax(axis=1))
            return torch.where(guesses == labels, 1.0, -1.0)[:, None]

        balance = float(run.session.gaussian_sum(right_or_wrong, event, clip_norm=1.0))
        lines = tuple(run.finished_lines())
    accuracy, interval = _estimate(balance, facts.units, noise)
    return PaidAccuracy(
        accuracy=accuracy,
        interval=interval,
        epsilon=epsilon_of([event], budget.delta),
        delta=budget.delta,
        noise_multiplier=noise,
        unit=facts.unit,
        units=facts.units,
        student=student,
        ledger=lines,
    )


def _estimate(balance: float, units: int, noise: float) -> tuple[float, tuple[float, float]]:
    """Accuracy and its 95 % interval from the noisy number of right answers less wrong ones.

    n is public, so the balance tells the share of right answers with half its noise: a unit moves it by 1 as it would
    move a count, and the share is (1 + balance / n) / 2. The errors of the noise and of the finite test set are
    independent: their reaches add in squares (Zou and Donner, 2008).
    """
    share = min(1.0, max(0.0, (1 + balance / units) / 2))
    low, high = wilson_interval(share * units, units)
    reach = Z95 * noise / 2 / units
    return share, (max(0.0, share - math.hypot(share - low, reach)), min(1.0, share + math.hypot(high - share, reach)))
