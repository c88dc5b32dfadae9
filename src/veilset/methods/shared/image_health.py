"""Do images show what was asked? Collapse and confusion (dpaf, dpgan, sanitized_gan); soft labels (evolve, pldk).

Everything here is post-processing: the images are what is released, and the classifier, where there is one, is private.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veilset.core.errors import VeilsetError
from veilset.core.records import Images, Labels
from veilset.data.tensors import as_floats

# Root mean square difference of pixels in [0, 1]; five grey levels. MNIST's classes are near .3, X-rays near .15.
_LEAST_DIFFERENCE = 0.02
# A class whose images a private classifier recognises less often than this is not covered.
_LEAST_RECOGNISED = 0.3


@dataclass(frozen=True, kw_only=True)
class Health:
    """What was found, one number for each class.

    Args:
        diversity: root mean square difference of two images of the class, pixels in [0, 1].
        nearest_class: of the class' mean image to the nearest mean of another class.
        recognised: share of the class' images that the classifier takes for it; None without a classifier.
    """

    diversity: NDArray[np.float64]
    nearest_class: NDArray[np.float64]
    recognised: NDArray[np.float64] | None = None

    @property
    def coverage(self) -> float:
        """Share of the classes that are neither collapsed nor unrecognised."""
        return 1 - len({*self._collapsed(), *self._unrecognised()}) / len(self.diversity)

    def warnings(self, class_names: Sequence[str]) -> list[str]:
        """Sentences for certificate and card; none when all is well."""
        found = []
        if collapsed := self._collapsed():
            found.append(f"Mode collapse: the images of {_names(collapsed, class_names)} are nearly all alike.")
        alike = [k for k, distance in enumerate(self.nearest_class) if distance < _LEAST_DIFFERENCE]
        if alike and len(class_names) > 1:
            found.append(f"Classes look alike on average: {_names(alike, class_names)}.")
        if lost := self._unrecognised():
            found.append(
                f"Class coverage {self.coverage:.0%}: a private classifier does not recognise the images of "
                f"{_names(lost, class_names)}."
            )
        return found

    def _collapsed(self) -> list[int]:
        return [k for k, diversity in enumerate(self.diversity) if diversity < _LEAST_DIFFERENCE]

    def _unrecognised(self) -> list[int]:
        shares: list[float] = [] if self.recognised is None else self.recognised.tolist()
        return [k for k, share in enumerate(shares) if share < _LEAST_RECOGNISED]


def inspect(images: Images, labels: Labels, classes: int, seen_as: Labels | None = None) -> Health:
    """Look at 8-bit images, at least two of each class; `seen_as` is what a private classifier takes them for."""
    pixels = images.reshape(len(images), -1).astype(np.float64) / 255
    members = [np.flatnonzero(labels == k) for k in range(classes)]
    if min(map(len, members)) < 2:
        raise VeilsetError(f"Expected at least two images of each of {classes} classes to look at.")
    means = np.stack([pixels[rows].mean(axis=0) for rows in members])
    diversity = [float(np.sqrt(2 * pixels[rows].var(axis=0, ddof=1).mean())) for rows in members]
    distances = np.sqrt(np.square(means[:, None] - means[None]).mean(axis=2))
    np.fill_diagonal(distances, np.inf)
    recognised = (
        None if seen_as is None else np.array([float((seen_as[rows] == k).mean()) for k, rows in enumerate(members)])
    )
    return Health(diversity=np.array(diversity), nearest_class=distances.min(axis=1), recognised=recognised)


@torch.no_grad()
def soft_labels_of(
    classifier: nn.Module, images: Images, device: str, *, findings: bool = False, temperature: float = 1.0
) -> NDArray[np.float32]:
    """A classifier's probabilities (b, classes) for stored 8-bit images; of findings, of each by itself.

    Logits are divided by the temperature first.
    """
    parts = [classifier(as_floats(part, device)).cpu() for part in torch.split(torch.from_numpy(images), 500)]
    logits = torch.cat(parts).float() / temperature
    return (logits.sigmoid() if findings else logits.softmax(dim=1)).numpy()


def require_finite(network: nn.Module, what: str) -> None:
    """Refuse weights that are not finite."""
    values: list[Tensor] = [value for value in network.state_dict().values() if value.is_floating_point()]
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise VeilsetError(f"The weights of {what} are not finite: training diverged. Lower the learning rates.")


def _names(places: list[int], class_names: Sequence[str]) -> str:
    return ", ".join(class_names[k] for k in places)
