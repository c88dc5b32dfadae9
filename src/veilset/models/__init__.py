"""Networks by name. Every one takes floats in [0, 1] of shape (batch, channels, height, width) and returns logits.

Nothing here imports torch until a network is built, so that listing the names stays quick.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.core.registry import Registry, resolve

if TYPE_CHECKING:
    from torch import nn

SMALLEST_SIDE = 16

NETWORKS: Registry[Callable[..., "nn.Module"]] = Registry(
    "network",
    {
        "convnet": "veilset.models.classifiers.convnet:ConvNet",
        "convnet-tanh": "veilset.models.classifiers.convnet:TanhConvNet",
        "convnet-even": "veilset.models.classifiers.convnet:EvenConvNet",
        "lenet": "veilset.models.classifiers.lenet:LeNet",
        "mlp": "veilset.models.classifiers.mlp:MLP",
        "scatternet": "veilset.models.classifiers.scatternet:ScatterNet",
        "resnet18": "veilset.models.classifiers.resnet:resnet18",
        "resnet34": "veilset.models.classifiers.resnet:resnet34",
        "vgg11": "veilset.models.classifiers.vgg:VGG11",
        "mobilenetv2": "veilset.models.classifiers.mobilenet:MobileNetV2",
        "shufflenetv2": "veilset.models.classifiers.shufflenet:ShuffleNetV2",
        "wrn": "veilset.models.classifiers.wrn:WideResNet",
        "vit-tiny": "veilset.models.classifiers.vit:ViTTiny",
        "lite0-tuned": "veilset.models.classifiers.tuned:lite0_tuned",
        "lite1-tuned": "veilset.models.classifiers.tuned:lite1_tuned",
    },
)


def build_network(
    name: str,
    *,
    shape: tuple[int, int, int],
    classes: int,
    norm: str = "group",
    width: int | None = None,
    depth: int | None = None,
    seed: int = 0,
) -> "nn.Module":
    """A network for images of `shape` (height, width, channels), its first weights drawn from `seed`.

    Args:
        name: one of `NETWORKS`, such a name with a width (`resnet18@16`), or `module:function` of the user's own. The
            function is called with those of the keyword arguments channels, classes, size (the shorter side), height,
            width (of the image), norm and depth that it accepts.
        shape: height, width and channels of the images.
        classes: number of logits.
        norm: "group" (mixes no records, so DP-SGD can clip it) or "batch".
        width: width of the families that have one (convnet: first channels; wrn: factor); None is their default.
        depth: depth of the families that have one; None is their default.
        seed: of the first weights; torch's global generator is left as it was.
    """
    import torch

    height, wide, channels = shape
    if min(shape) < 1 or classes < 1:
        raise InputError(f"Expected positive height, width, channels and classes, got {shape} and {classes}.")
    own = ":" in name
    if not own and "@" in name:
        name, width = _with_width(name, width)
    if own and width is not None:
        raise InputError(f"width is a setting of the built-in networks; {name} is called with the image's width.")
    offered: dict[str, object] = {"channels": channels, "classes": classes, "size": min(height, wide)}
    if own:
        offered |= {"height": height, "width": wide, "norm": norm}
    elif min(height, wide) < SMALLEST_SIDE:
        raise InputError(
            f"Expected images of at least {SMALLEST_SIDE}x{SMALLEST_SIDE} for {name}, got {height}x{wide}. Pass --size."
        )
    else:
        offered |= {"norm": norm} | ({} if width is None else {"width": width})
    offered |= {} if depth is None else {"depth": depth}
    with torch.random.fork_rng(devices=[]), working_directory_importable(own):
        torch.manual_seed(derive_seed(seed, "network"))
        builder = resolve(name) if own else NETWORKS.get(name)
        if own:
            return _build_own(name, builder, offered, shape, classes)
        missing = set(offered) - set(inspect.signature(builder).parameters)
        if missing:
            raise InputError(f"{name} has no setting {', '.join(sorted(missing))}. Leave it out.")
        return builder(**offered)


def _with_width(name: str, width: int | None) -> tuple[str, int]:
    """`resnet18@16` as a name and a width."""
    name, _, wanted = name.partition("@")
    if width is not None or not wanted.isdigit():
        raise InputError(
            f"Expected one width, as in {name}@16, got {wanted!r}{'' if width is None else ' and another'}."
        )
    return name, int(wanted)


@contextlib.contextmanager
def working_directory_importable(wanted: bool) -> Iterator[None]:
    """Let `module:function` name a file in the directory the user stands in, as `python -m` would."""
    here = str(Path.cwd())
    added = wanted and here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)


def _build_own(
    name: str, builder: Any, offered: dict[str, object], shape: tuple[int, int, int], classes: int
) -> "nn.Module":
    """Call the user's function and try what it returns on two black images."""
    import torch
    from torch import nn

    if not callable(builder):
        raise InputError(f"Expected {name} to be a function or class, got {type(builder).__name__}.")
    accepted = inspect.signature(builder).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    arguments = {key: value for key, value in offered.items() if takes_all or key in accepted}
    # The user's code may fail in any way; every way is their input to us.
    try:
        network = builder(**arguments)
    except Exception as error:
        raise InputError(f"{name} failed with {type(error).__name__}: {error} (called with {arguments}).") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"Expected {name} to return a torch.nn.Module, got {type(network).__name__}.")
    height, wide, channels = shape
    was_training = network.training
    try:
        with torch.no_grad():
            output = network.eval()(torch.zeros(2, channels, height, wide))
    except Exception as error:
        raise InputError(
            f"The network of {name} failed on images of {(2, channels, height, wide)} (batch, channels, height, "
            f"width) with {type(error).__name__}: {error}"
        ) from error
    network.train(was_training)
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if found != (2, classes):
        raise InputError(f"Expected {name} to return logits of shape (2, {classes}) for 2 images, got {found}.")
    return network
