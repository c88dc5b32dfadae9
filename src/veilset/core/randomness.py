"""Public randomness: one seed, and an independent stream for each named purpose.

Privacy noise and private sampling never come from here; they have privacy/noise.py. A seed may therefore be
published with the release.
"""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for `purpose`; streams of different purposes are independent."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for `purpose`."""
    return np.random.default_rng(derive_seed(seed, purpose))


def torch_generator(seed: int, purpose: str, device: str = "cpu") -> "torch.Generator":
    """A torch generator for `purpose`."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(seed, purpose))
