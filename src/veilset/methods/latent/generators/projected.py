"""Training of a generator on PUBLIC images against a critic that sees them through pretrained features.

Projected GAN (Sauer et al., NeurIPS 2021): hinge loss on several depths of fixed features, mixed by random weights;
augmentation that gradients flow through, for real and generated images alike (Zhao et al., NeurIPS 2020).
"""

import numpy as np
import torch
from torch import Tensor

from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.tensors import as_floats
from veilset.methods.latent.generators.game import Game
from veilset.methods.latent.generators.recipes import ProjectedRecipe
from veilset.models.features.pretrained import LiteFeatures
from veilset.models.generators.projected_critic import ProjectedCritic, hinge_of_critic, hinge_of_generator
from veilset.models.generators.sharpened import SharpenedGenerator

_PICTURES = 1000  # that the principal directions are taken from


class ProjectedGame(Game):
    """A generator that sharpens and a projected critic between steps."""

    label = "projected"
    generator: SharpenedGenerator
    critic: ProjectedCritic

    def __init__(self, size: int, channels: int, recipe: ProjectedRecipe, *, seed: int, device: str) -> None:
        features = LiteFeatures(recipe.features, max(recipe.side, size))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "projected networks"))
            generator = SharpenedGenerator(size, channels, recipe.latent_size, recipe.width)
            critic = ProjectedCritic(features, recipe.critic_width)
        rates = (recipe.learning_rate, recipe.critic_rate)
        super().__init__(generator, critic, recipe, rates=rates, seed=seed, device=device)
        self.augmented_share = recipe.augmented

    def begin(self, public: Records) -> None:
        """Let the generator begin with the principal directions of public pictures."""
        self.generator.learn_directions(self._pictures(public).to(self.device))
        super().begin(public)

    def _pictures(self, public: Records) -> Tensor:
        """Public pictures for the principal directions, mirrored ones among them where the recipe says so."""
        order = numpy_generator(self.seed, "projected directions").permutation(len(public.labels))
        pixels = as_floats(torch.from_numpy(public.read(np.sort(order[:_PICTURES]).astype(np.int64))))
        return torch.cat([pixels, pixels.flip(3)]) if self.is_mirrored else pixels

    def advance(self, real: Tensor) -> None:
        """One step of the critic, then one of the generator, on the same generated images."""
        coins = torch_generator(self.seed, f"projected step {self.step}", self.device)
        fake, real = self.drawn(len(real), coins), self.mirrored(real, coins)
        with torch.no_grad():  # nothing of the features is trained
            seen = [self.critic.project(self._changed(images, coins)) for images in (real, fake.detach())]
        self.judged(hinge_of_critic(self.critic.judge(seen[0]), self.critic.judge(seen[1])))
        self.made(hinge_of_generator(self.critic(self._changed(fake, coins))))

    def _changed(self, images: Tensor, coins: torch.Generator) -> Tensor:
        return self.changed(images, self.augmented_share, coins)
