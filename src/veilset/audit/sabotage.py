"""Fourteen broken twins of real steps. The audit has to contradict the claim of every one.

Nothing below `audit` can import this file, and a test checks that nobody else does. Each twin keeps the claim of the
sound step and breaks one thing. Where it can, it breaks a part (the noise, the clipping, what a step sums) and leaves
the rest to the real session; published steps that have no sound form are re-enacted from their papers' text.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from veilset.audit.bounds import Scores
from veilset.audit.game import Finding, MakeNoise, Subject, Worlds, conclude, play
from veilset.audit.mechanisms import dots, gaussian_sum, pixels, priced
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import ClippedSum, Session

_DELTA = 1e-5
_CLIP = 0.1
_OTHERS = 15

Twin = Callable[[int, MakeNoise], tuple[Scores, Plan]]


class _Altered(NoiseSource):
    """A source whose normal variates are multiplied by a factor that nobody accounts for."""

    def __init__(self, source: NoiseSource, factor: float) -> None:
        super().__init__(0)
        self._source, self._factor = source, factor

    def bits(self, count: int) -> NDArray[np.uint64]:
        return self._source.bits(count)

    def normal(self, count: int) -> Tensor:
        return self._factor * super().normal(count)


def noise_removed(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """The sum is released as it is."""
    subject = gaussian_sum(1.0)
    return play(subject, runs, lambda: _Altered(make_noise(), 0.0)), subject.plan


def noise_halved(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """Half of the noise that was paid for."""
    subject = gaussian_sum(1.0)
    return play(subject, runs, lambda: _Altered(make_noise(), 0.5)), subject.plan


def fixed_seed(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:  # noqa: ARG001
    """Every run draws the same noise: whoever knows the code subtracts it."""
    subject = gaussian_sum(1.0)

    class Repeating(NoiseSource):
        def normal(self, count: int) -> Tensor:
            return NoiseSource(7).normal(count)

    return play(subject, runs, lambda: Repeating(7)), subject.plan


def clip_removed(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """Per-record gradients of any length are summed."""
    return _step(runs, make_noise, lambda images, labels: [pixels(images, labels).sum(dim=0)])


def clip_per_batch(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """The sum of a batch is clipped as a whole: one record can turn it around, by twice the clip norm."""

    def clipped(images: Tensor, labels: Tensor) -> list[Tensor]:
        directions = torch.where(labels == 0, 1.0, -2.0 * len(images))
        total = (pixels(images, labels).amax(dim=1) * directions).sum().reshape(1)
        return [total * (_CLIP / total.abs().clamp(min=_CLIP))]

    return _step(runs, make_noise, clipped, worlds=_alike_and_one())


def batch_norm(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """BatchNorm before the layer: every record's gradient moves with the mean and variance of all."""

    def clipped(images: Tensor, labels: Tensor) -> list[Tensor]:
        inputs = functional.batch_norm(images.flatten(1).float(), None, None, training=True)
        errors = 0.5 - functional.one_hot(labels * 0, 2).float()  # of a softmax at zero weights
        return [_clip_rows(errors[:, :, None] * inputs[:, None, :]).sum(dim=0)]

    return _step(runs, make_noise, clipped, worlds=_alike_and_one())


def private_mean(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """Records are centred by the mean of all: one record moves every other before the clip."""

    def clipped(images: Tensor, labels: Tensor) -> list[Tensor]:
        rows = pixels(images, labels)
        return [_clip_rows(rows - rows.mean(dim=0)).sum(dim=0)]

    return _step(runs, make_noise, clipped, worlds=_alike_and_one())


def dpaf_layers_without_noise(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """DPAF, Algorithm 1, line 4: DPSGD on conv1 beside layers that plain SGD trains on the same records.

    The second layer is a number w. Plain SGD on a batch with one strong record turns its sign, and with it the clipped
    gradient of the first layer for every record.
    """

    def clipped(images: Tensor, labels: Tensor) -> list[Tensor]:
        rows, targets = pixels(images, labels), torch.where(labels == 0, 1.0, -50.0)
        hidden = rows.mean(dim=1)
        w = 0.1
        w = w - 0.1 * float(((w * hidden - targets) * hidden).sum())
        return [_clip_rows(((w * hidden - targets) * w)[:, None] * rows).sum(dim=0)]

    return _step(runs, make_noise, clipped, worlds=_alike_and_one())


def dpaf_aggregate_without_noise(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """DPAF, Algorithm 1, lines 12 and 14: conv2* through the aggregate without noise.

    The upstream gradient, here a direction, points from the generated aggregate to the real one. Where the two are
    close, one record turns it, and with it the clipped gradient of every record.
    """
    generated = _OTHERS * _CLIP / math.sqrt(40) + 0.1 * _CLIP  # a hair above what the others' lower halves add up to

    def clipped(images: Tensor, labels: Tensor) -> list[Tensor]:
        rows = _clip_rows(pixels(images, labels))
        upstream = torch.sign(rows[:, 8:].mean(dim=1).sum() - generated)
        return [(upstream * rows).sum(dim=0)]

    return _step(runs, make_noise, clipped, worlds=_alike_and_one())


def imgsyn_statistics_without_noise(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """DP-ImgSyn: mean and mean square of a layer's inputs, released beside a private teacher and within its epsilon."""
    plan = priced(1.0, Event(label="teacher and statistics", noise_multiplier=1.0))
    event = plan.events[0]

    def moments(images: Tensor, labels: Tensor) -> Tensor:
        maps = pixels(images, labels).reshape(len(images), 4, 4)
        return torch.cat([maps.mean(dim=2), maps.square().mean(dim=2)], dim=1)

    def spend(session: Session) -> None:
        session.gaussian_sum(moments, event, clip_norm=1.0)

    subject = Subject(name="", plan=plan, worlds=dots(), spend=spend)
    return play(subject, runs, lambda: _Altered(make_noise(), 0.0)), plan


def gs_wgan_batch_factor(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """GS-WGAN: one critic is drawn per iteration and used for B rows, yet accounted as B fresh draws.

    Rows are clipped to C = 1 and a record may turn those of its critic around, so the sensitivity is 2.
    """
    critics, batch, iterations = 10, 32, 4
    plan = priced(4.0, Event(label="rows", noise_multiplier=1.0, sampling_rate=1 / critics, count=batch * iterations))
    spread = 2 * plan.events[0].noise_multiplier

    def score(*, present: bool) -> NDArray[np.float64]:
        noise = make_noise()
        drawn = noise.coins(runs * iterations, 1 / critics) & present
        rows = np.where(drawn, 1.0, -1.0)[:, None] + spread * _normals(noise, runs * iterations, batch)
        ratios = 2 * rows.sum(axis=1) / spread**2
        mixed = np.logaddexp(math.log1p(-1 / critics), math.log(1 / critics) + ratios)
        return np.asarray(mixed.reshape(runs, iterations).sum(axis=1))

    return _both(score), plan


def one_critic_for_all(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """The thesis' WGAN: one critic sees all records at every step, yet each step is accounted as a sample of B of n."""
    records, batch, iterations = 1000, 32, 5
    plan = priced(4.0, Event(label="rows", noise_multiplier=1.0, sampling_rate=batch / records, count=iterations))
    spread = 2 * plan.events[0].noise_multiplier  # a record may turn each row around, and that is accounted for

    def score(*, present: bool) -> NDArray[np.float64]:
        rows = _normals(make_noise(), runs, iterations * batch) * spread + (1.0 if present else -1.0)
        return np.asarray(rows.sum(axis=1))

    return _both(score), plan


def dpdfd_noise_scale(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """DPDFD: the noise is N(0, sigma^2 C^2), the theorem's sigma^2: too small by C^2.

    Algorithm 1, line 9, and Theorem 5 with the paper's numbers (C = 1e-3, sigma = 100, B = 256, 10 classes). The
    theorem says 2 C^2 n B T lambda / sigma^2, i.e. one Gaussian of multiplier sigma / (2 C sqrt(n B T)). Even by the
    paper's own neighbours, one of B synthetic records, each sum moves by 2 C against noise of sigma C.
    """
    clip, sigma, batch, classes, iterations = 1e-3, 100.0, 256, 10, 2000
    claimed = sigma / (2 * clip * math.sqrt(classes * batch * iterations))
    plan = Plan(budget=Budget(1.0, _DELTA), events=(Event(label="distillation", noise_multiplier=claimed),))

    def score(*, present: bool) -> NDArray[np.float64]:
        noise, moved = make_noise(), clip if present else -clip
        # The coordinate along which the record's gradient turns around; in the others nothing moves.
        return np.array([(moved + sigma * clip * noise.normal(iterations)).sum().item() for _ in range(runs)])

    return _both(score), plan


def shuffled_as_poisson(runs: int, make_noise: MakeNoise) -> tuple[Scores, Plan]:
    """Slices of a shuffled list, accounted as Poisson samples: without the record, the last slice is one short.

    The others contribute -1, the record +1. Whoever removes a record shifts the slices, and which slice is the last is
    known, so nothing is amplified.
    """
    records, batch = 100, 10
    steps = records // batch
    plan = priced(2.0, Event(label="epoch", noise_multiplier=1.0, sampling_rate=batch / records, count=steps))
    spread = plan.events[0].noise_multiplier
    # What each step sums without the record, and with it in one of the slices, which is the one that differs by 2.
    absent = np.full(steps, -float(batch))
    absent[-1] += 1
    ways = 2 * np.eye(steps) - batch

    def score(*, present: bool) -> NDArray[np.float64]:
        noise, count = make_noise(), records if present else records - 1
        values = np.full(count, -1.0)
        values[0] = 1.0 if present else -1.0
        released = np.empty((runs, steps))
        for run in range(runs):
            shuffled = values[np.argsort(noise.bits(count))]
            sums = [shuffled[start : start + batch].sum() for start in range(0, count, batch)]
            released[run] = np.array(sums) + spread * noise.normal(steps).numpy()
        likelihoods = (released @ ways.T - (ways**2).sum(axis=1) / 2) / spread**2
        return np.asarray(
            np.logaddexp.reduce(likelihoods, axis=1) - (released @ absent - (absent**2).sum() / 2) / spread**2
        )

    return _both(score), plan


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """A twin, and how many runs of each kind show it."""

    name: str
    twin: Twin
    runs: int


SABOTAGES: tuple[Sabotage, ...] = tuple(
    Sabotage(name=name, twin=twin, runs=runs)
    for name, twin, runs in (
        ("noise removed", noise_removed, 500),
        ("noise halved", noise_halved, 2000),
        ("clip removed", clip_removed, 500),
        ("clip per batch instead of per record", clip_per_batch, 1000),
        ("the B factor dropped (GS-WGAN)", gs_wgan_batch_factor, 2000),
        ("one critic for all shards", one_critic_for_all, 500),
        ("noise too small by C (DPDFD)", dpdfd_noise_scale, 1000),
        ("co-trained layers without noise (DPAF)", dpaf_layers_without_noise, 500),
        ("aggregate without noise upstream (DPAF)", dpaf_aggregate_without_noise, 500),
        ("statistics without noise (DP-ImgSyn)", imgsyn_statistics_without_noise, 500),
        ("shuffled batches accounted as Poisson", shuffled_as_poisson, 2000),
        ("a fixed seed", fixed_seed, 500),
        ("BatchNorm slipped in", batch_norm, 500),
        ("normalisation by the private mean", private_mean, 500),
    )
)


def try_sabotage(
    sabotage: Sabotage, *, confidence: float = 0.95, runs: int | None = None, make_noise: MakeNoise = NoiseSource
) -> Finding:
    """Audit the twin against the claim of the sound step."""
    runs = runs or sabotage.runs
    return conclude(sabotage.name, lambda: sabotage.twin(runs, make_noise), runs, confidence)


def _step(runs: int, make_noise: MakeNoise, clipped: ClippedSum, worlds: Worlds | None = None) -> tuple[Scores, Plan]:
    """One full step of the real `GradientSteps` around a sum that is not clipped as it should be."""
    plan = priced(4.0, Event(label="step", noise_multiplier=1.0))
    event = plan.events[0]

    def spend(session: Session) -> None:
        session.gradient_steps(event, clip_norm=_CLIP).step(clipped)

    subject = Subject(name="", plan=plan, worlds=worlds or dots(), spend=spend)
    return play(subject, runs, make_noise), plan


def _alike_and_one() -> Worlds:
    """Grey images that are all alike, and one that is bright where they are dark."""
    images = np.full((_OTHERS + 1, 4, 4, 1), 20, dtype=np.uint8)
    images[:, :2] = 40
    images[-1] = 0
    images[-1, 2:] = 255
    return Worlds(images=images, labels=(np.arange(_OTHERS + 1) == _OTHERS).astype(np.int64), classes=2)


def _clip_rows(rows: Tensor) -> Tensor:
    lengths = rows.flatten(1).norm(dim=1).clamp(min=_CLIP)
    shorter: Tensor = rows * (_CLIP / lengths).reshape(-1, *[1] * (rows.ndim - 1))
    return shorter


def _normals(noise: NoiseSource, rows: int, width: int) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = noise.normal(rows * width).numpy().reshape(rows, width)
    return drawn


def _both(score: Callable[..., NDArray[np.float64]]) -> Scores:
    return Scores(without=score(present=False), present=score(present=True))
