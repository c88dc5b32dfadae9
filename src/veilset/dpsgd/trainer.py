"""The DP-SGD loop (Abadi et al. 2016): clipped sums, noise, and then any optimizer.

Each step asks the session for a noisy sum over a fresh Poisson sample; the callback clips. All that follows the noise
(division by the expected batch, momentum, Adam, schedules, averages of iterates) is post-processing, and is kept in the
run's workspace whenever a lease of steps is used up, so that a run that was cut off goes on from there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.data.tensors import to_inputs
from veilset.dpsgd.clipping import ClippedGradients
from veilset.dpsgd.linear_head import LinearHeadGradients
from veilset.dpsgd.passes import FindingsLoss, Loss, cross_entropy
from veilset.dpsgd.settings import PrivateTraining
from veilset.privacy.events import Event
from veilset.privacy.rows import fixed_batches, random_images, rows_of
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import augment, augment_width
from veilset.training.settings import WeightAverage

Prepare = Callable[[Tensor], Tensor]
"""uint8 images (b, H, W, C) -> the model's inputs (b, ...), each from its own image alone."""

_PREPARED_AT_ONCE = 64


class Training(Protocol):
    """What follows from noisy sums alone: weights, the state of an optimizer, averages."""

    def state(self) -> Mapping[str, Any]:
        """All that a resumed run needs to go on: tensors and plain data."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""


class PaidSteps(Protocol):
    """What a loop needs of a session's `GradientSteps` or `Critics`, whose steps are paid for."""

    @property
    def total(self) -> int:
        """All steps."""

    @property
    def steps_left(self) -> int:
        """Those that are still to come."""

    @property
    def keeps_now(self) -> bool:
        """Whether a state is to be kept now."""

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep it."""

    def kept(self) -> dict[str, Any] | None:
        """The last state that an earlier part of this run kept."""


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
    under the default loss or a `FindingsLoss` takes the fast path of linear_head.py. `features` are fixed numbers of
    each image, computed once and kept inside the session; the model then reads them instead of images. `expected_batch`
    is the public number to divide by, sampling rate times units unless given (a shard of the vault expects fewer).
    `after_step` sees the model after each step, whose number counts from 1; that is post-processing.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity `training.clip_norm`; event `event`, as many
    Poisson-sampled Gaussians as it counts, with independent or correlated noise, paid before the first batch;
    assumes what `ClippedGradients` assumes, which is tried on random images first.
    """
    if features is not None and (prepare or training.augmentation is not None or training.copies > 1):
        raise InputError(
            "Expected no preparation, no augmentation and one copy with fixed features: they are not images."
        )
    gradients = _gradients(model, loss, training)
    prepare = prepare or to_inputs
    clip = _clipper(gradients, training, prepare) if features is None else _clipper_of_rows(gradients)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, event.label))
        shape = _try_on_random_images(gradients, training, prepare, features, session.facts)
        draws = training.copies * augment_width(training.augmentation, shape) if training.augmentation else 0
        make = make_optimizer or (lambda parameters: _optimizer(parameters, training))
        descent = _Descent(model, gradients.parameters, make(gradients.parameters), training, event.steps)
        batch = expected_batch or event.sampling_rate / event.bands * session.facts.units
        steps = session.gradient_steps(event, clip_norm=gradients.sensitivity, features=features)
        steps.momentum = training.momentum if training.optimizer == "sgd" and make_optimizer is None else 0.0
        resume(steps, descent)
        model.train()
        for number in each_step(steps, descent, progress, event.label):
            descent.follow([total.div_(batch) for total in steps.step(clip, draws=draws)], number)
            if after_step is not None:
                after_step(number + 1, model)
        return descent.finished()


def resume(steps: PaidSteps, training: Training) -> bool:
    """Load the last state that an earlier part of this run kept; False where there is none."""
    state = steps.kept()
    if state is not None:
        training.load(state)
    return state is not None


def each_step(steps: PaidSteps, training: Training, progress: Progress, name: str) -> Iterator[int]:
    """The number of every step that is still to take, counted from 0 over the whole run; the caller takes it.

    The state of `training` is kept when the steps say so. Steps that were leased and lost are not taken again.
    """
    with progress.task(name, steps.steps_left) as task:
        while steps.steps_left:
            left = steps.steps_left
            yield steps.total - left
            taken = left - steps.steps_left
            if taken != 1:
                raise VeilsetError(f"Expected one step of {name!r} in each turn of its loop, got {taken}. Report this.")
            if steps.keeps_now:
                steps.keep(training.state())
            task.advance()


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
    whole = training.keep_fraction == 1 and not training.keep_signs
    plain = training.copies == 1 and whole and training.mode != "per_layer"
    known = loss if isinstance(loss, FindingsLoss) else None
    if type(model) is nn.Linear and loss is known and plain and all(p.requires_grad for p in model.parameters()):
        return LinearHeadGradients(model, training.clip_norm, loss=known, automatic=training.mode == "automatic")
    return ClippedGradients(
        model,
        loss or cross_entropy,
        training.clip_norm,
        mode=training.mode,
        keep_fraction=training.keep_fraction,
        keep_signs=training.keep_signs,
        copies=training.copies,
        max_rows=training.max_rows,
    )


def _clipper_of_rows(gradients: Gradients) -> ClippedSum:
    device = gradients.parameters[0].device
    return lambda rows, labels: gradients.sum(rows.to(device), labels.to(device))


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
    device = gradients.parameters[0].device
    images, labels = random_images(3 * training.copies, facts)
    with torch.no_grad():
        inputs = prepare(images) if features is None else rows_of(features, images, labels)
    gradients.check(inputs.to(device), labels.to(device))
    return tuple(inputs.shape[1:])


def _optimizer(parameters: Iterable[nn.Parameter], training: PrivateTraining) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
