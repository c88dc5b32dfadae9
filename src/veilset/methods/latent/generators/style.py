"""Training of a style-based generator on PUBLIC images: an adversarial game that costs no privacy.

Non-saturating loss, the R1 penalty every sixteenth step (Karras et al. 2020), an average of the generator's weights,
and augmentation whose probability follows how sure the critic is of real images, so that small public sets do not get
learned by heart (Karras et al., "Training generative adversarial networks with limited data", NeurIPS 2020).
"""

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.randomness import derive_seed, torch_generator
from veilset.methods.latent.generators.game import Game
from veilset.methods.latent.generators.recipes import StyleRecipe
from veilset.models.generators.style import StyleCritic, StyleGenerator

_PENALTY_EVERY = 16
# The share of real images that the critic calls real, less that it calls fake, to which augmentation is steered.
_SURE_OF_REAL = 0.6
_MOST_AUGMENTED = 0.8  # above, generated images would come to look augmented
_IMAGES_TO_FULL_AUGMENTATION = 100_000


class StyleGame(Game):
    """Generator and critic between steps; they can be saved and taken up again."""

    label = "style"
    generator: StyleGenerator
    critic: StyleCritic

    def __init__(self, shape: tuple[int, int, int], recipe: StyleRecipe, *, seed: int, device: str) -> None:
        height, width, channels = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "style networks"))
            generator = StyleGenerator(
                height, channels, recipe.latent_size, recipe.width, recipe.mapping_layers, breadth=width
            )
            critic = StyleCritic(height, channels, recipe.width, breadth=width)
        rate = recipe.learning_rate
        super().__init__(generator, critic, recipe, rates=(rate, rate), seed=seed, device=device)
        self.recipe: StyleRecipe = recipe

    def advance(self, real: Tensor) -> None:
        """One step of the critic, then one of the generator, on the same generated images."""
        coins = torch_generator(self.seed, f"style step {self.step}", self.device)
        fake, real = self.drawn(len(real), coins), self.mirrored(real, coins)
        self._judge(real, fake.detach(), coins)
        loss = functional.softplus(-self.critic(self._changed(fake, coins))).mean()
        self.made(loss)

    def _judge(self, real: Tensor, fake: Tensor, coins: torch.Generator) -> None:
        penalised = self.recipe.penalty > 0 and self.step % _PENALTY_EVERY == 0
        shown = self._changed(real, coins).detach().requires_grad_(penalised)
        of_real = self.critic(shown)
        loss = functional.softplus(-of_real).mean()
        loss = loss + functional.softplus(self.critic(self._changed(fake, coins))).mean()
        if penalised:
            (slope,) = torch.autograd.grad(of_real.sum(), shown, create_graph=True)
            # The critic sees pixels from -1 to 1, where the slope is half of this one.
            loss = loss + self.recipe.penalty / 2 * _PENALTY_EVERY * slope.square().sum(dim=(1, 2, 3)).mean() / 4
        self.judged(loss)
        if self.recipe.augmented:
            towards = float(of_real.detach().sign().mean()) - _SURE_OF_REAL
            share = self.augmented_share + (1 if towards > 0 else -1) * len(real) / _IMAGES_TO_FULL_AUGMENTATION
            self.augmented_share = min(max(share, 0.0), _MOST_AUGMENTED)

    def _changed(self, images: Tensor, coins: torch.Generator) -> Tensor:
        return self.changed(images, self.augmented_share, coins) if self.recipe.augmented else images
