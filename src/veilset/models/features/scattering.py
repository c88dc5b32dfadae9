"""The scattering transform: fixed wavelet features of an image, fast and differentiable.

Mallat, "Group Invariant Scattering" (2012); the filters are those of Bruna and Mallat (2013) as kymatio
defines them, so the numbers agree with kymatio's ``Scattering2D`` up to the truncation of the kernels
(below two percent). The filters are constants: nothing here is learned, so using the transform on private
images inside a per-record function costs no privacy beyond the mechanism that releases the result.

Three things make it fast on a CPU. Wavelets decay quickly, so each one is a small strided convolution instead
of a Fourier transform of the whole image. The low-pass that ends every path is separable, so it is two small
matrix products that filter, subsample and crop at once. And the gradient of a convolution from one channel to
many, which the libraries do slowly, is written here as an ordinary convolution from many channels to many.
"""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError

# Keeps the gradient of the modulus finite at zero: flat image regions are the rule in masks and digits.
_MODULUS_FLOOR = 1e-10

# Pixels that go through the transform at once: 64 images of 28 x 28.
_CHUNK_PIXELS = 64 * 28 * 28

_Complex = npt.NDArray[np.complex128]
_Real = npt.NDArray[np.float64]


class Scattering(nn.Module):
    """Scattering maps of orders 0, 1 and 2.

    Images of shape (batch, channels, size, size) become (batch, channels * paths, out_size, out_size) with
    ``paths = 1 + L*J + L*L*J*(J-1)/2`` and ``out_size = size // 2**J``: 81 x 7 x 7 for a grey 28 x 28 image.
    Colour channels are transformed one by one; the paths of one colour stay together, in kymatio's order.

    Args:
        size: side of the square image in pixels, at least 16 and at least ``2**(J+1)``.
        channels: colour channels of the image.
        J: number of scales; every map is averaged over about ``2**J`` pixels.
        L: number of wavelet angles.
    """

    def __init__(self, size: int, channels: int = 1, J: int = 2, L: int = 8) -> None:  # noqa: N803 (the literature's names)
        super().__init__()
        if size < max(16, 2 ** (J + 1)):
            raise InputError(
                f"Expected size >= {max(16, 2 ** (J + 1))} pixels for J={J}, got {size}. Resize the images."
            )
        if channels < 1 or J < 1 or L < 1:
            raise InputError(f"Expected channels, J and L of at least 1, got {channels}, {J} and {L}.")
        self.size, self.channels, self.J, self.L = size, channels, J, L
        self.paths = 1 + L * J + L * L * J * (J - 1) // 2
        self.out_channels = channels * self.paths
        self.out_size = size // 2**J

        # kymatio's frame: reflect to a multiple of 2**J, then treat the frame as periodic.
        frame = ((size + 2**J) // 2**J + 1) * 2**J
        before = (frame - size) // 2
        rows = np.pad(np.arange(size), (before, frame - size - before), mode="reflect")
        self.register_buffer("_frame_rows", torch.from_numpy(rows), persistent=False)
        for level in range(J):
            for j in range(level, J):
                if level == 0 or j > level:
                    stride = 2 ** (j - level)
                    kernels = _wavelet_kernels(j, level, L)
                    adjoint = _adjoint_kernels(kernels, stride, math.gcd(frame // 2**j, max(1, 4 // stride)))
                    self.register_buffer(f"_psi_{j}_{level}", torch.from_numpy(kernels).float(), persistent=False)
                    self.register_buffer(
                        f"_psi_adjoint_{j}_{level}", torch.from_numpy(adjoint).float(), persistent=False
                    )
            self.register_buffer(f"_phi_{level}", _low_pass_matrix(frame, J, level, self.out_size), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps, (batch, out_channels, out_size, out_size); gradients flow to the images."""
        if images.ndim != 4 or images.shape[1:] != (self.channels, self.size, self.size):
            expected = f"(batch, {self.channels}, {self.size}, {self.size})"
            raise InputError(f"Expected images of shape {expected}, got {tuple(images.shape)}.")
        planes = images.reshape(-1, 1, self.size, self.size)
        # Chunks keep the intermediate maps in the processor's cache.
        chunk = max(1, _CHUNK_PIXELS // self.size**2)
        maps = (
            torch.cat([self._scatter(part) for part in torch.split(planes, chunk)])
            if len(planes)
            else self._scatter(planes)
        )
        return maps.reshape(images.shape[0], self.out_channels, self.out_size, self.out_size)

    def _scatter(self, planes: Tensor) -> Tensor:
        rows = self.get_buffer("_frame_rows")
        framed = planes[..., rows, :][..., rows]  # (B, 1, frame, frame)
        first = [self._modulus(framed, j, 0) for j in range(self.J)]  # first[j] is at resolution 2**j
        averages = [self._average(framed, 0)] + [self._average(maps, j) for j, maps in enumerate(first)]
        for j1 in range(self.J - 1):
            later = [self._average(self._modulus(first[j1], j2, j1), j2) for j2 in range(j1 + 1, self.J)]
            # kymatio's order: by the first angle, then by j2, then by the second angle.
            averages.append(
                torch.stack([torch.unflatten(maps, 1, (self.L, self.L)) for maps in later], dim=2).flatten(1, 3)
            )
        return torch.cat(averages, dim=1)

    def _modulus(self, maps: Tensor, j: int, level: int) -> Tensor:
        """|maps * psi_j| for every angle: (B, M, h, w) at resolution 2**level -> (B, M*L, h', w') at 2**j."""
        batch, count, height, width = maps.shape
        kernels, adjoint = self.get_buffer(f"_psi_{j}_{level}"), self.get_buffer(f"_psi_adjoint_{j}_{level}")
        planes = maps.reshape(-1, 1, height, width)
        modulus = cast(Tensor, _WaveletModulus.apply(planes, kernels, adjoint, 2 ** (j - level)))  # type: ignore[no-untyped-call]
        return modulus.reshape(batch, count * self.L, *modulus.shape[-2:])

    def _average(self, maps: Tensor, level: int) -> Tensor:
        """Low-pass, subsample and crop: (B, M, h, w) at resolution 2**level -> (B, M, out_size, out_size)."""
        matrix = self.get_buffer(f"_phi_{level}")
        return torch.matmul(matrix, maps @ matrix.T)


def group_norm(maps: Tensor, groups: int = 27) -> Tensor:
    """Standardise each record's maps within groups of neighbouring channels, using that record alone.

    No statistic of other records enters, so this is a per-record function that can be clipped and summed.
    The number of groups falls to the nearest divisor of the channel count.
    """
    channels = maps.shape[1]
    while channels % groups:
        groups -= 1
    return functional.group_norm(maps, groups, eps=1e-5)


class _WaveletModulus(torch.autograd.Function):
    """Modulus of a strided wavelet convolution on a periodic plane, with a fast gradient for the plane.

    Planes (B, 1, h, w) and kernels (2L, 1, k, k) give (B, L, h/stride, w/stride).
    """

    @staticmethod
    def forward(ctx: Any, planes: Tensor, kernels: Tensor, adjoint: Tensor, stride: int) -> Tensor:
        radius = kernels.shape[-1] // 2
        padded = functional.pad(planes, (radius, radius, radius, radius), mode="circular")
        parts = functional.conv2d(padded, kernels, stride=stride)
        real, imaginary = parts.chunk(2, dim=1)
        modulus = (real.square().addcmul_(imaginary, imaginary)).add_(_MODULUS_FLOOR).sqrt_()
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(parts, modulus, adjoint)
            ctx.stride = stride
        return modulus

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        parts, modulus, adjoint = ctx.saved_tensors
        scaled = gradients[0] / modulus
        upstream = (torch.unflatten(parts, 1, (2, -1)) * scaled.unsqueeze(1)).flatten(1, 2)
        block = math.isqrt(adjoint.shape[1] // parts.shape[1])
        blocks = functional.pixel_unshuffle(upstream, block)
        reach = adjoint.shape[-1] // 2
        padded = functional.pad(blocks, (reach, reach, reach, reach), mode="circular")
        return (
            functional.pixel_shuffle(functional.conv2d(padded, adjoint), ctx.stride * block),
            None,
            None,
            None,
        )


def _adjoint_kernels(kernels: _Real, stride: int, block: int) -> _Real:
    """The kernels whose plain convolution is the gradient of the strided convolution.

    Input pixels are grouped in squares of side ``stride * block`` and outputs in squares of side ``block``, both
    moved into channels; the gradient is then one convolution between the two, (S*S, 2L*block*block, reach, reach).
    """
    count, radius, side = len(kernels), kernels.shape[-1] // 2, stride * block
    reach = max((radius + stride * (block - 1)) // side, (side - 1 + radius) // side)
    offset = np.arange(side)[:, None, None]
    inner = np.arange(block)[None, :, None]
    shift = np.arange(-reach, reach + 1)[None, None, :]
    # Output block + shift, position `inner`, saw the input pixel `offset` through this entry of its kernel.
    entry = offset + radius - side * shift - stride * inner  # (side, block, 2*reach+1)
    inside = (entry >= 0) & (entry <= 2 * radius)
    entry = np.where(inside, entry, 0)
    rows = (slice(None), None, slice(None), None, slice(None), None)
    columns = (None, slice(None), None, slice(None), None, slice(None))
    picked = kernels[:, 0][:, entry[rows], entry[columns]] * (inside[rows] & inside[columns])
    return cast(
        _Real,
        picked.transpose(1, 2, 0, 3, 4, 5, 6).reshape(side**2, count * block**2, 2 * reach + 1, 2 * reach + 1),
    )


def _gabor(grid: _Real, sigma: float, angle: float, frequency: float, slant: float) -> _Complex:
    """An oriented Gaussian of unit mass times a plane wave, on a square grid of coordinates."""
    row, column = np.meshgrid(grid, grid, indexing="ij")
    along = row * math.cos(angle) + column * math.sin(angle)
    across = column * math.cos(angle) - row * math.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    return cast(_Complex, envelope * np.exp(1j * frequency * along))


def _morlet(grid: _Real, j: int, angle: float, angles: int) -> _Complex:
    """kymatio's wavelet of scale j: a Gabor minus the Gaussian that makes its sum zero."""
    sigma, frequency, slant = 0.8 * 2**j, 0.75 * math.pi / 2**j, 4.0 / angles
    wave = _gabor(grid, sigma, angle, frequency, slant)
    envelope = _gabor(grid, sigma, angle, 0.0, slant)
    return cast(_Complex, wave - envelope * (wave.sum() / envelope.sum()))


def _wavelet_kernels(j: int, level: int, angles: int) -> _Real:
    """Kernels of all angles at resolution 2**level, (2*angles, 1, k, k): real parts, then imaginary parts.

    Cut at 2.2 standard deviations of the long axis, where less than a hundredth of the energy is left.
    """
    slant = 4.0 / angles
    radius = math.ceil(2.2 * 0.8 * 2**j / min(slant, 1.0)) // 2**level
    reach = 4 * (radius + 1) * 2**level
    kernels = []
    for index in range(angles):
        angle = (int(angles - angles / 2 - 1) - index) * math.pi / angles
        wave = _morlet(np.arange(-reach, reach, dtype=np.float64), j, angle, angles)
        kernel = _cut(_at_level(wave, level), radius)
        kernels.append(kernel - kernel.mean())  # the cut must not let a constant image through
    stacked = np.stack([k.real for k in kernels] + [k.imag for k in kernels])
    # Convolution in the literature, correlation in torch: turn the kernels round.
    return cast(_Real, np.ascontiguousarray(stacked[:, None, ::-1, ::-1]))


def _at_level(filter_: _Complex, level: int) -> _Complex:
    """The centred filter after subsampling by 2**level, with frequencies above the new limit removed."""
    if level == 0:
        return filter_
    spectrum = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(filter_)))
    side = len(filter_)
    kept = side // 2**level
    start = (side - kept) // 2
    inner = spectrum[start : start + kept, start : start + kept]
    return cast(_Complex, np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(inner))))


def _cut(filter_: _Complex, radius: int) -> _Complex:
    centre = len(filter_) // 2
    return filter_[centre - radius : centre + radius + 1, centre - radius : centre + radius + 1]


def _low_pass_matrix(frame: int, scales: int, level: int, out_size: int) -> Tensor:
    """One axis of the Gaussian low-pass of a periodic frame: (out_size, frame / 2**level).

    Row i is the filter centred on sample (i+1) * 2**(J-level): the very first output lies in the padding.
    """
    sigma = 0.8 * 2 ** (scales - 1)
    wraps = frame * np.arange(-2, 3)
    positions = np.arange(frame)[:, None] + wraps[None, :]
    gaussian = np.exp(-(positions**2) / (2 * sigma**2)).sum(axis=1) / math.sqrt(2 * math.pi * sigma**2)
    spectrum = np.fft.fftshift(np.fft.fft(gaussian))
    kept = frame // 2**level
    start = (frame - kept) // 2
    kernel = np.fft.ifft(np.fft.ifftshift(spectrum[start : start + kept])).real
    rows = [np.roll(kernel, (i + 1) * 2 ** (scales - level)) for i in range(out_size)]
    return torch.from_numpy(np.stack(rows)).float()
