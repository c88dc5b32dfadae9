"""ResNet-18 and ResNet-34 (He et al., "Deep Residual Learning for Image Recognition", 2016)."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.norms import init_relu_network, make_norm

Stem = Literal["auto", "cifar", "imagenet"]

# Below 96 pixels the ImageNet stem, which divides the side by four, would leave the last stage 2x2 or less.
_IMAGENET_STEM_FROM = 96


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = make_norm(norm, after)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = make_norm(norm, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), make_norm(norm, after)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next stage."""
        inner = functional.relu(self.norm1(self.convolution1(maps)))
        inner = self.norm2(self.convolution2(inner))
        return functional.relu(inner + self.shortcut(maps))


class ResNet(nn.Module):
    """Four stages of basic blocks, of `width` to eight times as many channels; the paper's width is 64."""

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        size: int,
        norm: str,
        blocks: tuple[int, int, int, int],
        stem: Stem,
        width: int,
    ) -> None:
        super().__init__()
        if width < 8 or width % 8:
            raise InputError(f"Expected a resnet width that is a multiple of 8, got {width}.")
        if stem == "auto":
            stem = "imagenet" if size >= _IMAGENET_STEM_FROM else "cifar"
        if stem == "imagenet":
            first: list[nn.Module] = [nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)]
            pooling: list[nn.Module] = [nn.MaxPool2d(3, stride=2, padding=1)]
        elif stem == "cifar":
            first, pooling = [nn.Conv2d(channels, width, 3, padding=1, bias=False)], []
        else:
            raise InputError(f"Expected stem to be auto, cifar or imagenet, got {stem!r}.")
        self.stem = nn.Sequential(*first, make_norm(norm, width), nn.ReLU(), *pooling)
        stages: list[nn.Module] = []
        before = width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(BasicBlock(before, after, stride, norm))
                before = after
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps: Tensor = self.stages(self.stem(images))
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits


def resnet18(
    *, channels: int, classes: int, size: int, norm: str = "group", stem: Stem = "auto", width: int = 64
) -> ResNet:
    """ResNet-18 for images whose shorter side has `size` pixels."""
    blocks = (2, 2, 2, 2)
    return ResNet(channels=channels, classes=classes, size=size, norm=norm, blocks=blocks, stem=stem, width=width)


def resnet34(
    *, channels: int, classes: int, size: int, norm: str = "group", stem: Stem = "auto", width: int = 64
) -> ResNet:
    """ResNet-34 for images whose shorter side has `size` pixels."""
    blocks = (3, 4, 6, 3)
    return ResNet(channels=channels, classes=classes, size=size, norm=norm, blocks=blocks, stem=stem, width=width)
