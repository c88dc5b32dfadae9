"""How public generators are made: recipes by name, and the length of the latents that follows. Loads no torch."""

from typing import Literal

from veilset.core.errors import InputError
from veilset.core.settings import RATE, Auto, Settings, setting
from veilset.models.generators.sides import LatentsName, layer_count, level_count

GeneratorKind = Literal["style", "projected", "eigen"]
PublishedFeatures = Literal["lite0", "lite1", "lite2"]
GeneratorPreset = Literal["fast", "default", "large"]

_MOST_DIRECTIONS = 1024


class EigenRecipe(Settings):
    """Public images along their principal directions."""

    mirrored: bool = setting(False, "Keep mirrored images, too.")


class StyleRecipe(Settings):
    """Training against a critic."""

    latent_size: int = setting(64, "Length of the latent vector w.", least=1)
    width: int = setting(16, "Maps at the finest level.", least=1)
    mapping_layers: int = setting(4, "Of the mapping network.", least=1)
    steps: int = setting(6000, "Of generator and critic each.", least=1)
    batch: int = setting(32, "Images of a step.", least=2)
    learning_rate: float = setting(0.002, "Of Adam, for both.", **RATE)
    penalty: float = setting(0.1, "Weight of R1.", least=0)
    decay: float = setting(0.998, "Of the average of the generator's weights.", least=0, below=1)
    mirrored: bool = setting(False, "Show half of the images mirrored; right for faces, wrong for digits.")
    augmented: bool = setting(True, "Let augmentation follow the critic.")


class ProjectedRecipe(Settings):
    """Training against a critic that sees images through pretrained features."""

    features: PublishedFeatures = setting("lite0", "What the critic sees through.")
    side: int = setting(64, "Images are enlarged to at least this side for the features.", least=32, most=1024)
    latent_size: int = setting(128, "Principal directions that training starts from.", least=1)
    width: int = setting(16, "Maps at the finest level.", least=1)
    critic_width: int = setting(64, "Maps of the small critics.", least=1)
    steps: int = setting(20_000, "Of generator and critic each.", least=1)
    batch: int = setting(16, "Images of a step.", least=2)
    learning_rate: float = setting(0.002, "Of Adam, for the generator, whose weights are stored at unit scale.", **RATE)
    critic_rate: float = setting(0.0005, "Of Adam, for the critic.", **RATE)
    decay: float = setting(0.999, "Of the average of the generator's weights.", least=0, below=1)
    mirrored: bool = setting(False, "Show half of the images mirrored; right for faces, wrong for digits.")
    augmented: float = setting(
        0.8, "Share of the images that are changed before the critic sees them.", least=0, most=1
    )


Recipe = EigenRecipe | StyleRecipe | ProjectedRecipe

STYLES: dict[GeneratorPreset, StyleRecipe] = {
    "fast": StyleRecipe(latent_size=32, width=8, steps=300, batch=16, mapping_layers=2, decay=0.98),
    "default": StyleRecipe(),
    "large": StyleRecipe(
        latent_size=256, width=64, steps=100_000, mapping_layers=8, learning_rate=0.0025, penalty=1.0, decay=0.9995
    ),
}

PROJECTED: dict[GeneratorPreset, ProjectedRecipe] = {
    "fast": ProjectedRecipe(latent_size=32, width=8, steps=300, decay=0.98, critic_width=32),
    "default": ProjectedRecipe(),
    "large": ProjectedRecipe(latent_size=256, width=64, steps=100_000, batch=32, side=128),
}


def recipe_of(
    kind: GeneratorKind, *, preset: GeneratorPreset = "default", steps: int | Auto = "auto", mirrored: bool = False
) -> Recipe:
    """The recipe of a kind; preset and steps are those of a training, and `auto` leaves steps to the preset."""
    if kind == "eigen":
        return EigenRecipe(mirrored=mirrored)
    trained = STYLES[preset] if kind == "style" else PROJECTED[preset]
    return trained.changed(mirrored=mirrored, steps=trained.steps if steps == "auto" else steps)


def eigen_size(shape: tuple[int, int, int]) -> int:
    """The principal directions of images of a shape, where there are enough of them."""
    height, width, channels = shape
    return min(_MOST_DIRECTIONS, height * width * channels)


def require_sides(recipe: Recipe, shape: tuple[int, int, int]) -> None:
    """Refuse images that a recipe cannot make: eigen makes any, style by the rule of `level_count`, projected squares.

    The critic of a projected generator sees images through a network of squares.
    """
    height, width, _ = shape
    if isinstance(recipe, ProjectedRecipe) and height != width:
        raise InputError(
            f"Expected square images for a projected generator, got {height}x{width}. Pass --size 32, or set "
            "generator_kind=style or eigen."
        )
    if not isinstance(recipe, EigenRecipe):
        level_count(height, width)


def latent_size_of(recipe: Recipe, shape: tuple[int, int, int], latents: LatentsName = "w") -> int:
    """The length of the latents of a generator that a recipe makes from enough public images of a shape."""
    require_sides(recipe, shape)
    if isinstance(recipe, EigenRecipe):
        return eigen_size(shape)
    return recipe.latent_size * (layer_count(*shape[:2]) if latents == "w_plus" else 1)
