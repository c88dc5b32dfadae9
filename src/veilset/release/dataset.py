"""A release as a torch Dataset, for any training loop."""

import numpy as np
import torch
from torch.utils.data import Dataset

from veilset.core.records import Images, Labels
from veilset.release.pack import SoftLabels


class ReleaseDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of an image, float (C, H, W) in 0..1, and its soft label (K,), or its class or findings without one."""

    def __init__(self, images: Images, labels: Labels, soft_labels: SoftLabels | None) -> None:
        self._images = images
        self._targets = labels if soft_labels is None else soft_labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Copied, because the arrays of a release are read only and torch has no such tensors.
        image = torch.from_numpy(np.array(self._images[index])).permute(2, 0, 1)
        return image.to(torch.float32) / 255, torch.as_tensor(np.array(self._targets[index]))
