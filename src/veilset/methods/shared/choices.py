"""Choices that settings offer by name (dpaf, dpgan, imgsyn, pldk, sanitized_gan). Torch-free, for plans."""

from typing import Literal

Variation = Literal["none", "turned", "all"]
"""Of public images: as they are, turned, or turned, cut into bands of brightness and laid over each other."""

Start = Literal["public", "noise", "filtered_noise", "drawn"]
"""What images start as."""

AdversarialLoss = Literal["bce", "hinge", "wasserstein"]
"""What critic and generator contend for."""
