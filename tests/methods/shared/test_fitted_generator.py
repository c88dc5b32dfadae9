"""What is released of a finished generator: noise on images, and a word on collapse that it does not silence."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from veilset.methods.shared.fitted_generator import FittedGenerator, even_weights, reweighted, with_noise
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


class Brightness(nn.Module):
    """A classifier that calls what is brighter than a level the second class."""

    def forward(self, images: Tensor) -> Tensor:
        above = 20 * (images.mean(dim=(1, 2, 3)) - 0.45)
        return torch.stack([-above, above], dim=1)


def test_varied_images_are_labelled_as_they_are_released() -> None:
    made = {
        kind: FittedGenerator(
            generator=OneGrey(), teacher=Brightness(), facts=FACTS, device="cpu", variation=kind
        ).sample(60)
        for kind in ("none", "crops")
    }
    assert len({image.tobytes() for image in made["none"].images}) == 2
    varied = made["crops"]
    assert len({image.tobytes() for image in varied.images}) > 40
    bright = varied.images.reshape(60, -1).mean(axis=1) / 255 > 0.45
    assert np.array_equal(varied.labels, bright.astype(np.int64))


def test_a_classifier_that_sees_one_class_is_set_right() -> None:
    """All images look like the first class to it; those that do so least are the second."""
    soft = np.linspace(0.001, 0.1, 50, dtype=np.float32)
    soft = np.stack([1 - soft, soft], axis=1)
    assert set(soft.argmax(axis=1)) == {0}
    found = reweighted(soft, even_weights(soft))
    assert np.allclose(found.sum(axis=1), 1)
    assert np.allclose(found.mean(axis=0), 0.5, atol=0.01)
    labels = found.argmax(axis=1)
    assert 15 < labels.sum() < 35
    assert (np.diff(labels) >= 0).all()


def test_labels_can_be_what_was_asked_for() -> None:
    fitted = FittedGenerator(generator=OneGrey(), teacher=Brightness(), facts=FACTS, device="cpu", labelling="asked")
    assert fitted.sample(6).labels.tolist() == [0, 1, 0, 1, 0, 1]
    balanced = replace(fitted, labelling="balanced").sample(40)
    assert np.bincount(balanced.labels, minlength=2).tolist() == [20, 20]


def test_without_a_classifier_images_stay_as_they_are() -> None:
    plain, asked = (
        FittedGenerator(generator=OneGrey(), teacher=None, facts=FACTS, device="cpu", variation=kind).sample(20)
        for kind in ("none", "all")
    )
    assert np.array_equal(plain.images, asked.images)


def test_image_noise_is_released_and_does_not_pass_for_variety() -> None:
    fitted = FittedGenerator(generator=OneGrey(), teacher=None, facts=FACTS, device="cpu", image_noise=0.3)
    drawn = fitted.sample(40, seed=0)
    assert len({image.tobytes() for image in drawn.images}) == 40
    assert sorted(set(drawn.labels.tolist())) == [0, 1]
    assert any("collapse" in warning.lower() for warning in fitted.warnings())
