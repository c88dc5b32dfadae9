"""What fixed features of images have in common, whoever made them."""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError


class Features(nn.Module):
    """Features that nobody here trains: floats in [0, 1], (b, C, H, W), to maps, vectors and rows.

    Gradients flow to the images. No state dict holds what the features are made of: `name` and `sha256` say it.

    Privacy: a row depends on its own image and on public weights.

    Args:
        name: what `build_features` finds it by.
        sha256: of the weights; None where a formula makes them.
        side: what images are brought to before they are looked at; 0 leaves them as they are.
        parts: how many numbers of a row belong together; public pictures bring the parts to one scale.
    """

    def __init__(self, name: str, *, sha256: str | None, side: int) -> None:
        super().__init__()
        self.name, self.sha256, self.side = name, sha256, side
        self.parts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return sum(self.parts)

    @abstractmethod
    def maps(self, images: Tensor) -> list[Tensor]:
        """Maps (b, C, h, w) at one or several depths, the last the deepest."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """The row of each image, (b, width): what a linear head reads."""

    def pooled(self, images: Tensor) -> Tensor:
        """The deepest maps without their positions: (b, d)."""
        return self.maps(images)[-1].mean(dim=(2, 3))


class JoinedFeatures(Features):
    """Rows of several features, one beside the other."""

    def __init__(self, members: list[Features]) -> None:
        name = "+".join(member.name for member in members)
        super().__init__(name, sha256="+".join(m.sha256 for m in members if m.sha256) or None, side=0)
        self.members = nn.ModuleList(members)
        self.parts = tuple(part for member in members for part in member.parts)

    def maps(self, images: Tensor) -> list[Tensor]:
        """The maps of each in turn."""
        return [maps for member in self._all() for maps in member.maps(images)]

    def pooled(self, images: Tensor) -> Tensor:
        """The vectors of all, one beside the other."""
        return torch.cat([member.pooled(images) for member in self._all()], dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """The rows of all, one beside the other."""
        return torch.cat([member(images) for member in self._all()], dim=1)

    def _all(self) -> list[Features]:
        return [member for member in self.members if isinstance(member, Features)]


def resized(images: Tensor, side: int) -> Tensor:
    """The images as squares of this side."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(f"Expected images (batch, 1 or 3, height, width), got the shape {tuple(images.shape)}.")
    if tuple(images.shape[-2:]) == (side, side):
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True)


def frozen(network: nn.Module) -> nn.Module:
    """The network, evaluating, its weights neither trained nor part of any state dict; they still move to a device."""
    network.eval()
    for module in network.modules():
        held = {**module._parameters, **module._buffers}
        module._parameters.clear()
        module._buffers.clear()
        for name, value in held.items():
            module.register_buffer(name, None if value is None else value.detach(), persistent=False)
    return network
