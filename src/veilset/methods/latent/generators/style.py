"""Training of a style-based generator on PUBLIC images: an adversarial game that costs no privacy.

Non-saturating loss, the R1 penalty every sixteenth step (Karras et al. 2020), an average of the generator's weights,
and augmentation whose probability follows how sure the critic is of real images, so that small public sets do not get
learned by heart (Karras et al., "Training generative adversarial networks with limited data", NeurIPS 2020).
"""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.tensors import as_floats
from veilset.methods.latent.generators.recipes import StyleRecipe
from veilset.models.generators.style import StyleCritic, StyleGenerator
from veilset.training.augment import AugmentConfig, augment
from veilset.training.settings import WeightAverage

_PENALTY_EVERY = 16
_CHECKPOINT_EVERY = 200
_FEWEST_IMAGES = 16
# The share of real images that the critic calls real, less that it calls fake, to which augmentation is steered.
_SURE_OF_REAL = 0.6
_MOST_AUGMENTED = 0.8  # above, generated images would come to look augmented
_IMAGES_TO_FULL_AUGMENTATION = 100_000
_CHANGES = AugmentConfig(
    shift=0.125,
    rotation=0.0,
    scale=0.15,
    shear=0.0,
    erase=0.3,
    erase_area=0.25,
    contrast=0.4,
    brightness=0.2,
    noise=0.0,
)


def train_generator(
    public: Records,
    recipe: StyleRecipe,
    *,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> StyleGenerator:
    """A generator of images like the public ones, in evaluation mode.

    With `checkpoint`, the state is kept in that file, and a run that finds it there goes on with it.
    """
    height, width, channels = public.shape
    if height != width:
        raise InputError(f"Expected square public images, got {height}x{width}. Pass --size 32.")
    if len(public.labels) < _FEWEST_IMAGES:
        raise InputError(f"Expected at least {_FEWEST_IMAGES} public images, got {len(public.labels)}.")
    game = StyleGame(height, channels, recipe, seed=seed, device=device)
    if checkpoint is not None and checkpoint.exists():
        game.load(checkpoint)
    with progress.task("training the public generator", recipe.steps) as task:
        task.advance(game.step)
        while game.step < recipe.steps:
            rows = numpy_generator(seed, f"style rows {game.step}").integers(0, len(public.labels), recipe.batch)
            game.advance(as_floats(torch.from_numpy(public.read(np.sort(rows))), device))
            task.advance()
            if checkpoint is not None and game.step % _CHECKPOINT_EVERY == 0:
                game.save(checkpoint)
    return game.finished()


class StyleGame:
    """Generator and critic between steps; they can be saved and taken up again."""

    def __init__(self, size: int, channels: int, recipe: StyleRecipe, *, seed: int, device: str) -> None:
        self.recipe, self.seed, self.device = recipe, seed, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "style networks"))
            self.generator = StyleGenerator(size, channels, recipe.latent_size, recipe.width, recipe.mapping_layers)
            self.critic = StyleCritic(size, channels, recipe.width)
        for network in (self.generator, self.critic):
            network.to(device)
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # quicker on a CPU
        betas = (0.0, 0.99)
        self._making = torch.optim.Adam(self.generator.parameters(), lr=recipe.learning_rate, betas=betas)
        self._judging = torch.optim.Adam(self.critic.parameters(), lr=recipe.learning_rate, betas=betas)
        self._average = WeightAverage(self.generator, recipe.decay)
        self.augmented_share = 0.0
        self.step = 0

    def advance(self, real: Tensor) -> None:
        """One step of the critic, then one of the generator, on the same generated images."""
        coins = torch_generator(self.seed, f"style step {self.step}", self.device)
        z = torch.randn(len(real), self.recipe.latent_size, generator=coins, device=self.device)
        fake = self.generator(self.generator.map(z))
        if self.recipe.mirrored:
            turned = torch.rand(len(real), 1, 1, 1, generator=coins, device=self.device) < 0.5
            real = torch.where(turned, real.flip(3), real)
        self._judge(real, fake.detach(), coins)
        loss = functional.softplus(-self.critic(self._changed(fake, coins))).mean()
        self._making.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._making.step()
        self._average.update(self.generator, self.step)
        if self.step % _CHECKPOINT_EVERY == 0 and not bool(torch.isfinite(loss)):
            raise VeilsetError(f"The generator's loss is not finite at step {self.step}. Lower learning_rate.")
        self.step += 1

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
        self._judging.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._judging.step()
        if self.recipe.augmented:
            towards = float(of_real.detach().sign().mean()) - _SURE_OF_REAL
            share = self.augmented_share + (1 if towards > 0 else -1) * len(real) / _IMAGES_TO_FULL_AUGMENTATION
            self.augmented_share = min(max(share, 0.0), _MOST_AUGMENTED)

    def _changed(self, images: Tensor, coins: torch.Generator) -> Tensor:
        if not self.recipe.augmented:
            return images
        chosen = torch.rand(len(images), 1, 1, 1, generator=coins, device=self.device) < self.augmented_share
        return torch.where(chosen, augment(images, _CHANGES, coins), images) if bool(chosen.any()) else images

    def finished(self) -> StyleGenerator:
        """The generator with averaged weights and its average w."""
        self.generator.load_state_dict(self._average.state)
        self.generator.settle(torch_generator(self.seed, "style average"))
        self.generator.eval().requires_grad_(False)
        return self.generator

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all. It holds public images' traces only."""
        state = {
            "generator": self.generator.state_dict(),
            "critic": self.critic.state_dict(),
            "making": self._making.state_dict(),
            "judging": self._judging.state_dict(),
            "average": self._average.state,
            "augmented_share": self.augmented_share,
            "step": self.step,
        }
        content = io.BytesIO()
        torch.save(state, content)
        write_whole(path, content.getvalue())

    def load(self, path: Path) -> None:
        """Take up a saved state."""
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.generator.load_state_dict(state["generator"])
            self.critic.load_state_dict(state["critic"])
            self._making.load_state_dict(state["making"])
            self._judging.load_state_dict(state["judging"])
            self._average.state = state["average"]
            self.augmented_share, self.step = state["augmented_share"], state["step"]
        except (RuntimeError, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is not a checkpoint of this training: {str(error).splitlines()[0]} Remove it to start anew."
            ) from error
