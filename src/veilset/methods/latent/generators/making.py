"""Public generators by recipe: what `veilset generator train` and the method `latent` make of public images."""

from pathlib import Path

from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.methods.latent.generators.eigen import fit_eigen
from veilset.methods.latent.generators.game import UNWATCHED, Game, Watch, play, require_enough
from veilset.methods.latent.generators.recipes import EigenRecipe, ProjectedRecipe, Recipe, require_sides
from veilset.methods.latent.generators.style import StyleGame
from veilset.models.generators.style import LatentGenerator


def make_generator(
    public: Records,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: Path | None = None,
    watch: Watch = UNWATCHED,
    progress: Progress = SILENT,
) -> LatentGenerator:
    """A generator of images like the public ones, in evaluation mode.

    With `checkpoint`, an unfinished training is kept in that file and found again.
    """
    if isinstance(recipe, EigenRecipe):
        return fit_eigen(public, mirrored=recipe.mirrored, seed=seed, device=device, progress=progress)
    require_enough(public)
    require_sides(recipe, public.shape)
    if isinstance(recipe, ProjectedRecipe):
        from veilset.methods.latent.generators.projected import ProjectedGame

        game: Game = ProjectedGame(public.shape[0], public.shape[2], recipe, seed=seed, device=device)
    else:
        game = StyleGame(public.shape, recipe, seed=seed, device=device)
    return play(game, public, checkpoint=checkpoint, watch=watch, progress=progress)
