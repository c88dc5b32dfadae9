"""How many units each class or finding has, by one noisy count, and a teacher that is fair to the rare ones.

A classifier that saw few images of a class hardly ever names it. Its logits carry the class' share of the data as an
addend, so that taking the logarithm of a noisy share off them makes the classes even (logit adjustment, Menon et al.
2021). It costs the count and nothing else; docs/how_to/findings.md has the trials of other ways.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from veilset.core.errors import VeilsetError
from veilset.privacy.events import Event
from veilset.privacy.session import PerImage
from veilset.privacy.vault import PublicFacts


class CountingSession(Protocol):
    """What counting needs of a `Session` (privacy/session.py)."""

    facts: PublicFacts

    def gaussian_sum(self, per_image: PerImage, event: Event, *, clip_norm: float) -> Tensor:
        """Pay for a noisy sum of rows."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Noisy counts of units, (classes,), and the deviation of the noise on each."""

    noisy: Tensor
    deviation: float
    units: int
    findings: bool

    def sensible(self) -> Tensor:
        """Counts that can be: none below its noise or one unit; of classes, adding up to the public number of units."""
        least = min(max(1.0, self.deviation), self.units / 2)
        counts = self.noisy.double().clamp(least, self.units - least)
        return counts if self.findings else counts * (self.units / counts.sum())

    def shares(self) -> Tensor:
        """The share of the units that each class or finding has."""
        return self.sensible() / self.units

    def offsets(self) -> Tensor:
        """What a class' share adds to its logit: log p, or log p / (1 - p) of a finding."""
        shares = self.shares()
        return (shares / (1 - shares)).log() if self.findings else shares.log()

    def weights(self) -> Tensor:
        """(2, F) of the loss where an image lacks a finding and where it has it: the root of even shares over noisy
        ones, so that few images are heard among many and none drowns the others out.
        """
        shares = self.shares()
        return (0.5 / torch.stack([1 - shares, shares])).sqrt().float()

    def drowned(self, names: Sequence[str], hidden_below: float) -> list[str]:
        """A warning for each class of fewer units than noise hides, by the noisy count. Post-processing."""
        what = "Finding" if self.findings else "Class"
        return [
            f"{what} {name!r} has about {max(0.0, float(count)):.0f} of {self.units} units (a noisy count, give or "
            f"take {2 * self.deviation:.0f}). At this epsilon noise hides fewer than {hidden_below:.0f}: what is "
            "released of it can only be noise."
            for name, count in zip(names, self.noisy, strict=True)
            if float(count) < hidden_below
        ]


def noisy_counts(session: CountingSession, event: Event) -> Counts:
    """Spend the event on a count of each class, or of each finding.

    Privacy: unit as in the vault (a group counts with the average of its images); relation add/remove-one; sensitivity
    1 for classes, of which an image has one, and sqrt(F) for F findings, of which it may have all: the length of a row
    of ones; event one Gaussian, un-subsampled; assumes nothing of the images, which are not looked at.
    """
    facts = session.facts
    longest = math.sqrt(facts.classes) if facts.findings else 1.0

    def row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        if facts.findings:
            return labels.double()
        return (labels[:, None] == torch.arange(facts.classes)).double()

    noisy = session.gaussian_sum(row, event, clip_norm=longest)
    return Counts(
        noisy=noisy,
        deviation=event.noise_multiplier * longest,
        units=facts.units,
        findings=facts.findings,
    )


@torch.no_grad()
def make_even(head: nn.Linear, counts: Counts) -> None:
    """Take the classes' shares off the logits of a head: it then answers as if all classes were alike frequent."""
    if head.bias is None:
        raise VeilsetError("Expected a head with a bias to take the classes' shares off.")
    head.bias.sub_(counts.offsets().to(head.bias))
