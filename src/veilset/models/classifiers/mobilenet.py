"""MobileNetV2 (Sandler et al., "Inverted Residuals and Linear Bottlenecks", 2018)."""

from torch import Tensor, nn

from veilset.models.norms import halvings, init_relu_network, make_norm

# Table 2 of the paper: expansion, channels, repeats, whether the stage halves the map.
_STAGES = (
    (1, 16, 1, False),
    (6, 24, 2, True),
    (6, 32, 3, True),
    (6, 64, 4, True),
    (6, 96, 3, False),
    (6, 160, 3, True),
    (6, 320, 1, False),
)
_HALVINGS = 5  # the stem and four stages


def _convolution(before: int, after: int, kernel: int, stride: int, groups: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        make_norm(norm, after),
    ]


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without a nonlinearity."""

    def __init__(self, before: int, after: int, expansion: int, stride: int, norm: str) -> None:
        super().__init__()
        inner = before * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_convolution(before, inner, 1, 1, 1, norm), nn.ReLU6()]
        layers += [*_convolution(inner, inner, 3, stride, inner, norm), nn.ReLU6()]
        layers += _convolution(inner, after, 1, 1, 1, norm)
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and before == after

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next block."""
        narrowed: Tensor = self.layers(maps)
        return maps + narrowed if self.has_shortcut else narrowed


class MobileNetV2(nn.Module):
    """The paper's network at width 1; on small images the early halvings are left out, as its CIFAR forms do."""

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        skipped = _HALVINGS - halvings(size, most=_HALVINGS)
        stem_stride = 1 if skipped > 0 else 2
        layers: list[nn.Module] = [*_convolution(channels, 32, 3, stem_stride, 1, norm), nn.ReLU6()]
        before, seen = 32, 1
        for expansion, after, repeats, halves in _STAGES:
            stride = 1
            if halves:
                stride = 1 if seen < skipped else 2
                seen += 1
            for block in range(repeats):
                layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1, norm))
                before = after
        layers += [*_convolution(before, 1280, 1, 1, 1, norm), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(1280, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps: Tensor = self.features(images)
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits
