"""What a training run is made of: the settings, the schedule, the optimizer, the average of weights."""

import copy
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.training.augment import MILD, AugmentConfig

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["onecycle", "cosine"]

# Changes to images in training, by the names that people ask for.
CHANGES: dict[str, AugmentConfig | Literal["auto"] | None] = {"auto": "auto", "mild": MILD, "none": None}

_AUTO_IMAGES_SEEN = 300_000
_AUTO_EPOCHS = (6, 60)
_FEW_PASSES = 10


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The recipe. The defaults are for 5,000 to 60,000 small synthetic images; docs/training.md has the trials.

    Args:
        epochs: passes over the images; None sees about 300,000 images, in 6 to 60 passes.
        batch_size: images of a step.
        optimizer: "adamw", or "sgd" with Nesterov momentum.
        learning_rate: its peak; None is 0.004 for adamw and 0.1 for sgd.
        weight_decay: of the weight matrices and kernels; norms and biases have none.
        momentum: of sgd.
        schedule: "onecycle" (a linear rise, then a linear fall) or "cosine" (a short rise, then half a cosine).
        label_smoothing: of hard labels.
        temperature: softens soft labels and logits alike (Hinton et al., 2015); 1 leaves them.
        label_temperature: at which soft labels were made; logits are compared with them at the same one, so that the
            network is as sure as the teacher was.
        ema_decay: decay of a running average of the weights, which is then what is returned; 0 is none.
        augmentation: what happens to each batch; None is nothing. "auto" is mild changes, but nothing where soft labels
            are passed over at most ten times: they belong to the images as they are, and are not learnt by heart yet.
            A ScatterNet always sees images as they are.
        clip_norm: largest norm of a step's gradient, against rare exploding batches; 0 is none.
        channels_last: memory layout; a step of convnet is 1.6 times as quick with it (docs/training.md).
    """

    epochs: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = "adamw"
    learning_rate: float | None = None
    weight_decay: float = 0.02
    momentum: float = 0.9
    schedule: Schedule = "onecycle"
    label_smoothing: float = 0.05
    temperature: float = 1.0
    label_temperature: float = 1.0
    ema_decay: float = 0.0
    augmentation: AugmentConfig | Literal["auto"] | None = "auto"
    clip_norm: float = 0.0
    channels_last: bool = True

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer) or self.schedule not in get_args(Schedule):
            raise InputError(
                f"Expected optimizer adamw or sgd and schedule onecycle or cosine, got {self.optimizer!r} and "
                f"{self.schedule!r}."
            )
        if self.batch_size < 1 or (self.epochs is not None and self.epochs < 1):
            raise InputError(f"Expected epochs and batch_size of at least 1, got {self.epochs} and {self.batch_size}.")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise InputError(f"Expected learning_rate > 0, got {self.learning_rate}.")
        if not min(self.temperature, self.label_temperature) > 0:
            raise InputError(
                f"Expected temperature and label_temperature > 0, got {self.temperature} and {self.label_temperature}."
            )
        for name in ("label_smoothing", "ema_decay", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"Expected {name} in [0, 1), got {getattr(self, name)}.")
        if self.weight_decay < 0 or self.clip_norm < 0:
            raise InputError(f"Expected weight_decay and clip_norm >= 0, got {self.weight_decay} and {self.clip_norm}.")

    def epochs_for(self, count: int) -> int:
        """Passes over `count` images."""
        if self.epochs is not None:
            return self.epochs
        least, most = _AUTO_EPOCHS
        return min(most, max(least, round(_AUTO_IMAGES_SEEN / max(1, count))))

    def changes_for(self, count: int, *, soft_labels: bool) -> AugmentConfig | None:
        """What happens to each batch of `count` images."""
        if self.augmentation == "auto":
            return None if soft_labels and self.epochs_for(count) <= _FEW_PASSES else MILD
        return self.augmentation

    def steps_for(self, count: int) -> int:
        """Optimizer steps on `count` images."""
        return self.epochs_for(count) * (count // max(1, min(self.batch_size, count)))


def rate_share(step: int, total: int, schedule: Schedule) -> float:
    """The share of the peak learning rate at `step` of `total`."""
    rise = max(1, round(total * (0.25 if schedule == "onecycle" else 0.05)))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise + 1) / (total - rise + 1)
    return 1 - done if schedule == "onecycle" else 0.5 * (1 + math.cos(math.pi * done))


class WeightAverage:
    """An average of weights and float buffers over steps.

    Args:
        network: whose `state_dict` is averaged; `state` has the same form.
        decay: of an exponential moving average, quick to forget the random start; None averages all updates alike
            (Polyak and Juditsky 1992).
    """

    def __init__(self, network: nn.Module, decay: float | None) -> None:
        self.decay = decay
        self.state = copy.deepcopy(network.state_dict())

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Take in the weights after `step`, counted from 0 at the first update."""
        share = 1 / (1 + step) if self.decay is None else 1 - min(self.decay, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                self.state[name].lerp_(value, share)
            else:
                self.state[name].copy_(value)


def make_optimizer(network: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer, with weight decay on matrices and kernels only."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("Expected a network with parameters to train, got none that require a gradient.")
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate or 0.004, betas=(0.9, 0.99))
    return torch.optim.SGD(
        groups, lr=config.learning_rate or 0.1, momentum=config.momentum, nesterov=config.momentum > 0
    )
