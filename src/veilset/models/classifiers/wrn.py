"""Wide ResNet (Zagoruyko and Komodakis, 2016), GroupNorm by default as De et al. (2022) use it for DP-SGD."""

from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.norms import init_relu_network, make_norm, stem


class WideBlock(nn.Module):
    """Norm, ReLU, convolution, twice, beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.norm1 = make_norm(norm, before)
        self.convolution1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm2 = make_norm(norm, after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False) if changes else None

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next block."""
        active = functional.relu(self.norm1(maps))
        # Where the shape changes, the shortcut starts after the first activation, as in the authors' code.
        shortcut = maps if self.shortcut is None else self.shortcut(active)
        inner = self.convolution1(active)
        inner = self.convolution2(functional.relu(self.norm2(inner)))
        total: Tensor = inner + shortcut
        return total


class WideResNet(nn.Module):
    """WRN-`depth`-`width`: three stages of 16, 32 and 64 times `width` channels; WRN-16-2 unless told."""

    def __init__(
        self, *, channels: int, classes: int, size: int, norm: str = "group", width: int = 2, depth: int = 16
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise InputError(f"Expected a wrn depth of 10, 16, 22, 28, ... and width >= 1, got {depth} and {width}.")
        self.stem = stem(channels, 16, size)
        blocks: list[nn.Module] = []
        before = 16
        for stage in range(3):
            after = 16 * width * 2**stage
            for block in range((depth - 4) // 6):
                blocks.append(WideBlock(before, after, 2 if stage > 0 and block == 0 else 1, norm))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.norm = make_norm(norm, before)
        self.head = nn.Linear(before, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits
