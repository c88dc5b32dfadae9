"""The inversion network: from images to the latents that they came from, trained on pairs that the generator makes.

Held-out pairs stop it. No private image plays a part.
"""

import io
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import torch_generator
from veilset.methods.latent.choices import InversionTraining
from veilset.methods.latent.space import LatentSpace
from veilset.models import SMALLEST_SIDE, build_network
from veilset.models.generators.eigen import EigenGenerator
from veilset.models.generators.sharpened import SharpenedGenerator
from veilset.training.settings import rate_share

_HELD_OUT = 512
_LOOK_EVERY = 100
_PATIENCE = 4
_AT_ONCE = 128


def train_inversion(
    space: LatentSpace,
    training: InversionTraining,
    *,
    seed: int,
    checkpoint: Path | None = None,
    progress: Progress = SILENT,
) -> nn.Module:
    """A network from images of the generator to their coordinates (the paper's Equation 1), its best held-out state.

    A generator that knows the way back is taken at its word, and nothing is trained.
    """
    generator = space.generator
    if isinstance(generator, EigenGenerator | SharpenedGenerator):
        return _Encoder(space, generator)
    device = space.centre.device
    side = min(generator.shape[:2])
    if side < SMALLEST_SIDE:
        raise InputError(f"Expected images of at least {SMALLEST_SIDE} pixels a side, got {side}. Pass --size 32.")
    width = training.width if training.network == "convnet" else None
    network = build_network(training.network, shape=generator.shape, classes=space.size, width=width, seed=seed).to(
        device
    )
    if checkpoint is not None and checkpoint.exists():
        network.load_state_dict(torch.load(checkpoint, map_location=device, weights_only=True))
        return network.eval().requires_grad_(False)
    trained = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=training.learning_rate, weight_decay=1e-3)
    held_out = space.draw(_HELD_OUT, torch_generator(seed, "inversion held out"))
    shown = space.stored(held_out).to(device).float() / 255
    best, kept, waited = float("inf"), network.state_dict(), 0
    with progress.task("training the inversion network", training.steps) as task:
        for step in range(training.steps):
            v = space.draw(training.batch, torch_generator(seed, f"inversion step {step}"))
            with torch.no_grad():
                images = space.images(v)
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate * rate_share(step, training.steps, "cosine")
            loss = functional.mse_loss(network(images), v)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            task.advance()
            if (step + 1) % _LOOK_EVERY and step + 1 < training.steps:
                continue
            error = _held_out_error(network, shown, held_out)
            if error < best:
                best, waited = error, 0
                kept = {name: value.detach().clone() for name, value in network.state_dict().items()}
            else:
                waited += 1
                if waited == _PATIENCE:
                    break
    network.load_state_dict(kept)
    if checkpoint is not None:
        content = io.BytesIO()
        torch.save(kept, content)
        write_whole(checkpoint, content.getvalue())
    return network.eval().requires_grad_(False)


class _Encoder(nn.Module):
    """The way back that a generator has itself, in coordinates."""

    def __init__(self, space: LatentSpace, generator: EigenGenerator | SharpenedGenerator) -> None:
        super().__init__()
        self.space, self.generator = space, generator

    def forward(self, images: Tensor) -> Tensor:
        return self.space.coordinates(self.generator.encode(images))


@torch.no_grad()
def _held_out_error(network: nn.Module, images: Tensor, v: Tensor) -> float:
    found = torch.cat([network(part) for part in torch.split(images, _AT_ONCE)])
    return float(functional.mse_loss(found, v))
