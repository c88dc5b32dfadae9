"""DP-SGD: per-unit clipping in one forward and one backward pass, and the training loop around it."""

from veilset.dpsgd.clipping import ClippedGradients, Mode
from veilset.dpsgd.linear_head import LinearHeadGradients
from veilset.dpsgd.passes import FindingsLoss, Loss
from veilset.dpsgd.settings import PrivateTraining
from veilset.dpsgd.trainer import train_private
from veilset.privacy.events import sampling_rate_for

__all__ = [
    "ClippedGradients",
    "FindingsLoss",
    "LinearHeadGradients",
    "Loss",
    "Mode",
    "PrivateTraining",
    "sampling_rate_for",
    "train_private",
]
