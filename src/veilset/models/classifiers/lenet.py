"""LeNet-5 (LeCun et al., 1998) with ReLU, max-pooling and a norm after each convolution."""

from torch import Tensor, nn
from torch.nn import functional

from veilset.models.norms import init_relu_network, make_norm, stem_stride

_HEAD_SIDE = 5


class LeNet(nn.Module):
    """Two 5x5 convolutions and three linear layers; about 62,000 parameters for 28x28x1 and ten classes."""

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        stride = stem_stride(size)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 4 + stride, stride=stride, padding=2),
            make_norm(norm, 6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=0 if size >= 24 else 2),
            make_norm(norm, 16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Linear(16 * _HEAD_SIDE**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps = functional.adaptive_avg_pool2d(self.features(images), _HEAD_SIDE)
        logits: Tensor = self.head(maps.flatten(1))
        return logits
