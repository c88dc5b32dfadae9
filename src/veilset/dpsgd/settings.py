"""What a private training is made of besides its event, which has the noise, the sampling rate and the steps."""

import math
from typing import Literal

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, Settings, setting
from veilset.dpsgd.clipping import Mode
from veilset.training.augment import AugmentConfig

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "linear", "cosine"]


class PrivateTraining(Settings):
    """The recipe of a private run. All of it is public."""

    clip_norm: float = setting(1.0, "L2 bound of one unit's gradient.", **CLIP_NORM)
    mode: Mode = setting("flat", "How gradients are clipped, as in `ClippedGradients`.")
    keep_fraction: float = setting(1.0, "Share of a gradient's coordinates that is kept.", above=0, most=1)
    keep_signs: int = setting(
        0, "Of a gradient only the signs of so many coordinates, the largest (TOPAGG); 0 keeps numbers.", least=0
    )
    copies: int = setting(1, "Augmented copies of each unit, averaged before the clip.", least=1)
    max_rows: int | None = setting(None, "Most rows of one pass.", least=1)
    optimizer: Optimizer = setting("sgd", "What follows the noisy sums; `train_private` also takes a caller's own.")
    learning_rate: float = setting(0.5, "Its peak.", **RATE)
    momentum: float = setting(0.9, "Of sgd.", least=0, most=1)
    weight_decay: float = setting(0.0, "Of the optimizer.", least=0, most=RATE["most"])
    schedule: Schedule = setting("constant", "The path of the learning rate after the warmup; the others end at zero.")
    warmup: float = setting(0.0, "Share of the steps in which the learning rate rises.", least=0, most=1)
    ema_decay: float = setting(0.0, "Return a moving average of the weights; 0 is none.", least=0, most=1)
    average_from: float = setting(
        1.0, "Return the plain average of the iterates after this share of the steps; 1 is none.", least=0, most=1
    )
    augmentation: AugmentConfig | None = setting(
        None, "Of each batch, from numbers that the session draws for each unit; `copies` above 1 need it."
    )

    def check(self) -> None:
        """Refuse two averages at once."""
        super().check()
        if self.ema_decay and self.average_from < 1:
            raise InputError("Expected ema_decay or average_from, got both. Set one.")

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step of `steps`, counted from 0."""
        rise = round(self.warmup * steps)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        done = (step - rise) / max(1, steps - rise)
        shares = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return self.learning_rate * shares[self.schedule]
