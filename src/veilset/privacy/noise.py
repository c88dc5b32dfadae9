"""All privacy noise and all private coins, in one file.

Source. A key from the operating system's entropy drives AES-256 in counter mode (of `cryptography`, i.e. OpenSSL). A
forked process draws a key of its own: two processes that shared a stream would reveal their noise by subtraction.
`--insecure-seed` derives the key from a number instead and takes the guarantee away.

Normal variates. Box-Muller, an exact transformation of two uniforms of 63 and 64 bits, in double precision.

Low bits. A normal variate in floating point cannot take every value, and which sums x + noise can be reached depends on
x (Mironov 2012, "On significance of the least significant bits"). The defence is to keep no low bits:

1. `GridSum` (privacy/mechanisms/sums.py) adds rows as integers: multiples of a public step of 2^-30 clip norms,
   truncated toward zero, so that a row's norm never grows and the sum is exact in any order. (Summing floats has a
   larger sensitivity than it seems: Casacuberta et al. 2022, "Widespread underestimation of sensitivity".)
2. The noise is rounded to the same integers, added exactly, and the result is rounded to a cell of about 2^-10 standard
   deviations. For ideal real noise that rounding is post-processing. In double precision some 2^40 different variates
   fall into a typical cell, so that the probability of a cell is within a relative 2^-39 of ideal: no input leaves a
   trace in which cells can be reached.

A DP-SGD step sums in float64 with a proven margin inside the clip and rounds once to the same integers
(dpsgd/exact.py, privacy/mechanisms/dpsgd_steps.py).
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.privacy.correlation import CorrelatedNoise
from veilset.privacy.events import Event

if TYPE_CHECKING:
    import torch

GRID_BITS = 30  # grid steps per clip norm, as a power of two
_CELL_BITS = 10  # rounding cells per standard deviation, as a power of two
_WIDEST = 2.0**58  # standard deviation in grid steps; ten of them and any sum still fit 63 bits
_CHUNK = 1 << 18  # variates per pass; what fits the cache is about twice as fast as one large pass


Owners = Callable[[], Sequence[bytes]]
"""The own ids of the units that draw, in order; only asked for where the draws have to be tied to the units."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed of an exact sum: one unit moves each of its `parts` by at most `sensitivity` in L2.

    A sum `of_units` adds what each unit gives alone, whatever units are beside it. A sum of shards' answers does not:
    there a unit changes what its shard says.
    """

    step: float  # the grid's
    sensitivity: float
    noise_multiplier: float
    parts: int = 1
    event: Event | None = None
    of_units: bool = True
    past: CorrelatedNoise | None = field(default=None, repr=False)  # noise that this sum takes a part of back


class NoiseSource:
    """A stream of secret random bits, and what is made of them."""

    def __init__(self, insecure_seed: int | None = None, rank: int = 0) -> None:
        self.seeded = insecure_seed is not None
        # Processes of one run need coins of their own, with a seed as well.
        self._seed = None if insecure_seed is None else f"{insecure_seed}/{rank}"
        self._rekey()

    def _rekey(self) -> None:
        if self._seed is None:
            key, start = os.urandom(32), os.urandom(16)
        else:
            key, start = hashlib.sha256(f"insecure/{self._seed}".encode()).digest(), bytes(16)
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(start)).encryptor()
        self._process = os.getpid()

    def bits(self, count: int) -> NDArray[np.uint64]:
        """`count` words of 64 random bits."""
        if self._process != os.getpid() and not self.seeded:
            self._rekey()
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)

    def coins(self, count: int, rate: float, owners: "Owners | None" = None) -> NDArray[np.bool_]:  # noqa: ARG002
        """`count` independent coins that show True with probability `rate`, to within 2^-53 of it and never above.

        `owners` names the units that toss them, in order. Coins are independent and secret, so who tosses which makes
        no difference here; the neighbour run (audit/neighbours.py) gives each unit the same coins in both worlds.
        """
        if rate >= 1.0:
            return np.ones(count, dtype=np.bool_)
        coins, most = np.empty(count, np.bool_), np.uint64(math.floor(rate * 2.0**64))
        for start in range(0, count, _CHUNK):  # eight bytes for each, and there may be millions
            part = coins[start : start + _CHUNK]
            np.less(self.bits(len(part)), most, out=part)
        return coins

    def choices(self, sizes: NDArray[np.int64], owners: "Owners | None" = None) -> NDArray[np.int64]:  # noqa: ARG002
        """For each size one number in 0..size-1, uniformly to within size * 2^-32."""
        high = (self.bits(len(sizes)) >> np.uint64(32)).astype(np.int64)
        return (high * sizes) >> 32

    def uniforms(self, count: int, width: int, owners: "Owners | None" = None) -> "torch.Tensor":  # noqa: ARG002
        """(count, width) numbers in [0, 1), each unit's row its own: for what a private step draws at random."""
        import torch

        words = (self.bits(count * width) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.from_numpy(words).view(count, width)

    def normal(self, count: int) -> "torch.Tensor":
        """`count` independent standard normal variates, in double precision."""
        import torch

        out = torch.empty(count, dtype=torch.float64)
        for start in range(0, count, _CHUNK):
            piece = out[start : start + _CHUNK]
            half = (len(piece) + 1) // 2
            words = torch.from_numpy(self.bits(2 * half).view(np.int64).copy())
            # (k + 1/2) / 2^63 lies in (0, 1]: the logarithm is finite.
            uniform = words[:half].bitwise_and_(2**63 - 1).double().add_(0.5).mul_(2.0**-63)
            radius = uniform.log_().mul_(-2).sqrt_()
            angle = words[half:].double().mul_(math.pi * 2.0**-63)
            torch.mul(radius, angle.cos(), out=piece[:half])
            piece[half:] = radius.mul_(angle.sin_())[: len(piece) - half]
        return out

    def release(self, total: "torch.Tensor", claim: "Claim") -> "torch.Tensor":
        """An exact sum in grid steps as it may leave: noise is added, low bits are rounded away.

        `processes.release_to_all` alone asks for it.
        """
        import torch

        spread = claim.noise_multiplier * claim.sensitivity / claim.step  # the standard deviation in grid steps
        # A sum's correlated noise is wider than what is fresh in it, by about the root of the number of steps.
        widest = _WIDEST if claim.past is None else _WIDEST * 2.0**-12
        if spread > widest:
            raise InputError(
                f"Expected less noise than {widest:g} grid steps, got {spread:g}: a larger epsilon or delta."
            )
        shift = max(0, math.floor(math.log2(spread)) - _CELL_BITS)
        fresh = self.normal(total.numel()).mul_(spread)
        drawn = torch.round(fresh if claim.past is None else claim.past.following(fresh)).to(torch.int64)
        noisy = total + drawn.view_as(total)
        rounded = (noisy + ((1 << shift) >> 1)).bitwise_right_shift(shift).bitwise_left_shift(shift)
        return rounded.double() * claim.step
