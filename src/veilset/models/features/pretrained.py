"""Features by networks that others trained on public images: EfficientNet-Lite, or a network of the user's own.

The weights are fixed before a private image is read, and a row is computed from its own image. A network of the user's
is tried on random images first: one whose rows change with the company of an image is refused.
"""

import hashlib
import importlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from veilset.core.errors import InputError
from veilset.core.registry import resolve
from veilset.models import working_directory_importable
from veilset.models.features import DEFAULT_SIDE as DEFAULT_SIDE  # also asked for here
from veilset.models.features.base import Features, frozen, resized
from veilset.models.features.efficientnet_lite import EfficientNetLite, fused
from veilset.models.features.weights import MAPS, PUBLISHED, read_weights

SMALLEST_SIDE, LARGEST_SIDE = 32, 1024
_MEAN, _DEVIATION = 0.498, 0.502
# Maps of so few images stay in the processor's cache: measured five times as fast as 256 at once.
_AT_ONCE = 16
# Beside the mean of the deepest maps, which forgets positions, a row has maps on a grid of this side at most.
_GRID = 4
_DEPTHS = 4  # at which EfficientNet-Lite has maps
# Which maps of EfficientNet-Lite these are: those at a sixteenth of the side know parts of things, not yet classes.
# Those at an eighth know textures. Images that are no photographs are told apart by these two.
_MIDDLE, _TEXTURES = 2, 1
_FINE_GRID = 8
# Mean and deviation of the three colours that networks of other libraries were trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class LiteFeatures(Features):
    """EfficientNet-Lite with its published weights, on images of `side` pixels, at least 32.

    Rows are the pooled numbers beside the maps at a sixteenth of the side. With `-maps` behind the name they are the
    maps at a sixteenth and at an eighth, and nothing deeper is computed for them.
    """

    def __init__(self, name: str, side: int = DEFAULT_SIDE) -> None:
        if not SMALLEST_SIDE <= side <= LARGEST_SIDE:
            raise InputError(f"Expected a side of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels for {name}, got {side}.")
        weights = name.removesuffix(MAPS)
        super().__init__(name, sha256=PUBLISHED[weights].sha256, side=side)
        self.keeps_positions = name.endswith(MAPS)
        network = fused(published_network(weights)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network: EfficientNetLite = network
        frozen(network)
        self.parts = tuple(part.shape[1] for part in self._parts(torch.zeros(1, 3, side, side)))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Maps at a quarter, an eighth, a sixteenth and a thirty-second of the side."""
        return self.first_maps(images, _DEPTHS)

    def first_maps(self, images: Tensor, count: int) -> list[Tensor]:
        """The first `count` of the maps, without computing the deeper ones."""
        parts = [self.network.maps(prepared(part, self.side), count) for part in torch.split(images, _AT_ONCE)]
        return [torch.cat(depth) for depth in zip(*parts, strict=True)]

    def pooled(self, images: Tensor) -> Tensor:
        """The 1,280 numbers that the published classifier reads."""
        return torch.cat([self._deepest(part)[-1].mean(dim=(2, 3)) for part in torch.split(images, _AT_ONCE)])

    def forward(self, images: Tensor) -> Tensor:
        """The pooled numbers and the maps at a sixteenth of the side on a coarse grid, or maps at two depths.

        On the way back a part's layers are computed once more instead of kept: the same bits in half the memory and,
        because they stay in the processor's cache, no more time.
        """
        return torch.cat([torch.cat(self._on_demand(part), dim=1) for part in torch.split(images, _AT_ONCE)])

    def _on_demand(self, images: Tensor) -> tuple[Tensor, ...]:
        if not images.requires_grad:
            return self._parts(images)
        found: tuple[Tensor, ...] = checkpoint(self._parts, images, use_reentrant=False, preserve_rng_state=False)
        return found

    def _parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        if self.keeps_positions:
            maps = self.network.maps(prepared(images, self.side), _MIDDLE + 1)
            return _on_grid(maps[_MIDDLE]), _on_grid(maps[_TEXTURES], _FINE_GRID)
        maps = self._deepest(images)
        return maps[-1].mean(dim=(2, 3)), _on_grid(maps[_MIDDLE])

    def _deepest(self, images: Tensor) -> list[Tensor]:
        return self.network.maps(prepared(images, self.side))


class OwnFeatures(Features):
    """A network of the user's own, from images to vectors (b, d) or maps (b, C, h, w).

    Args:
        name: as the user wrote it.
        network: evaluating; sees the images' own channels.
        side: what images are brought to; 0 leaves them as they are.
        channels: of the images that it is tried on.
    """

    def __init__(self, name: str, network: nn.Module, *, side: int, channels: int) -> None:
        super().__init__(name, sha256=_hash_of(network), side=side)
        training = [where for where, module in network.named_modules() if _mixes_rows(module)]
        if training:
            raise InputError(
                f"BatchNorm at {training[0]!r} of {name} is in training mode, so rows would mix. Call .eval() on it."
            )
        self.network = frozen(network)
        self.parts = tuple(part.shape[1] for part in self._parts(self._tried(channels)))

    def maps(self, images: Tensor) -> list[Tensor]:
        """What the network returns; vectors are maps of one pixel."""
        found: Tensor = self.network(resized(images, self.side) if self.side else images)
        return [found if found.ndim == 4 else found[..., None, None]]

    def forward(self, images: Tensor) -> Tensor:
        """The pooled numbers and, where there are maps, these on a coarse grid."""
        return torch.cat([torch.cat(self._parts(self.maps(part)[0]), dim=1) for part in torch.split(images, _AT_ONCE)])

    def _parts(self, maps: Tensor) -> list[Tensor]:
        pooled = maps.mean(dim=(2, 3))
        return [pooled] if maps.shape[2:].numel() == 1 else [pooled, _on_grid(maps)]

    @torch.no_grad()
    def _tried(self, channels: int) -> Tensor:
        """What random images give, which must not depend on the company of an image."""
        side = self.side or DEFAULT_SIDE
        images = torch.rand(3, channels, side, side, generator=torch.Generator().manual_seed(0))
        # The user's code may fail in any way; every way is their input to us.
        try:
            together = self.maps(images)[0]
            alone = torch.cat([self.maps(image[None])[0] for image in images])
        except Exception as error:
            raise InputError(
                f"{self.name} failed on images of {tuple(images.shape)} with {type(error).__name__}: {error}"
            ) from error
        if together.ndim != 4 or len(together) != 3 or not bool(torch.isfinite(together).all()):
            raise InputError(
                f"Expected {self.name} to return finite vectors (3, d) or maps (3, C, h, w) for 3 images, "
                f"got {tuple(together.shape)}."
            )
        slack = 1e-4 * float(together.abs().max())
        if alone.shape != together.shape or not torch.allclose(alone, together, rtol=1e-3, atol=slack):
            raise InputError(
                f"The features of {self.name} change with the other images of a batch. Use no norm over the batch."
            )
        return together


def load_own(target: str, *, side: int = DEFAULT_SIDE, channels: int = 3) -> OwnFeatures:
    """Features of `module:function`, called without arguments, or of `timm:NAME@FILE.safetensors`."""
    library = target.partition(":")[0]
    if library in _LIBRARIES and "@" in target:
        return OwnFeatures(target, _of_library(target), side=side, channels=channels)
    with working_directory_importable(True):
        make = resolve(target)
        try:
            network = make()
        except Exception as error:
            raise InputError(f"{target}() failed with {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"Expected {target} to return a torch.nn.Module, got {type(network).__name__}.")
    return OwnFeatures(target, network, side=side, channels=channels)


class _Normalised(nn.Module):
    """A network of colour images that wants them normalised."""

    def __init__(self, network: nn.Module, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.network((images - self.get_buffer("mean")) / self.get_buffer("deviation"))
        return found


def _timm(library: Any, name: str) -> _Normalised:
    network = library.create_model(name, pretrained=False, num_classes=0)
    known = network.pretrained_cfg
    return _Normalised(network, known["mean"], known["std"])


def _torchvision(library: Any, name: str) -> _Normalised:
    network = library.get_model(name, weights=None)
    last = [where for where, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    parent, _, child = last.rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return _Normalised(network, *_IMAGENET)


_LIBRARIES: Mapping[str, tuple[str, Callable[[Any, str], _Normalised]]] = {
    "timm": ("timm", _timm),
    "torchvision": ("torchvision.models", _torchvision),
}


def _of_library(target: str) -> nn.Module:
    """A network of an installed library with the weights of a safetensors file; a classifier's last layer is left."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    library, _, rest = target.partition(":")
    name, _, file = rest.partition("@")
    module, build = _LIBRARIES[library]
    try:
        network = build(importlib.import_module(module), name)
        missing = network.get_submodule("network").load_state_dict(load_file(file), strict=False).missing_keys
    except ImportError as error:
        raise InputError(f"{target} needs {library}, which is not installed: pip install {library}") from error
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(f"Cannot load {target}: {str(error).splitlines()[0]}") from error
    if missing:
        raise InputError(f"{file} does not hold the weights of {name}: {missing[0]} is missing.")
    return network.eval()


def prepared(images: Tensor, side: int) -> Tensor:
    """Images in [0, 1] as the published networks were shown them: colour, of one side, normalised."""
    brought = (resized(images, side) - _MEAN) / _DEVIATION
    return brought.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def published_network(name: str) -> EfficientNetLite:
    """The network of that name with its published weights, as they are."""
    content = read_weights(name)
    # Weights of torch's own initialisation are drawn and overwritten; the caller's random state stays.
    with torch.random.fork_rng(devices=[]):
        network = EfficientNetLite(name)
    try:
        network.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise InputError(f"The weights of {name} have other names or shapes: {str(error).splitlines()[-1]}") from error
    return network


def _on_grid(maps: Tensor, most: int = _GRID) -> Tensor:
    height, width = (min(most, side) for side in maps.shape[2:])
    return functional.adaptive_avg_pool2d(maps, (height, width)).flatten(1)


def _mixes_rows(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training


def _hash_of(network: nn.Module) -> str:
    """Of the names, shapes and bits of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
