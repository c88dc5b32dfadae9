"""VGG-11 (Simonyan and Zisserman, "Very Deep Convolutional Networks", 2015) with norms and one linear layer.

The two 4096-wide layers of the paper, nine tenths of its weights, give way to an average over the last map, as is
usual for small images.
"""

from torch import Tensor, nn

from veilset.models.norms import halvings, init_relu_network, make_norm

# Channels of each convolution, stage by stage; a pooling ends each stage.
_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(nn.Module):
    """Eight 3x3 convolutions in five stages; the last poolings are left out where the map is already small."""

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        pooled = halvings(size, most=len(_STAGES), least_side=2)
        layers: list[nn.Module] = []
        before = channels
        for stage, widths in enumerate(_STAGES):
            for after in widths:
                layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), make_norm(norm, after), nn.ReLU()]
                before = after
            if stage < pooled:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(before, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps: Tensor = self.features(images)
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits
