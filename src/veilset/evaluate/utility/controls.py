"""Controls: what the same student reaches without what the release is praised for.

A student that reads the teacher's own features learns from labelled noise nearly all that the teacher knows. So a score
says that the images teach only where the same student does much worse on noise with the same kind of labels. Shuffled
labels show what is left when images and labels no longer belong together: chance, unless something is wrong.
"""

from typing import Any

import numpy as np
from torch import nn

from veilset.core.randomness import numpy_generator
from veilset.core.records import Images, Records
from veilset.evaluate.utility.reference_scores import Run, entry, labelled_by, students
from veilset.release.format import Release

_SPREAD = 6.0  # deviations of noise from black to white


def control_scores(release: Release, teacher: nn.Module | None, test: Records, run: Run) -> list[dict[str, Any]]:
    """The student of `run` on noise and on shuffled labels, as many images as the release has."""
    classes, labels, soft = release.certificate.facts.classes, release.labels, release.soft_labels
    noise = raw_noise(release.images.shape, run.first_seed)
    noise_labels, noise_soft = labels, soft
    if teacher is not None:
        noise_labels, noise_soft = labelled_by(teacher, noise, classes, run, findings=labels.ndim == 2)
    order = numpy_generator(run.first_seed, "shuffled labels").permutation(len(labels))
    shuffled = None if soft is None else soft[order]
    found = {
        "noise": students(noise, noise_labels, noise_soft, classes, test, run),
        "shuffled": students(release.images, labels[order], shuffled, classes, test, run),
    }
    return [entry(name, result) | {"student": run.student} for name, result in found.items()]


def raw_noise(shape: tuple[int, ...], seed: int) -> Images:
    """Gaussian noise around grey, as 8-bit images of this shape."""
    drawn = numpy_generator(seed, "noise of a control").standard_normal(shape, dtype=np.float32)
    noise: Images = ((drawn / _SPREAD + 0.5).clip(0, 1) * 255).round().astype(np.uint8)
    return noise
