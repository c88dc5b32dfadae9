"""The DP-SGD loop (Abadi et al. 2016): clipped sums, noise, and then any optimizer.

Each step asks the session for a noisy sum over a fresh Poisson sample; the callback clips. All that follows the noise
(division by the expected batch, momentum, Adam, schedules, averages of iterates) is post-processing, and is kept in the
run's workspace whenever a lease of steps is used up, so that a run that was cut off goes on from there.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.dpsgd.clipping import ClippedGradients
from veilset.dpsgd.linear_head import LinearHeadGradients
from veilset.dpsgd.passes import Loss, cross_entropy
from veilset.dpsgd.settings import PrivateTraining
from veilset.privacy.events import Event
from veilset.privacy.rows import rows_of
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage
from veilset.privacy.shapes import fixed_batches
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import augment, augment_width
from veilset.training.settings import WeightAverage

Prepare = Callable[[Tensor], Tensor]
"""uint8 images (b, H, W, C) -> the model's inputs (b, ...), each from its own image alone."""

_PREPARED_AT_ONCE = 64


class GradientSession(Protocol):
    """What training needs of a `Session` (privacy/session.py)."""

    facts: PublicFacts

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> GradientSteps:
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


def train_private(
    session: GradientSession,
    model: nn.Module,
    event: Event,
    training: PrivateTraining,
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
    """Train `model` in place with the steps of `event` and return it. `loss` is cross-entropy per row unless given.

    `prepare` turns images into inputs (default: floats in [0, 1], channels first); a model that is one `nn.Linear`
    under the default loss takes the fast path of linear_head.py. `features` are fixed numbers of each image, computed
    once and kept inside the session; the model then reads them instead of images. `expected_batch` is the public number
    to divide by, sampling rate times units unless given (a shard of the vault expects fewer). `after_step` sees the
    model after each step, whose number counts from 1; that is post-processing.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity `training.clip_norm`; event `event`, as many
    Poisson-sampled Gaussians as it counts, paid before the first batch; assumes what `ClippedGradients` assumes, which
    is tried on random images first.
    """
    if features is not None and (training.augmentation is not None or training.copies > 1):
        raise InputError("Expected no augmentation and one copy with fixed features: there are no images to change.")
    gradients = _gradients(model, loss, training)
    prepare = prepare or (to_inputs if features is None else _as_they_are)
    clip = _clipper(gradients, training, prepare)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, event.label))
        shape = _try_on_random_images(gradients, training, prepare, features, session.facts)
        draws = training.copies * augment_width(training.augmentation, shape) if training.augmentation else 0
        make = make_optimizer or (lambda parameters: _optimizer(parameters, training))
        descent = _Descent(model, gradients.parameters, make(gradients.parameters), training, event.count)
        batch = expected_batch or event.sampling_rate * session.facts.units
        steps = session.gradient_steps(event, clip_norm=gradients.sensitivity, features=features)
        steps.resume(descent)
        model.train()
        for number in steps.each(descent, progress, event.label):
            descent.follow([total.div_(batch) for total in steps.step(clip, draws=draws)], number)
            if after_step is not None:
                after_step(number + 1, model)
        return descent.finished()


def to_inputs(images: Tensor) -> Tensor:
    """uint8 images (b, H, W, C) as floats in [0, 1], (b, C, H, W)."""
    return images.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255).contiguous()


def _as_they_are(rows: Tensor) -> Tensor:
    return rows


class _Descent:
    """The weights and what follows them: an optimizer and an average. All of it follows from noisy sums."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        training: PrivateTraining,
        steps: int,
    ) -> None:
        self._model, self._parameters, self._optimizer = model, parameters, optimizer
        self._training, self._steps = training, steps
        self._average, self._averaged = WeightAverage(model, training.ema_decay or None), 0
        self._averages_from = 0 if training.ema_decay else round(training.average_from * steps)
        self._factors = [group["lr"] / training.learning_rate for group in optimizer.param_groups]

    def follow(self, gradients: Sequence[Tensor], step: int) -> None:
        """One step down the noisy gradients."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
            group["lr"] = factor * self._training.rate_at(step, self._steps)
        self._optimizer.step()
        if step >= self._averages_from:
            self._average.update(self._model, self._averaged)
            self._averaged += 1

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        return {
            "weights": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": self._average.state,
            "averaged": self._averaged,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        self._model.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        for name, value in state["average"].items():
            self._average.state[name].copy_(value)
        self._averaged = state["averaged"]

    def finished(self) -> nn.Module:
        """The model with its last or average weights, ready to be used."""
        if self._averaged:
            self._model.load_state_dict(self._average.state)
        self._optimizer.zero_grad(set_to_none=True)
        return self._model.eval()


def _gradients(model: nn.Module, loss: Loss | None, training: PrivateTraining) -> Gradients:
    plain = training.copies == 1 and training.keep_fraction == 1 and training.mode != "per_layer"
    if type(model) is nn.Linear and loss is None and plain and all(p.requires_grad for p in model.parameters()):
        return LinearHeadGradients(model, training.clip_norm, automatic=training.mode == "automatic")
    return ClippedGradients(
        model,
        loss or cross_entropy,
        training.clip_norm,
        mode=training.mode,
        keep_fraction=training.keep_fraction,
        copies=training.copies,
        max_rows=training.max_rows,
    )


def _clipper(gradients: Gradients, training: PrivateTraining, prepare: Prepare) -> ClippedSum:
    device = gradients.parameters[0].device

    def inputs_of(images: Tensor, *numbers: Tensor) -> Tensor:
        """(units, copies, ...)"""
        inputs = prepare(images).repeat_interleave(training.copies, dim=0)
        if training.augmentation is not None:
            (own,) = numbers
            inputs = augment(inputs, training.augmentation, own.view(len(inputs), -1).to(inputs.device))
        return inputs.view(len(images), training.copies, *inputs.shape[1:])

    def clip(images: Tensor, labels: Tensor, *numbers: Tensor) -> Sequence[Tensor]:
        batches = fixed_batches((images, *numbers), _PREPARED_AT_ONCE, at_least_one=True)
        inputs = torch.cat([inputs_of(*batch)[:real] for batch, real in batches]).flatten(0, 1)
        targets = labels.repeat_interleave(training.copies, dim=0)
        return gradients.sum(inputs.to(device), targets.to(device))

    return clip


def _try_on_random_images(
    gradients: Gradients, training: PrivateTraining, prepare: Prepare, features: PerImage | None, facts: PublicFacts
) -> tuple[int, ...]:
    """Fail before anything is paid or read; the shape of one input."""
    device, rows = gradients.parameters[0].device, 3 * training.copies
    images = torch.randint(0, 256, (rows, *facts.shape), dtype=torch.uint8)
    labels = torch.arange(rows) % facts.classes
    with torch.no_grad():
        inputs = prepare(images if features is None else rows_of(features, images, labels))
    gradients.check(inputs.to(device), labels.to(device))
    return tuple(inputs.shape[1:])


def _optimizer(parameters: Iterable[nn.Parameter], training: PrivateTraining) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
