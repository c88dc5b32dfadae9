"""DP-SGD: per-unit clipping in one forward and one backward pass, and the training loop around it."""

from veilset.training.dpsgd.clipping import ClippedGradients, Mode
from veilset.training.dpsgd.linear_head import LinearHeadGradients
from veilset.training.dpsgd.passes import Loss
from veilset.training.dpsgd.trainer import PrivateTraining, sampling_rate_for, train_private

__all__ = [
    "ClippedGradients",
    "LinearHeadGradients",
    "Loss",
    "Mode",
    "PrivateTraining",
    "sampling_rate_for",
    "train_private",
]
