"""Public generators by recipe: what `veilset generator train` and the method `latent` make of public images."""

from pathlib import Path

from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.methods.latent.generators.eigen import fit_eigen
from veilset.methods.latent.generators.recipes import EigenRecipe, Recipe
from veilset.methods.latent.generators.style import train_generator
from veilset.models.generators.style import LatentGenerator


def make_generator(
    public: Records,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> LatentGenerator:
    """A generator of images like the public ones, in evaluation mode.

    With `checkpoint`, an unfinished training is kept in that file and found again.
    """
    if isinstance(recipe, EigenRecipe):
        return fit_eigen(public, mirrored=recipe.mirrored, seed=seed, device=device, progress=progress)
    return train_generator(public, recipe, seed=seed, device=device, checkpoint=checkpoint, progress=progress)
