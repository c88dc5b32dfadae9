"""What a training run is made of: the settings, the schedule, the optimizer, the average of weights."""

import copy
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.core.settings import Auto, Settings, setting
from veilset.training.augment import MILD, AugmentConfig

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["onecycle", "cosine", "steps"]

# Changes to images in training, by the names that people ask for.
CHANGES: dict[str, AugmentConfig | Auto | None] = {"auto": "auto", "mild": MILD, "none": None}

_AUTO_IMAGES_SEEN = 300_000
_AUTO_EPOCHS = (6, 60)
_FEW_PASSES = 10
_RATES = {"adamw": 0.004, "sgd": 0.1}


class TrainingConfig(Settings):
    """How a classifier is trained; docs/notes/training.md has the trials of the defaults."""

    epochs: int | Auto = setting(
        "auto", "Passes over the images; auto sees about 300,000 images, in 6 to 60 passes.", least=1
    )
    batch_size: int = setting(128, "Images of a step.", least=1)
    optimizer: Optimizer = setting("adamw", "The optimizer; sgd has Nesterov momentum.")
    learning_rate: float | Auto = setting("auto", "Its peak; auto is 0.004 for adamw and 0.1 for sgd.", above=0)
    weight_decay: float = setting(0.02, "Of weight matrices and kernels; norms and biases have none.", least=0)
    momentum: float = setting(0.9, "Of sgd.", least=0, below=1)
    schedule: Schedule = setting(
        "onecycle",
        "A linear rise and a linear fall (onecycle), a short rise and half a cosine (cosine), or the full rate, a "
        "tenth of it after each milestone (steps).",
    )
    milestones: tuple[float, ...] = setting(
        (0.6, 0.75, 0.9), "Shares of the training after which the rate of the schedule steps falls to a tenth."
    )
    label_smoothing: float = setting(0.05, "Of hard labels.", least=0, below=1)
    temperature: float = setting(
        1.0, "Softens soft labels and logits alike (Hinton et al., 2015); 1 leaves them.", above=0
    )
    label_temperature: float = setting(
        1.0,
        "At which soft labels were made; logits are compared with them at the same one, so that the network is as sure "
        "as the teacher was.",
        above=0,
    )
    ema_decay: float = setting(
        0.0, "Decay of a running average of the weights, which is then returned; 0 is none.", least=0, below=1
    )
    augmentation: AugmentConfig | Auto | None = setting(
        "auto",
        "What happens to each batch; none is nothing. auto is mild changes, but nothing where soft labels are passed "
        "over at most ten times: they belong to the images as they are, and are not learnt by heart yet. A ScatterNet "
        "always sees images as they are.",
    )
    clip_norm: float = setting(
        0.0, "Largest norm of a step's gradient, against rare exploding batches; 0 is none.", least=0
    )
    channels_last: bool = setting(
        True, "Memory layout; a step of convnet is 1.6 times as quick with it (docs/how_to/training.md)."
    )

    def epochs_for(self, count: int) -> int:
        """Passes over `count` images."""
        if self.epochs != "auto":
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


def rate_share(step: int, total: int, schedule: Schedule, milestones: tuple[float, ...] = ()) -> float:
    """The share of the peak learning rate at `step` of `total`."""
    if schedule == "steps":
        return 0.1 ** sum(step >= share * total for share in milestones)
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
    named = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    if not named:
        raise InputError("Expected a network with parameters to train, got none that require a gradient.")
    peak = _RATES[config.optimizer] if config.learning_rate == "auto" else config.learning_rate
    grouped: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, value in named:
        decay = config.weight_decay if value.ndim > 1 else 0.0
        grouped.setdefault((peak * _share_of_rate(network, name), decay), []).append(value)
    groups = [{"params": values, "lr": rate, "weight_decay": decay} for (rate, decay), values in grouped.items()]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.99))
    return torch.optim.SGD(groups, lr=peak, momentum=config.momentum, nesterov=config.momentum > 0)


def _share_of_rate(network: nn.Module, name: str) -> float:
    """Parts that start from published weights learn more slowly than a new head."""
    slow: Mapping[str, float] = getattr(network, "slow_parts", {})
    return next((share for part, share in slow.items() if name.startswith(f"{part}.")), 1.0)
