"""Per-unit gradients of a convolution's weights: three ways, each the fastest somewhere.

- grouped: the batch becomes channels and each record a group, so that torch's weight gradient keeps records apart.
- gathered: each record's windows are gathered (in pieces that stay in the cache) and multiplied with its gradient;
  where there are many channels, by rows: only the columns of a window are gathered, and its rows are views.
- ghost: inner products of windows from shifted inner products of pixels, k*k times less work than gathering them.
  They are never kept then: the weighted sum is one product of all windows with the scaled output gradients, in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_PIECE = 2**20  # numbers gathered at a time: 4 MB


@dataclass(frozen=True)
class Settings:
    """How a convolution slides; each tuple has one entry per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0)
    groups: int = 1

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution."""
        return torch.convolution(
            inputs,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def gradient(self, inputs: Tensor, gradient: Tensor, weight: Tensor, *, of_input: bool, groups: int = 1) -> Tensor:
        """The gradient of the input or of the weight, with `groups` times as many groups."""
        result = torch.ops.aten.convolution_backward(
            gradient,
            inputs,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            groups * self.groups,
            [of_input, not of_input, False],
        )
        chosen: Tensor = result[0 if of_input else 1]
        return chosen


def grouped_gradients(settings: Settings, inputs: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    """(records, *weight.shape) gradients of any convolution."""
    records = len(inputs)
    # Only the shape of the weight is read, so an expanded view of one number will do.
    shape_only = weight.new_zeros(()).expand(records * weight.shape[0], *weight.shape[1:])
    rows = settings.gradient(
        inputs.reshape(1, -1, *inputs.shape[2:]),
        gradient.reshape(1, -1, *gradient.shape[2:]),
        shape_only,
        of_input=False,
        groups=records,
    )
    return rows.view(records, *weight.shape)


def gathered_gradients(settings: Settings, inputs: Tensor, gradient: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """(records, out, in, *kernel) gradients of a two-dimensional convolution of few channels, without groups."""
    records, channels = inputs.shape[:2]
    out, height, width = gradient.shape[1:]
    vertical, horizontal = settings.padding
    padded = torch.nn.functional.pad(inputs, (horizontal, horizontal, vertical, vertical)).contiguous()
    by_record, by_channel, by_row, by_column = padded.stride()
    sizes = (channels, *kernel, height, width)
    offset = (by_row * settings.dilation[0], by_column * settings.dilation[1])
    place = (by_row * settings.stride[0], by_column * settings.stride[1])
    windows = padded.as_strided((records, *sizes), (by_record, by_channel, *offset, *place))
    positions, window = height * width, channels * kernel[0] * kernel[1]
    upstream = gradient.reshape(records, out, positions)
    rows = inputs.new_empty(records, out, window)
    for here, gathered in _in_pieces(windows):
        torch.bmm(upstream[here], gathered.view(-1, window, positions).transpose(1, 2), out=rows[here])
    return rows.view(records, out, channels, *kernel)


def row_gradients(settings: Settings, inputs: Tensor, gradient: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """(kernel rows, records, out, kernel columns * in): the same for many channels.

    Only the columns of a window are gathered, once for all of its rows: with the image's rows sorted by their place
    within the stride, the pixels at one row of every window lie next to each other.
    """
    records, channels, tall, wide = inputs.shape
    out, height, width = gradient.shape[1:]
    (vertical, horizontal), step = settings.padding, settings.stride[0]
    rows_each = -(-(tall + 2 * vertical) // step)
    padded = inputs.new_zeros(records, rows_each * step, wide + 2 * horizontal, channels)
    padded[:, vertical : vertical + tall, horizontal : horizontal + wide] = inputs.permute(0, 2, 3, 1)
    by_record, by_row, by_column, _ = padded.stride()
    columns = padded.as_strided(
        (records, step, rows_each, width, kernel[1], channels),
        (by_record, by_row, by_row * step, by_column * settings.stride[1], by_column * settings.dilation[1], 1),
    )
    upstream = gradient.reshape(records, out, height * width)
    rows = inputs.new_empty(kernel[0], records, out, kernel[1] * channels)
    for here, gathered in _in_pieces(columns):
        sorted_rows = gathered.view(len(gathered), step, rows_each * width, -1)
        for row in range(kernel[0]):
            first, residue = divmod(row * settings.dilation[0], step)
            pixels = sorted_rows[:, residue, first * width : (first + height) * width]
            torch.bmm(upstream[here], pixels, out=rows[row, here])
    return rows


def windows(settings: Settings, inputs: Tensor, kernel: tuple[int, ...], outputs: tuple[int, ...]) -> Tensor:
    """(records * outputs, kernel rows * kernel columns * in): what a two-dimensional convolution sees at each place."""
    records, channels, tall, wide = inputs.shape
    vertical, horizontal = settings.padding
    padded = inputs.new_zeros(records, tall + 2 * vertical, wide + 2 * horizontal, channels)
    padded[:, vertical : vertical + tall, horizontal : horizontal + wide] = inputs.permute(0, 2, 3, 1)
    by_record, by_row, by_column, _ = padded.stride()
    place = (by_row * settings.stride[0], by_column * settings.stride[1])
    offset = (by_row * settings.dilation[0], by_column * settings.dilation[1])
    view = padded.as_strided((records, *outputs, *kernel, channels), (by_record, *place, *offset, 1))
    return view.reshape(records * outputs[0] * outputs[1], -1)


def _in_pieces(source: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Copies of a few records at a time, all in one buffer."""
    records = len(source)
    piece = max(1, min(records, _PIECE // max(1, source[0].numel())))
    buffer = source.new_empty(piece, *source.shape[1:])
    for start in range(0, records, piece):
        here = slice(start, min(records, start + piece))
        yield here, buffer[: here.stop - start].copy_(source[here])


def window_grams(
    settings: Settings, kernel: tuple[int, ...], inputs: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Inner products of all pairs of windows, and of all pairs of output gradients, of each unit.

    `inputs` is (units, m, in, H, W) and `gradient` (units, m, out, h, w); both results are (units, mhw, mhw).
    Two windows are compared offset by offset: at offset k they hold pixels s*stride + k and t*stride + k, whose inner
    product over channels is computed once for all windows.
    """
    units, copies, _, height, width = inputs.shape
    pixels = inputs.transpose(1, 2).flatten(2)
    side = (copies, height, width)
    between_pixels = torch.bmm(pixels.transpose(1, 2), pixels).view(units, *side, *side)
    upstream = gradient.transpose(1, 2).flatten(2)
    side = (copies, *gradient.shape[3:])
    total = inputs.new_zeros(units, *side, *side)
    reach = [
        [_overlap(offset, axis, settings, side[axis + 1], (height, width)[axis]) for offset in range(kernel[axis])]
        for axis in (0, 1)
    ]
    every = slice(None)
    for here_row, there_row in reach[0]:
        for here_column, there_column in reach[1]:
            here, there = (every, here_row, here_column), (every, there_row, there_column)
            total[(every, *here, *here)] += between_pixels[(every, *there, *there)]
    return total.view(units, upstream.shape[2], -1), torch.bmm(upstream.transpose(1, 2), upstream)


def _overlap(offset: int, axis: int, settings: Settings, outputs: int, inputs: int) -> tuple[slice, slice]:
    """The output positions whose window has a pixel at `offset`, rather than padding, and those pixels."""
    stride = settings.stride[axis]
    shift = offset * settings.dilation[axis] - settings.padding[axis]
    first = max(0, -(shift // stride)) if shift < 0 else 0
    stop = min(outputs, (inputs - 1 - shift) // stride + 1)
    stop = max(first, stop)
    return slice(first, stop), slice(first * stride + shift, max(0, (stop - 1) * stride + shift + 1), stride)
