"""Images that stray: how many do, that the others do not, and that nothing else changes them."""

import pytest
import torch

from veilset.methods.shared.off_distribution import straying_images
from veilset.models.generators.conditional import ConditionalGenerator


@pytest.fixture
def generator() -> ConditionalGenerator:
    torch.manual_seed(0)
    return ConditionalGenerator(16, 1, 3, 8, 16).requires_grad_(False)


class Recording(ConditionalGenerator):
    """Keeps what it is asked for."""

    def forward(self, latents: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        self.asked = latents, classes
        return super().forward(latents, classes)


@pytest.mark.parametrize(("off_distribution", "between"), [(0.0, 0.0), (0.6, 0.2), (1.0, 1 / 3)])
def test_a_third_of_the_straying_lies_between_classes(off_distribution: float, between: float) -> None:
    recording = Recording(16, 1, 3, 8, 16).requires_grad_(False)
    wanted = torch.arange(600) % 3
    straying_images(recording, wanted, off_distribution, torch.Generator().manual_seed(1), "cpu")
    latents, weights = recording.asked
    # One in three draws its own class again and is then pure: 2/3 of them show. Five deviations of a share of 600.
    shown = (weights.max(dim=1).values < 1).double().mean()
    assert shown == pytest.approx(between * 2 / 3, abs=5 * (0.25 / 600) ** 0.5)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(600))
    reach = latents.square().mean().sqrt()
    assert reach == pytest.approx(
        ((1 - off_distribution) + off_distribution * (1.5**2 + 2 * 1.2**2) / 3) ** 0.5, rel=0.05
    )


def test_where_none_stray_images_are_the_generators_own(generator: ConditionalGenerator) -> None:
    classes = torch.tensor([0, 1, 2, 2])
    images = straying_images(generator, classes, 0.0, torch.Generator().manual_seed(1), "cpu")
    coins = torch.Generator().manual_seed(1)
    torch.rand(4, generator=coins)
    torch.testing.assert_close(images, generator(torch.randn(4, 8, generator=coins), classes))


def test_the_same_coins_give_the_same_images_in_range(generator: ConditionalGenerator) -> None:
    classes = torch.arange(60) % 3
    first, second = (
        straying_images(generator, classes, 1.0, torch.Generator().manual_seed(4), "cpu") for _ in range(2)
    )
    torch.testing.assert_close(first, second)
    assert 0 <= float(first.min()) <= float(first.max()) <= 1
