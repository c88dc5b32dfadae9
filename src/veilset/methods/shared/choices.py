"""Choices that settings offer by name (dpaf, dpgan, imgsyn, pldk, sanitized_gan). Torch-free, for plans."""

from typing import Literal

Variation = Literal["none", "turned", "all", "crops"]
"""Of public images: as they are, turned, turned and cut into bands of brightness and laid over each other (all), or
parts of photographs that stay photographs: cut out or whole, mirrored, recoloured (crops)."""

Start = Literal["public", "noise", "filtered_noise", "drawn"]
"""What images start as."""

Labelling = Literal["classifier", "balanced", "asked"]
"""Who labels generated images: the private classifier, the same with offsets that give every class the share it was
asked for with (balanced), or nobody: they are what the generator was asked for."""

AdversarialLoss = Literal["bce", "hinge", "wasserstein"]
"""What critic and generator contend for."""
