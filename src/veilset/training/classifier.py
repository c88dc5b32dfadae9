"""Ordinary training of a classifier: students on a release, pre-training on public images.

No privacy is spent or claimed here: the images must be public or synthetic. The model of the last epoch is returned;
nothing is chosen by a score. The same seed gives the same weights on the same machine and thread count.
"""

import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress, track
from veilset.core.randomness import derive_seed, torch_generator
from veilset.core.records import Images, Labels
from veilset.models.classifiers.on_fixed import OnFixedFeatures
from veilset.training.augment import AugmentConfig, augment
from veilset.training.memory import keeping_freed
from veilset.training.settings import TrainingConfig, WeightAverage, make_optimizer, rate_share
from veilset.training.threads import set_thread_count

SoftLabels = NDArray[np.float32]  # (N, K), rows sum to one

# Asking a tensor for its value waits for the device, so a broken loss is looked for only now and then.
_LOSS_CHECK_EVERY = 50
_FEATURES_AT_ONCE = 256
_MOST_FEATURE_BYTES = 2**31


def train_classifier(
    network: nn.Module,
    images: Images,
    labels: Labels,
    soft_labels: SoftLabels | None = None,
    *,
    config: TrainingConfig | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> nn.Module:
    """Train `network` in place on uint8 `images` (N, H, W, C) and return it, in evaluation mode.

    Args:
        network: maps floats in [0, 1], (batch, C, H, W), to logits.
        images: the training images; they stay 8-bit in memory and become floats batch by batch.
        labels: their classes; not looked at when there are soft labels. A matrix (N, F) of zeros and ones is findings,
            each learnt by a sigmoid of its own.
        soft_labels: class probabilities (N, K), or one for each finding (N, F), to match instead of the labels.
        config: the recipe; None is the default one.
        seed: of the order, the augmentation and dropout.
        device: where to train.
        progress: is told steps, never losses.
    """
    config = config or TrainingConfig()
    pixels = _as_pixels(images, device)
    targets = _as_targets(len(pixels), labels, soft_labels, config, device)
    loss_of = _findings_loss if labels.ndim == 2 else _loss
    if device == "cpu":
        set_thread_count()
    network.to(device)
    network.to(memory_format=_layout(config))  # type: ignore[call-overload]  # torch's stub omits this argument alone
    network.train()
    optimizer = make_optimizer(network, config)
    peak_rates = [group["lr"] for group in optimizer.param_groups]
    average = WeightAverage(network, config.ema_decay) if config.ema_decay else None
    augmentation = config.changes_for(len(pixels), soft_labels=soft_labels is not None)
    read = _reader(network, pixels, augmentation, _layout(config), torch_generator(seed, "augmentation", device))
    batches = _batches(len(pixels), config, seed)
    total = config.steps_for(len(pixels))
    with torch.random.fork_rng(devices=_forked(device)), keeping_freed():
        torch.manual_seed(derive_seed(seed, "training"))
        for step, rows in enumerate(track(batches, progress, "training", total)):
            for group, peak in zip(optimizer.param_groups, peak_rates, strict=True):
                group["lr"] = peak * rate_share(step, total, config.schedule, config.milestones)
            loss = loss_of(read(rows), targets[rows], config)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if config.clip_norm:
                nn.utils.clip_grad_norm_(network.parameters(), config.clip_norm)
            optimizer.step()
            if average is not None:
                average.update(network, step)
            if step % _LOSS_CHECK_EVERY == 0 or step == total - 1:
                _require_finite(loss, step, total)
    if average is not None:
        network.load_state_dict(average.state)
    return network.eval()


def predict(network: nn.Module, images: Images, batch_size: int = 512) -> NDArray[np.float32]:
    """Logits (N, K) of uint8 images (N, H, W, C), in evaluation mode; the network's own mode is kept."""
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    was_training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            parts = [
                network(to_float(_as_pixels(images[start : start + batch_size], str(device)))).float().cpu()
                for start in range(0, len(images), batch_size)
            ]
    finally:
        network.train(was_training)
    if not parts:
        raise InputError("Expected at least one image to predict, got none.")
    logits: NDArray[np.float32] = torch.cat(parts).numpy()
    return logits


def to_float(pixels: Tensor) -> Tensor:
    """8-bit pixels (batch, C, H, W) as floats in [0, 1]."""
    return pixels.to(torch.float32).mul_(1 / 255)


def _reader(
    network: nn.Module,
    pixels: Tensor,
    augmentation: AugmentConfig | None,
    layout: torch.memory_format,
    coins: torch.Generator,
) -> Callable[[Tensor], Tensor]:
    """From row numbers to the logits of those images, changed anew each time."""
    if isinstance(network, OnFixedFeatures):
        augmentation = None  # what is fixed is computed once, of images as they are
        if len(pixels) * network.fixed_width * torch.half.itemsize <= _MOST_FEATURE_BYTES:
            features = _features(network, pixels)
            return lambda rows: network.read(features[rows].float())

    def read(rows: Tensor) -> Tensor:
        batch = to_float(pixels[rows])
        if augmentation is not None:
            batch = augment(batch, augmentation, coins)
        logits: Tensor = network(batch.contiguous(memory_format=layout))
        return logits

    return read


def _features(network: OnFixedFeatures, pixels: Tensor) -> Tensor:
    """What its first part makes of all images, computed once; in half precision for half the memory."""
    features = torch.empty(len(pixels), network.fixed_width, dtype=torch.half, device=pixels.device)
    with torch.no_grad():
        for part, room in zip(*(torch.split(rows, _FEATURES_AT_ONCE) for rows in (pixels, features)), strict=True):
            room.copy_(network.fixed(to_float(part)))
    return features


def _layout(config: TrainingConfig) -> torch.memory_format:
    return torch.channels_last if config.channels_last else torch.contiguous_format


def _batches(count: int, config: TrainingConfig, seed: int) -> Iterator[Tensor]:
    """Row numbers of every batch, newly shuffled in each epoch; the odd rest of an epoch is left out."""
    order = torch_generator(seed, "order")
    size = min(config.batch_size, count)
    for _ in range(config.epochs_for(count)):
        shuffled = torch.randperm(count, generator=order)
        yield from shuffled[: count // size * size].reshape(-1, size).unbind()


def _forked(device: str) -> list[torch.device]:
    """The accelerators whose random state must be given back as it was."""
    return [torch.device(device)] if device.startswith("cuda") else []


def _require_finite(loss: Tensor, step: int, total: int) -> None:
    value = loss.item()
    if not math.isfinite(value):
        raise VeilsetError(f"The loss is {value} at step {step} of {total}. Lower learning_rate or set clip_norm=1.")


def _as_pixels(images: Images, device: str) -> Tensor:
    """(N, H, W, C) uint8 as a tensor seen as (N, C, H, W), without a copy on the CPU."""
    if images.ndim != 4 or images.dtype != np.uint8:
        raise InputError(f"Expected uint8 images (N, H, W, C), got {images.dtype} of shape {images.shape}.")
    with warnings.catch_warnings():
        # Arrays of a release are read only; nothing here writes to them, and a copy may not fit into memory.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).to(device)


def _as_targets(
    count: int, labels: Labels, soft_labels: SoftLabels | None, config: TrainingConfig, device: str
) -> Tensor:
    """Class numbers (N,), or probabilities (N, K) already softened by the temperature."""
    given: Labels | SoftLabels = labels if soft_labels is None else soft_labels
    if count == 0 or len(given) != count:
        raise InputError(f"Expected one label for each of the {count} images (at least one), got {len(given)}.")
    if soft_labels is None and labels.ndim == 1:
        return torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
    if labels.ndim == 2:
        wanted = torch.from_numpy(np.array(given, dtype=np.float32)).to(device)
        if wanted.ndim != 2 or not bool(((wanted >= 0) & (wanted <= 1)).all()):
            raise InputError(f"Expected findings (N, F) from 0 to 1, got shape {tuple(wanted.shape)}.")
        return wanted
    soft = torch.from_numpy(np.array(soft_labels, dtype=np.float32)).to(device)
    if soft.ndim != 2 or not bool(torch.isfinite(soft).all()) or bool((soft < 0).any()):
        raise InputError(f"Expected finite soft labels >= 0 of shape (N, classes), got shape {tuple(soft.shape)}.")
    if config.temperature != 1:
        soft = soft.pow(1 / config.temperature)
    return soft / soft.sum(dim=1, keepdim=True).clamp_min(1e-12)


def _findings_loss(logits: Tensor, targets: Tensor, config: TrainingConfig) -> Tensor:  # noqa: ARG001
    """The mean binary cross-entropy of the findings; softer labels would say no more of two answers."""
    if targets.shape[1] != logits.shape[1]:
        raise InputError(f"Expected a network with {targets.shape[1]} outputs, got {logits.shape[1]}.")
    return functional.binary_cross_entropy_with_logits(logits, targets)


def _loss(logits: Tensor, targets: Tensor, config: TrainingConfig) -> Tensor:
    """Cross-entropy; for soft labels its difference to the KL divergence is a constant."""
    wanted = int(targets.max()) + 1 if targets.ndim == 1 else targets.shape[1]
    if wanted > logits.shape[1] or (targets.ndim == 2 and wanted != logits.shape[1]):
        raise InputError(f"Expected a network with {wanted} or more outputs, got {logits.shape[1]}.")
    if targets.ndim == 1:
        return functional.cross_entropy(logits, targets, label_smoothing=config.label_smoothing)
    # The factor keeps gradients of one size at every temperature (Hinton et al., 2015).
    temperature = config.temperature * config.label_temperature
    return functional.cross_entropy(logits / temperature, targets) * temperature**2
