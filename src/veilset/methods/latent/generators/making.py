"""Public generators by kind: what `veilset generator train` and the method `latent` make of public images."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.methods.latent.generators.eigen import eigen_size, fit_eigen
from veilset.methods.latent.generators.style import PRESETS, train_generator
from veilset.models.generators.style import LatentGenerator

GeneratorKind = Literal["style", "eigen"]


def latent_size_of(kind: GeneratorKind, preset: str, shape: tuple[int, int, int]) -> int:
    """The length of the latents of a generator that `make_generator` makes from enough public images."""
    return eigen_size(shape) if kind == "eigen" else PRESETS[preset].latent_size


def make_generator(
    public: Records,
    kind: GeneratorKind,
    *,
    preset: str = "default",
    steps: int = 0,
    mirrored: bool = False,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> LatentGenerator:
    """A generator of images like the public ones, in evaluation mode.

    Args:
        public: its images.
        kind: "style" (trained against a critic) or "eigen" (public images along their principal directions).
        preset: of the training of a style generator.
        steps: of that training; 0 leaves it to the preset.
        mirrored: show half of the images mirrored.
        seed: of all that is random.
        device: to compute on.
        checkpoint: where an unfinished training is kept and found again.
        progress: told of the work.
    """
    if kind == "eigen":
        return fit_eigen(public, mirrored=mirrored, seed=seed, device=device, progress=progress)
    config = replace(PRESETS[preset], mirrored=mirrored, steps=steps or PRESETS[preset].steps)
    return train_generator(public, config, seed=seed, device=device, checkpoint=checkpoint, progress=progress)
