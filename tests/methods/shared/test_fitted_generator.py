"""What is released of a finished generator: noise on images, and a word on collapse that it does not silence."""

import numpy as np
import torch
from torch import Tensor, nn

from veilset.methods.shared.fitted_generator import FittedGenerator, with_noise
from veilset.privacy.vault import PublicFacts

FACTS = PublicFacts(units=100, unit="record", shape=(16, 16, 1), class_names=("a", "b"))


class OneGrey(nn.Module):
    """A collapsed generator: one picture for each class."""

    latent_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor([0.3, 0.6]))

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        return self.level[classes].view(-1, 1, 1, 1).expand(len(latents), 1, 16, 16)


def test_image_noise_is_of_the_wanted_strength_and_leaves_the_mean() -> None:
    grey = np.full((600, 16, 16, 1), 128, dtype=np.uint8)
    noisy = with_noise(grey, 0.2, seed=0)
    assert noisy.shape == grey.shape
    assert noisy.dtype == np.uint8
    noise = noisy.astype(float) / 255 - 128 / 255
    strengths = noise.reshape(600, -1).std(axis=1)
    assert abs(noise.mean()) < 0.003
    assert strengths.min() < 0.02 < 0.12 < strengths.max() < 0.25
    assert np.array_equal(noisy, with_noise(grey, 0.2, seed=0))
    assert not np.array_equal(noisy, with_noise(grey, 0.2, seed=1))


def test_image_noise_is_released_and_does_not_pass_for_variety() -> None:
    fitted = FittedGenerator(generator=OneGrey(), teacher=None, facts=FACTS, device="cpu", image_noise=0.3)
    drawn = fitted.sample(40, seed=0)
    assert len({image.tobytes() for image in drawn.images}) == 40
    assert sorted(set(drawn.labels.tolist())) == [0, 1]
    assert any("collapse" in warning.lower() for warning in fitted.warnings())
