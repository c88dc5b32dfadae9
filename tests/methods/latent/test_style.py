"""Training of a public generator: it learns, it resumes, and it refuses what it cannot use."""

from pathlib import Path

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.latent.generators import game as games
from veilset.methods.latent.generators.making import make_generator
from veilset.methods.latent.generators.recipes import STYLES, StyleRecipe
from veilset.methods.latent.generators.style import StyleGame

TINY = StyleRecipe(latent_size=8, width=4, mapping_layers=2, steps=6, batch=8, decay=0.9)


def public(count: int = 64, size: int = 16, level: int = 200) -> ImageSet:
    """Bright squares on a dark ground, at random places."""
    coins = np.random.default_rng(0)
    images = np.full((count, size, size, 1), 20, dtype=np.uint8)
    for image, (y, x) in zip(images, coins.integers(2, size - 8, (count, 2)), strict=True):
        image[y : y + 6, x : x + 6] = level
    return ImageSet(images, np.arange(count) % 2)


def test_the_generator_comes_nearer_to_the_public_images() -> None:
    real = public(level=60)
    recipe = TINY.changed(steps=60, batch=16, learning_rate=0.005)
    before = make_generator(real, recipe.changed(steps=1))
    after = make_generator(real, recipe)
    w = torch.Generator().manual_seed(0)
    brightness = [float(g.render(g.draw(100, w)).float().mean()) for g in (before, after)]
    truth = float(real.images.mean())
    assert abs(brightness[1] - truth) < 0.5 * abs(brightness[0] - truth)
    assert float(after.w_average.norm()) > 0


def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(games, "CHECKPOINT_EVERY", 4)
    place = tmp_path / "checkpoint.pt"
    make_generator(public(), TINY.changed(steps=5), checkpoint=place)
    resumed = make_generator(public(), TINY, checkpoint=place)
    whole = make_generator(public(), TINY)
    for name, value in whole.state_dict().items():
        assert torch.allclose(resumed.state_dict()[name], value, atol=1e-5), name


def test_augmentation_follows_the_critic() -> None:
    game = StyleGame((16, 16, 1), TINY, seed=0, device="cpu")
    game.critic.score.bias.data.fill_(50.0)  # sure that everything is real
    game.advance(torch.rand(8, 1, 16, 16))
    assert game.augmented_share > 0
    game.critic.score.bias.data.fill_(-50.0)
    for _ in range(2):
        game.advance(torch.rand(8, 1, 16, 16))
    assert game.augmented_share == 0


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 16 public images"):
        make_generator(public(8), TINY)
    wide = ImageSet(np.zeros((20, 16, 72, 1), dtype=np.uint8), np.arange(20) % 2)
    with pytest.raises(InputError, match="at most 4 times the shorter, got 16x72"):
        make_generator(wide, TINY)
    other = tmp_path / "other.pt"
    StyleGame((16, 16, 1), TINY.changed(width=8), seed=0, device="cpu").save(other)
    with pytest.raises(InputError, match="not a checkpoint of this training"):
        make_generator(public(), TINY, checkpoint=other)
    with pytest.raises(InputError, match="Expected steps to be a whole number of at least 1"):
        StyleRecipe(steps=0)
    assert {"fast", "default"} <= set(STYLES)
