"""Move images until a teacher sees on them what it sees on private images (Algorithm 1 of DP-ImgSyn).

Post-processing: the teacher and the target statistic are released, the starting images are public.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.files import write_whole
from veilset.methods.imgsyn.config import AlignSettings
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.training.threads import set_thread_count, usable_cores

_BETAS = (0.5, 0.99)
ANY = -1
"""A finding of which nothing is asked."""

# Keeps the gradient of the total variation finite where an image is flat.
_VARIATION_FLOOR = 1e-8


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """A batch after alignment, and the total variation of every iterate."""

    images: Tensor  # (b, C, H, W) in [0, 1]
    variations: tuple[float, ...]


def align(
    start: Tensor, labels: Tensor, moments: LayerMoments, target: Tensor | None, config: AlignSettings
) -> Aligned:
    """Algorithm 1 for one batch; the iterate of the smallest loss is kept, or the last (`keep`).

    Args:
        start: images in [0, 1], (b, C, H, W).
        labels: the class (b,) that each image is moved towards, or (b, findings) zeros, ones and `ANY`.
        moments: what to compare.
        target: the released mean row, (1, width), or one for each class, (classes, width); None where the distance of
            moments has no weight.
        config: steps and weights.
    """
    images = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=config.learning_rate, betas=_BETAS)
    best, smallest, variations = start, float("inf"), []
    for step in range(config.iterations + 1):
        # Line 4: what the teacher sees. Line 5: the loss of Equation 5.
        logits, rows = moments.observe(images)
        loss = config.class_weight * _label_loss(logits, labels)
        if target is not None and config.feature_weight:
            loss = loss + config.feature_weight * moments.distance(*_compared(rows, labels, target))
        variation = total_variation(images)
        loss = (
            loss + config.variation_weight * variation + config.square_weight * images.square().flatten(1).sum(1).mean()
        )
        variations.append(float(variation.detach()))
        if float(loss.detach()) < smallest:
            best, smallest = images.detach().clone(), float(loss.detach())
        if step < config.iterations:
            # Lines 6 and 7: a step of the images alone.
            (images.grad,) = torch.autograd.grad(loss, [images])
            optimizer.step()
            with torch.no_grad():
                images.clamp_(0, 1)
    kept = best if config.keep == "best" else images.detach().clone()
    return Aligned(images=kept, variations=tuple(variations))


def total_variation(images: Tensor) -> Tensor:
    """Equation 3: lengths of the brightness' gradient, summed over the pixels and averaged over the images."""
    corner = images[..., :-1, :-1]
    across, down = images[..., :-1, 1:] - corner, images[..., 1:, :-1] - corner
    return (across.square() + down.square() + _VARIATION_FLOOR).sqrt().flatten(1).sum(dim=1).mean()


def turning_point(variations: tuple[float, ...]) -> int:
    """The iterate where the total variation turns upward; on a curve that only rises, its knee.

    Past it images become artificial (Section 5.2 of the paper). It is seen on the synthetic images alone. The knee is
    the point farthest above the line from the first to the last value (Satopaa et al., 2011).
    """
    lowest = min(range(len(variations)), key=variations.__getitem__)
    rise = variations[-1] - variations[0]
    if lowest > 0 or rise <= 0 or len(variations) < 3:
        return lowest
    last = len(variations) - 1
    return max(range(len(variations)), key=lambda k: (variations[k] - variations[0]) / rise - k / last)


def in_parallel(work: Callable[[int], Tensor], count: int, workers: int | None = None) -> Iterator[Tensor]:
    """`work(0)`, `work(1)`, ... in order, several at once, each on a core of its own.

    Small convolutions gain less from a second core than a second batch does. Threads do: torch computes outside
    Python's lock, and nothing has to be copied to another process.
    """
    workers = workers or usable_cores()
    if workers == 1 or count == 1:
        yield from map(work, range(count))
        return
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(work, range(count))
        finally:
            pool.shutdown(cancel_futures=True)
            set_thread_count()


class KeptBatches:
    """Finished batches in a folder of the workspace, so that an interrupted run goes on. They are post-processed."""

    def __init__(self, workspace: Path | None, name: str) -> None:
        self._folder = None if workspace is None else workspace / name
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def each(self, work: Callable[[int], Tensor], count: int) -> Iterator[Tensor]:
        """`work(0)`, `work(1)`, ... in order, as `in_parallel`; what was finished before is not done again."""

        def made(number: int) -> Tensor:
            earlier = self._load(number)
            return self._save(number, work(number)) if earlier is None else earlier

        return in_parallel(made, count)

    def _load(self, number: int) -> Tensor | None:
        """Batch `number`, if it was finished before."""
        place = self._place(number)
        return torch.from_numpy(np.load(place, allow_pickle=False)) if place is not None and place.exists() else None

    def _save(self, number: int, images: Tensor) -> Tensor:
        """Keep batch `number`; returns it."""
        place = self._place(number)
        if place is not None:
            content = BytesIO()
            np.save(content, images.numpy(), allow_pickle=False)
            write_whole(place, content.getvalue())
        return images

    def _place(self, number: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{number}.npy"


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy to the class aimed at, or to the findings that are asked for."""
    if labels.ndim == 1:
        return functional.cross_entropy(logits, labels)
    asked = labels != ANY
    return functional.binary_cross_entropy_with_logits(logits[asked], labels[asked].to(logits))


def _compared(rows: Tensor, labels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Mean rows of the batch and what they are compared with: over all images, or for each class in the batch."""
    if len(target) == 1 and labels.ndim == 1:
        return rows.mean(dim=0, keepdim=True), target
    if labels.ndim == 2:
        return _compared_findings(rows, labels, target)
    counts = torch.bincount(labels, minlength=len(target))
    present = counts > 0
    sums = torch.zeros_like(target).index_add(0, labels, rows)
    return sums[present] / counts[present, None], target[present]


def _compared_findings(rows: Tensor, aims: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Mean rows of the images that shall have a finding, beside those of the private images that have it."""
    if len(target) == 1 < aims.shape[1]:  # one statistic for all images
        return rows.mean(dim=0, keepdim=True), target
    has = (aims == 1).to(rows)
    counts = has.sum(dim=0)
    present = counts > 0
    if not bool(present.any()):
        return rows[:1] * 0, target[:1] * 0
    return (has.T @ rows)[present] / counts[present, None], target[present]
