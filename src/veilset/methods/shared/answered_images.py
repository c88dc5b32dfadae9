"""Images of a generator and what a teacher says of them (dfd and pate), and a bank that keeps the newest of them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from veilset.data.procedural_images import drawn_patterns
from veilset.methods.shared.data_free_config import DataFreeSettings
from veilset.methods.shared.off_distribution import straying_images
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.privacy.vault import PublicFacts

_AT_ONCE = 500


def answered_images(
    generator: ConditionalGenerator,
    guide: nn.Module,
    classes: Tensor,
    settings: DataFreeSettings,
    coins: torch.Generator,
    device: str,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Part by part: 8-bit images (b, C, H, W) and the guide's answers to just those.

    Shares of them stray, or are drawn patterns.
    """
    for part in torch.split(classes, _AT_ONCE):
        with torch.no_grad():
            pixels = straying_images(generator, part, settings.off_distribution, coins, device)
            if settings.drawn_share:
                drawn = drawn_patterns(len(part), pixels.shape[-1], pixels.shape[1], coins)
                chosen = torch.rand(len(part), generator=coins) < settings.drawn_share
                pixels = torch.where(chosen[:, None, None, None], drawn, pixels)
            stored = (pixels * 255).round().to(torch.uint8)
            answers = guide(stored.to(device).float() / 255)
        yield stored, answers


class Bank:
    """Images that the guide has answered, the newest of them: what the student is kept in mind of."""

    def __init__(self, size: int, facts: PublicFacts) -> None:
        height, width, channels = facts.shape
        self.images = torch.zeros(size, channels, height, width, dtype=torch.uint8)
        self.answers = torch.zeros(size, facts.classes)
        self.added = 0

    def add(self, images: Tensor, answers: Tensor) -> None:
        """Put 8-bit images (b, C, H, W) and their answers (b, K) in the place of the oldest."""
        places = torch.arange(self.added, self.added + len(images)) % len(self.images)
        self.images[places] = images.cpu()
        self.answers[places] = answers.float().cpu()
        self.added += len(images)

    def draw(self, count: int, coins: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and their answers, drawn with replacement."""
        chosen = torch.randint(min(self.added, len(self.images)), (count,), generator=coins)
        return self.images[chosen].float() / 255, self.answers[chosen]
