"""What games between a generator and a critic on PUBLIC images share: steps, checkpoints, a clock, pictures."""

import io
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Images, Records
from veilset.data.tensors import as_floats
from veilset.methods.latent.generators.recipes import ProjectedRecipe, StyleRecipe
from veilset.models.generators.style import LatentGenerator
from veilset.training.augment import AugmentConfig, augment
from veilset.training.settings import WeightAverage

CHECKPOINT_EVERY = 200
_FEWEST_IMAGES = 16
_PICTURED = 48
_BETAS = (0.0, 0.99)  # of Adam
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


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How long a training may take, and who wants to see it.

    Args:
        minutes: after which it stops, its state kept; None for no limit.
        show: gets pictures (n, H, W, C) of the same latents again and again.
        show_every: seconds between them.
        stopped: is told the step at which the minutes ended the training.
    """

    minutes: float | None = None
    show: Callable[[Images], None] | None = None
    show_every: float = 180.0
    stopped: Callable[[int], None] | None = None


UNWATCHED = Watch()


class Game(ABC):
    """Generator and critic between steps; they can be saved and taken up again.

    A subclass has `advance`; `label` names its random streams.
    """

    label: ClassVar[str]

    def __init__(
        self,
        generator: LatentGenerator,
        critic: nn.Module,
        recipe: StyleRecipe | ProjectedRecipe,
        *,
        rates: tuple[float, float],
        seed: int,
        device: str,
    ) -> None:
        self.generator, self.critic, self.seed, self.device = generator, critic, seed, device
        self.steps, self.batch, self.is_mirrored = recipe.steps, recipe.batch, recipe.mirrored
        for network in (self.generator, self.critic):
            network.to(device)
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # quicker on a CPU
        self._making = torch.optim.Adam(self.generator.parameters(), lr=rates[0], betas=_BETAS)
        self._judging = torch.optim.Adam(self.critic.parameters(), lr=rates[1], betas=_BETAS)
        self._decay = recipe.decay
        self.restart_average()
        self.augmented_share = 0.0
        self.step = 0

    def begin(self, public: Records) -> None:  # noqa: ARG002
        """What precedes the first step of a new training: the average follows the networks as they start."""
        self.restart_average()

    def restart_average(self) -> None:
        """Forget the average of weights; it begins with those of now."""
        self._average = WeightAverage(self.generator, self._decay)

    @abstractmethod
    def advance(self, real: Tensor) -> None:
        """One step of both on a batch of real images."""

    def drawn(self, count: int, coins: torch.Generator) -> Tensor:
        """Generated images."""
        z = torch.randn(count, self.generator.latent_size, generator=coins, device=self.device)
        images: Tensor = self.generator(self.generator.map(z))
        return images

    def mirrored(self, real: Tensor, coins: torch.Generator) -> Tensor:
        """Half of the real images mirrored, where the recipe says so."""
        if not self.is_mirrored:
            return real
        turned = torch.rand(len(real), 1, 1, 1, generator=coins, device=self.device) < 0.5
        return torch.where(turned, real.flip(3), real)

    def changed(self, images: Tensor, share: float, coins: torch.Generator) -> Tensor:
        """A share of the images augmented; gradients flow through."""
        chosen = torch.rand(len(images), 1, 1, 1, generator=coins, device=self.device) < share
        return torch.where(chosen, augment(images, _CHANGES, coins), images) if bool(chosen.any()) else images

    def judged(self, loss: Tensor) -> None:
        """A step of the critic."""
        self._judging.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._judging.step()

    def made(self, loss: Tensor) -> None:
        """A step of the generator, which ends a step of the game."""
        self._making.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._making.step()
        self._average.update(self.generator, self.step)
        if self.step % CHECKPOINT_EVERY == 0 and not bool(torch.isfinite(loss)):
            raise VeilsetError(f"The generator's loss is not finite at step {self.step}. Lower learning_rate.")
        self.step += 1

    def preview(self) -> Images:
        """What the averaged generator makes of a few fixed latents."""
        training = {name: value.clone() for name, value in self.generator.state_dict().items()}
        self.generator.load_state_dict(self._average.state)
        w = self.generator.draw(_PICTURED, torch_generator(self.seed, f"{self.label} preview"))
        shown = self.generator.render(w)
        self.generator.load_state_dict(training)
        pictures: Images = np.ascontiguousarray(shown.permute(0, 2, 3, 1).numpy())
        return pictures

    def finished(self) -> LatentGenerator:
        """The generator with averaged weights and its average w."""
        self.generator.load_state_dict(self._average.state)
        self.generator.settle(torch_generator(self.seed, f"{self.label} average"))
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


def require_enough(public: Records) -> None:
    """Refuse too few public images."""
    if len(public.labels) < _FEWEST_IMAGES:
        raise InputError(f"Expected at least {_FEWEST_IMAGES} public images, got {len(public.labels)}.")


def play(
    game: Game,
    public: Records,
    *,
    checkpoint: Path | None = None,
    watch: Watch = UNWATCHED,
    progress: Progress = SILENT,
) -> LatentGenerator:
    """The generator after all steps, or after the minutes of the watch.

    With `checkpoint`, the state is kept in that file, and a run that finds it there goes on with it.
    """
    if checkpoint is not None and checkpoint.exists():
        game.load(checkpoint)
    else:
        game.begin(public)
    begun = shown = time.monotonic()
    with progress.task("training the public generator", game.steps) as task:
        task.advance(game.step)
        while game.step < game.steps:
            rows = numpy_generator(game.seed, f"{game.label} rows {game.step}")
            chosen = np.sort(rows.integers(0, len(public.labels), game.batch))
            game.advance(as_floats(torch.from_numpy(public.read(chosen)), game.device))
            task.advance()
            if checkpoint is not None and game.step % CHECKPOINT_EVERY == 0:
                game.save(checkpoint)
            now = time.monotonic()
            if watch.show is not None and now - shown > watch.show_every:
                watch.show(game.preview())
                shown = now
            if watch.minutes is not None and now - begun > 60 * watch.minutes:
                if watch.stopped is not None:
                    watch.stopped(game.step)
                break
    if checkpoint is not None:
        game.save(checkpoint)
    if watch.show is not None:
        watch.show(game.preview())
    return game.finished()
