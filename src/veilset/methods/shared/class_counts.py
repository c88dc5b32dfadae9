"""How many units each class has, read off a noisy sum (dfd, imgsyn, latent, merf, pate). Post-processing."""

from torch import Tensor

_LEAST = 0.1  # of what even classes would have


def sensible_counts(noisy: Tensor, units: int) -> Tensor:
    """Noisy counts (classes,), none of them next to nothing, that add up to the public number of units."""
    counts = noisy.clamp(min=_LEAST * units / len(noisy))
    return counts * (units / counts.sum())
