"""The DP-SGD loop (Abadi et al. 2016): clipped sums, noise, and then any optimizer.

Each step asks the session for a noisy sum over a fresh Poisson sample; the callback clips. All that follows the noise
(division by the expected batch, momentum, Adam, schedules, averages of iterates) is post-processing, and is kept in the
run's workspace whenever a lease of steps is used up, so that a run that was cut off goes on from there.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.core.ranges import RATES, require_range
from veilset.dpsgd.clipping import ClippedGradients, Mode
from veilset.dpsgd.linear_head import LinearHeadGradients
from veilset.dpsgd.passes import Loss
from veilset.privacy.events import LEAST_NOISE, MOST_NOISE
from veilset.privacy.rows import require_clip_norm
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage
from veilset.privacy.shapes import in_fixed_batches
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import AugmentConfig, augment, augment_width
from veilset.training.settings import WeightAverage

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "linear", "cosine"]
Prepare = Callable[[Tensor], Tensor]
"""uint8 images (b, H, W, C) -> the model's inputs (b, ...), each from its own image alone."""

_PREPARED_AT_ONCE = 64


class GradientSession(Protocol):
    """What training needs of a `Session` (privacy/session.py)."""

    facts: PublicFacts

    def gradient_steps(
        self,
        *,
        label: str,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float,
        steps: int,
        features: PerImage | None = None,
    ) -> GradientSteps:
        """Pay for a run of noisy sums."""


class Gradients(Protocol):
    """What clips: `ClippedGradients` or `LinearHeadGradients`."""

    parameters: list[nn.Parameter]

    @property
    def sensitivity(self) -> float:
        """The L2 bound of one unit's contribution."""

    def check(self, inputs: Tensor, targets: Tensor) -> None:
        """Try public rows."""

    def sum(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Clip and sum."""


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """The recipe of a private run. All of it is public.

    Args:
        noise_multiplier: noise over clip norm.
        sampling_rate: with which each unit is in a batch; see `sampling_rate_for`.
        steps: number of noisy sums.
        clip_norm, mode, keep_fraction, copies, max_rows: as in `ClippedGradients`.
        optimizer: "sgd" with `momentum`, or "adam"; `train_private` also takes one of the caller's own.
        learning_rate: its peak.
        schedule: "constant", or down to zero by a "linear" or "cosine" path, after `warmup` (a share of the steps).
        weight_decay: of the optimizer.
        ema_decay: return a moving average of the weights; 0 is none.
        average_from: return the plain average of the iterates after this share of the steps; 1 is none.
        augmentation: of each batch, from numbers that the session draws for each unit; `copies` above 1 need it.
        label: of the event in the ledger.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    clip_norm: float = 1.0
    mode: Mode = "flat"
    keep_fraction: float = 1.0
    copies: int = 1
    max_rows: int | None = None
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup: float = 0.0
    ema_decay: float = 0.0
    average_from: float = 1.0
    augmentation: AugmentConfig | None = None
    label: str = "dp-sgd"

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise InputError(
                f"Expected 0 < sampling_rate <= 1, got {self.sampling_rate}: a batch larger than the vault?"
            )
        if self.steps < 1:
            raise InputError(f"Expected steps >= 1, got {self.steps}.")
        require_clip_norm(self.clip_norm, repr(self.label))
        require_range("noise_multiplier", self.noise_multiplier, LEAST_NOISE, MOST_NOISE)
        require_range("learning_rate", self.learning_rate, *RATES)
        require_range("weight_decay", self.weight_decay, 0, RATES[1])
        require_range("momentum", self.momentum, 0, 1)
        for name, value, known in (
            ("optimizer", self.optimizer, get_args(Optimizer)),
            ("schedule", self.schedule, get_args(Schedule)),
        ):
            if value not in known:
                raise InputError(f"Expected {name} to be one of {', '.join(known)}, got {value!r}.")
        shares = {"ema_decay": self.ema_decay, "average_from": self.average_from, "warmup": self.warmup}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise InputError(f"Expected {name} between 0 and 1, got {share}.")
        if self.ema_decay and self.average_from < 1:
            raise InputError("Expected ema_decay or average_from, got both. Set one.")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rise = round(self.warmup * self.steps)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        done = (step - rise) / max(1, self.steps - rise)
        shares = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return self.learning_rate * shares[self.schedule]


def sampling_rate_for(batch_size: int, units: int) -> float:
    """The rate at which a Poisson batch has `batch_size` units on average."""
    if not 1 <= batch_size <= units:
        raise InputError(f"Expected a batch of 1 to {units} units, got {batch_size}. The vault holds no more.")
    return batch_size / units


def train_private(
    session: GradientSession,
    model: nn.Module,
    config: PrivateTraining,
    *,
    loss: Loss | None = None,
    prepare: Prepare | None = None,
    features: PerImage | None = None,
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    expected_batch: float | None = None,
    after_step: Callable[[int, nn.Module], None] | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> nn.Module:
    """Train `model` in place and return it. `loss` is cross-entropy per row unless given.

    `prepare` turns images into inputs (default: floats in [0, 1], channels first); a model that is one `nn.Linear`
    under the default loss takes the fast path of linear_head.py. `features` are fixed numbers of each image, computed
    once and kept inside the session; the model then reads them instead of images. `expected_batch` is the public number
    to divide by, sampling_rate * units unless given (a shard of the vault expects fewer). `after_step` sees the model
    after each step, whose number counts from 1; that is post-processing.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity `config.clip_norm`; event `config.steps`
    Poisson-sampled Gaussians, paid before the first batch; assumes what `ClippedGradients` assumes, which is tried on
    random images first.
    """
    if features is not None and (config.augmentation is not None or config.copies > 1):
        raise InputError("Expected no augmentation and one copy with fixed features: there are no images to change.")
    gradients = _gradients(model, loss, config)
    prepare = prepare or (to_inputs if features is None else _as_they_are)
    clip = _clipper(gradients, config, prepare)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, config.label))
        shape = _try_on_random_images(gradients, config, prepare, features, session.facts)
        draws = config.copies * augment_width(config.augmentation, shape) if config.augmentation else 0
        make = make_optimizer or (lambda parameters: _optimizer(parameters, config))
        optimizer = make(gradients.parameters)
        batch = expected_batch or config.sampling_rate * session.facts.units
        steps = session.gradient_steps(
            label=config.label,
            clip_norm=gradients.sensitivity,
            noise_multiplier=config.noise_multiplier,
            sampling_rate=config.sampling_rate,
            steps=config.steps,
            features=features,
        )
        return _loop(steps, model, gradients.parameters, optimizer, clip, draws, batch, config, after_step, progress)


def to_inputs(images: Tensor) -> Tensor:
    """uint8 images (b, H, W, C) as floats in [0, 1], (b, C, H, W)."""
    return images.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255).contiguous()


def _as_they_are(rows: Tensor) -> Tensor:
    return rows


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each row."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def _loop(
    steps: GradientSteps,
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    clip: ClippedSum,
    draws: int,
    expected_batch: float,
    config: PrivateTraining,
    after_step: Callable[[int, nn.Module], None] | None,
    progress: Progress,
) -> nn.Module:
    average, averaged = WeightAverage(model, config.ema_decay or None), 0
    averages_from = 0 if config.ema_decay else round(config.average_from * config.steps)
    factors = [group["lr"] / config.learning_rate for group in optimizer.param_groups]
    earlier = steps.kept()
    if earlier is not None:
        model.load_state_dict(earlier["weights"])
        optimizer.load_state_dict(earlier["optimizer"])
        for name, value in earlier["average"].items():
            average.state[name].copy_(value)
        averaged = earlier["averaged"]
    model.train()
    with progress.task(config.label, steps.steps_left) as task:
        for step in range(config.steps - steps.steps_left, config.steps):
            noisy = steps.step(clip, draws=draws)
            for parameter, total in zip(parameters, noisy, strict=True):
                parameter.grad = total.div_(expected_batch)
            for group, factor in zip(optimizer.param_groups, factors, strict=True):
                group["lr"] = factor * config.rate_at(step)
            optimizer.step()
            if step >= averages_from:
                average.update(model, averaged)
                averaged += 1
            if after_step is not None:
                after_step(step + 1, model)
            if steps.lease_used_up:
                # All of it follows from noisy sums; steps that were leased and lost are not taken again.
                state = {"weights": model.state_dict(), "optimizer": optimizer.state_dict()}
                steps.keep(state | {"average": average.state, "averaged": averaged})
            task.advance()
    if averaged:
        model.load_state_dict(average.state)
    optimizer.zero_grad(set_to_none=True)
    return model.eval()


def _gradients(model: nn.Module, loss: Loss | None, config: PrivateTraining) -> Gradients:
    plain = config.copies == 1 and config.keep_fraction == 1 and config.mode != "per_layer"
    if type(model) is nn.Linear and loss is None and plain and all(p.requires_grad for p in model.parameters()):
        return LinearHeadGradients(model, config.clip_norm, automatic=config.mode == "automatic")
    return ClippedGradients(
        model,
        loss or cross_entropy,
        config.clip_norm,
        mode=config.mode,
        keep_fraction=config.keep_fraction,
        copies=config.copies,
        max_rows=config.max_rows,
    )


def _clipper(gradients: Gradients, config: PrivateTraining, prepare: Prepare) -> ClippedSum:
    device = gradients.parameters[0].device

    def inputs_of(images: Tensor, *numbers: Tensor) -> Tensor:
        """(units, copies, ...)"""
        inputs = prepare(images).repeat_interleave(config.copies, dim=0)
        if config.augmentation is not None:
            (own,) = numbers
            inputs = augment(inputs, config.augmentation, own.view(len(inputs), -1).to(inputs.device))
        return inputs.view(len(images), config.copies, *inputs.shape[1:])

    def clip(images: Tensor, labels: Tensor, *numbers: Tensor) -> Sequence[Tensor]:
        inputs = in_fixed_batches(inputs_of, (images, *numbers), _PREPARED_AT_ONCE).flatten(0, 1)
        targets = labels.repeat_interleave(config.copies, dim=0)
        return gradients.sum(inputs.to(device), targets.to(device))

    return clip


def _try_on_random_images(
    gradients: Gradients, config: PrivateTraining, prepare: Prepare, features: PerImage | None, facts: PublicFacts
) -> tuple[int, ...]:
    """Fail before anything is paid or read; the shape of one input."""
    device, rows = gradients.parameters[0].device, 3 * config.copies
    images = torch.randint(0, 256, (rows, *facts.shape), dtype=torch.uint8)
    labels = torch.arange(rows) % facts.classes
    with torch.no_grad():
        inputs = prepare(images if features is None else features(images, labels))
    gradients.check(inputs.to(device), labels.to(device))
    return tuple(inputs.shape[1:])


def _optimizer(parameters: Iterable[nn.Parameter], config: PrivateTraining) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )
