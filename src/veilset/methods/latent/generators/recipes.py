"""How public generators are made: recipes by name, and the length of the latents that follows. Loads no torch."""

from typing import Literal

from veilset.core.settings import RATE, Auto, Settings, setting

GeneratorKind = Literal["style", "eigen"]
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


Recipe = EigenRecipe | StyleRecipe

STYLES: dict[GeneratorPreset, StyleRecipe] = {
    "fast": StyleRecipe(latent_size=32, width=8, steps=300, batch=16, mapping_layers=2, decay=0.98),
    "default": StyleRecipe(),
    "large": StyleRecipe(
        latent_size=256, width=64, steps=100_000, mapping_layers=8, learning_rate=0.0025, penalty=1.0, decay=0.9995
    ),
}


def recipe_of(
    kind: GeneratorKind, *, preset: GeneratorPreset = "default", steps: int | Auto = "auto", mirrored: bool = False
) -> Recipe:
    """The recipe of a kind; preset and steps are those of a style generator, and `auto` leaves steps to the preset."""
    if kind == "eigen":
        return EigenRecipe(mirrored=mirrored)
    style = STYLES[preset]
    return style.changed(mirrored=mirrored, steps=style.steps if steps == "auto" else steps)


def eigen_size(shape: tuple[int, int, int]) -> int:
    """The principal directions of images of a shape, where there are enough of them."""
    height, width, channels = shape
    return min(_MOST_DIRECTIONS, height * width * channels)


def latent_size_of(recipe: Recipe, shape: tuple[int, int, int]) -> int:
    """The length of the latents of a generator that a recipe makes from enough public images of a shape."""
    return recipe.latent_size if isinstance(recipe, StyleRecipe) else eigen_size(shape)
