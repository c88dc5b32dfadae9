"""Images as tensors: from 8 bits to floats in [0, 1] and back."""

import torch
from torch import Tensor


def as_floats(images: Tensor, device: str | torch.device = "cpu") -> Tensor:
    """8-bit images (b, H, W, C) as floats in [0, 1], (b, C, H, W)."""
    return images.to(device).permute(0, 3, 1, 2).float() / 255


def to_inputs(images: Tensor) -> Tensor:
    """As `as_floats`, but multiplied instead of divided, in new memory: what networks are trained on.

    The last bits of the two differ, and with them what a seed gives.
    """
    return images.permute(0, 3, 1, 2).to(torch.float32).mul_(1 / 255).contiguous()


def as_bytes(pixels: Tensor) -> Tensor:
    """Floats in [0, 1], (b, C, H, W), as 8-bit images (b, H, W, C) on the processor."""
    return (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
