"""An audit in one run: many canaries, each in or out by a coin of its own, and guesses about the coins.

Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run". Of m canaries each joins the training by a
fair coin; after it the auditor guesses r of the coins and abstains on the others. Let v guesses be right.

Why it bounds epsilon. Given the output and all coins but one, Bayes' rule turns the ratio of at most e^epsilon between
the output's likelihoods into odds of at most e^epsilon for the remaining coin. So under (epsilon, 0)-DP each guess is
right with probability at most q = e^epsilon / (1 + e^epsilon), whatever happened before it, and the number of right
guesses is below a Binomial(r, q) in the sense that its tail is nowhere larger. Under (epsilon, delta)-DP the tail grows
by at most (their Theorem 5.2, with a union over the canaries)

    P[v or more are right] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i,    W ~ Binomial(r, q).

The lower bound is the least epsilon at which this is not rarer than 1 - confidence. How many guesses are made is fixed
before the run. The bound holds for any scores; it is weaker than that of many runs, because one record's influence has
to be told from one output.
"""

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor
from torch.nn import functional

from veilset.audit.game import Finding, MakeNoise, MemoryLedger
from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.data.tensors import to_inputs
from veilset.methods.base import Context
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Event, Plan
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage, Session
from veilset.privacy.vault import PublicFacts, Vault
from veilset.teachers.config import TeacherSettings
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import plan_teacher

Numbers = NDArray[np.float64]

_COIN_VARIANCE = 0.25
_GUESSED = 0.25  # the share of the canaries that is guessed, half of them "in" and half "out"


def tail_bound(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses under (epsilon, delta)-DP."""
    if not 0 <= right <= guesses <= canaries:
        raise InputError(f"Expected right <= guesses <= canaries, got {right}, {guesses} and {canaries}.")
    rate = 1 / (1 + math.exp(-epsilon))
    below = binom.pmf(np.arange(right - 1, -1, -1), guesses, rate).cumsum()  # P[right > W >= right - i], i = 1, 2, ...
    slope = float((below / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, rate)) + 2 * canaries * delta * slope)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The least epsilon that does not make so many right guesses rarer than 1 - `confidence`."""
    low, high = 0.0, 1.0
    if tail_bound(canaries, guesses, right, 0.0, delta) >= 1 - confidence:
        return 0.0
    while tail_bound(canaries, guesses, right, high, delta) < 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = tail_bound(canaries, guesses, right, middle, delta) < 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def right_guesses(scores: Numbers, coins: NDArray[np.bool_], share: float = _GUESSED) -> tuple[int, int]:
    """How many guesses and how many right ones: the highest scores are said to be in, the lowest out."""
    each = max(1, round(share * len(scores) / 2))
    order = np.argsort(scores, kind="stable")
    return 2 * each, int((~coins[order[:each]]).sum() + coins[order[-each:]].sum())


class WatchedSession(Session):
    """A session whose noisy steps are seen by an auditor who knows every canary.

    What a step releases is sum_i coin_i gradient_i plus noise. With the coins taken as normal around one half, their
    posterior mean is a ridge regression, which keeps canaries that resemble each other apart.
    """

    def __init__(self, canaries: ImageSet, vault: Vault, plan: Plan, noise: NoiseSource) -> None:
        super().__init__(vault, plan, MemoryLedger(), noise)
        self.canaries = canaries
        self._precision = torch.eye(len(canaries), dtype=torch.float64) / _COIN_VARIANCE
        self._evidence = torch.full((len(canaries),), 0.5 / _COIN_VARIANCE, dtype=torch.float64)

    def scores(self) -> Numbers:
        """How likely each canary is in, after all steps."""
        solved: Numbers = torch.linalg.solve(self._precision, self._evidence).numpy()
        return solved

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> GradientSteps:
        """The real steps, watched."""
        real = super().gradient_steps(event, clip_norm=clip_norm, features=features)
        images, labels = torch.from_numpy(self.canaries.images.copy()), torch.from_numpy(self.canaries.labels.copy())
        with torch.no_grad():
            inputs = images if features is None else features(images, labels).float()
        return _WatchedSteps(real, inputs, labels, self._precision, self._evidence)


class _WatchedSteps(GradientSteps):
    """Adds what each step tells of the coins to the regression."""

    def __init__(
        self, real: GradientSteps, inputs: Tensor, labels: Tensor, precision: Tensor, evidence: Tensor
    ) -> None:
        self.__dict__ = real.__dict__
        self._inputs, self._labels = inputs, labels
        self._precision, self._evidence = precision, evidence

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[Tensor]:
        """The real step, seen."""
        if draws:
            raise VeilsetError("Expected steps without random numbers of their own: a canary's row must be one row.")
        rows = [_flat(clipped_sum(self._inputs[[i]], self._labels[[i]])) for i in range(len(self._labels))]
        released = super().step(clipped_sum)
        gradients = torch.stack(rows) * self.event.sampling_rate
        variance = (self.event.noise_multiplier * self.clip_norm) ** 2
        self._precision += gradients @ gradients.T / variance
        self._evidence += gradients @ _flat(released) / variance
        return released


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts]).double()


def canary_set(count: int, seed: int) -> ImageSet:
    """Images of random dots with random labels: nothing but themselves tells a model how to label them."""
    coins = numpy_generator(seed, "audit/canaries")
    images = coins.integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    return ImageSet(images, np.concatenate([np.arange(2), coins.integers(0, 2, count - 2)]))


def audit_teacher(
    epsilon: float,
    *,
    canaries: int = 400,
    steps: int = 40,
    confidence: float = 0.95,
    seed: int = 0,
    make_noise: MakeNoise = NoiseSource,
) -> list[Finding]:
    """Train one teacher (teachers) on canaries, and guess which were in: by its losses, and by every step."""
    start = time.perf_counter()
    everyone = canary_set(canaries, seed)
    inside = numpy_generator(seed, "audit/coins").random(canaries) < 0.5
    vault = Vault(everyone.subset(np.flatnonzero(inside)))
    # Both outcomes of a coin must declare the same number of records.
    vault.facts = PublicFacts(units=canaries, unit="record", shape=everyone.shape, class_names=("0", "1"))
    budget = Budget(epsilon, default_delta(canaries))
    plan = plan_teacher(vault.facts, budget, TeacherSettings(steps=steps))
    session = WatchedSession(everyone, vault, Plan(budget=budget, events=(plan.event,)), make_noise())
    teacher = train_teacher(session, plan, None, Context(seed=seed))
    with torch.no_grad():
        logits = teacher(to_inputs(torch.from_numpy(everyone.images.copy())))
    losses = functional.cross_entropy(logits, torch.from_numpy(everyone.labels.copy()), reduction="none").numpy()
    findings = []
    for view, scores in (("black box", -losses.astype(np.float64)), ("every step", session.scores())):
        bound = one_run_bound(canaries, *right_guesses(scores, inside), budget.delta, confidence)
        findings.append(
            Finding(
                name=f"teacher in one run, {view}",
                claimed_epsilon=epsilon_of([plan.event], budget.delta),
                lower_bound=bound,
                lower_bound_by_rates=bound,
                delta=budget.delta,
                confidence=confidence,
                runs=1,
                seconds=time.perf_counter() - start,
            )
        )
    return findings
