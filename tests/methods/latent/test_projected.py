"""Training against a critic on pretrained features: it starts from blurred pictures, learns, resumes and stops."""

from pathlib import Path

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.latent.choices import InversionTraining
from veilset.methods.latent.config import LatentSettings
from veilset.methods.latent.generators.game import Watch, play
from veilset.methods.latent.generators.making import make_generator
from veilset.methods.latent.generators.projected import ProjectedGame
from veilset.methods.latent.generators.recipes import ProjectedRecipe
from veilset.methods.latent.inversion import train_inversion
from veilset.methods.latent.space import LatentSpace
from veilset.models.features.weights import is_installed
from veilset.models.generators.files import load_generator, save_generator
from veilset.models.generators.sharpened import SharpenedGenerator

TINY = ProjectedRecipe(latent_size=6, width=4, critic_width=8, side=32, steps=4, batch=8, decay=0.9)
needs_weights = pytest.mark.skipif(not is_installed("lite0"), reason="needs the extra `pretrained`")


def public(count: int = 64, size: int = 20) -> ImageSet:
    """Squares of random brightness at one of a few places."""
    coins = np.random.default_rng(0)
    images = np.full((count, size, size, 3), 40, dtype=np.uint8)
    for image, x, level in zip(images, coins.integers(2, 8, count), coins.integers(90, 220, count), strict=True):
        image[4:14, x : x + 8] = level
    return ImageSet(images, np.arange(count) % 2)


def pixels() -> torch.Tensor:
    return torch.from_numpy(public().images.copy()).permute(0, 3, 1, 2).float() / 255


def fitted() -> SharpenedGenerator:
    generator = SharpenedGenerator(20, 3, 6, 4)
    generator.learn_directions(pixels())
    return generator


def test_it_starts_from_the_principal_directions() -> None:
    """Before any training a picture comes back from its code, blurred, and better than from the mean."""
    generator = fitted()
    pictures = pixels()
    codes = generator.encode(pictures)
    assert torch.allclose(codes.mean(dim=0), torch.zeros(6), atol=1e-4)
    assert torch.allclose(codes.square().mean(dim=0), torch.ones(6), atol=1e-2)
    error = (generator(codes) - pictures).abs().mean()
    assert error < 0.5 * (generator(torch.zeros_like(codes)) - pictures).abs().mean()


def test_too_few_pictures_for_the_directions() -> None:
    with pytest.raises(InputError, match="more than 6 public images"):
        SharpenedGenerator(20, 3, 6, 4).learn_directions(torch.rand(6, 3, 20, 20))


def test_the_way_back_needs_no_training() -> None:
    space = LatentSpace.of(fitted(), 0)
    network = train_inversion(space, InversionTraining(steps=1), seed=0)
    v = space.draw(16, torch.Generator().manual_seed(0)) * 0.3
    assert torch.nn.functional.mse_loss(network(space.images(v)), v) < 0.1 * v.square().mean()


@needs_weights
def test_the_generator_learns_what_the_directions_leave_out(tmp_path: Path) -> None:
    """Real images are sharp; after some steps generated ones have moved from the blurred start."""
    generator = make_generator(public(), TINY)
    start = fitted().requires_grad_(False)
    w = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    assert isinstance(generator, SharpenedGenerator)
    assert torch.equal(generator.map(w), w)
    assert float((generator(w) - torch.sigmoid(2 * blurred(generator, w))).abs().mean()) > 1e-3
    assert float((start(w) - torch.sigmoid(2 * blurred(start, w))).abs().mean()) < 1e-6
    save_generator(generator, tmp_path / "g.safetensors")
    loaded = load_generator(tmp_path / "g.safetensors")
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in generator.state_dict().items())
    # Weights that were trained lie in memory in another order, which moves the last bits of a sum.
    assert torch.allclose(loaded(w), generator(w), atol=1e-5)


def blurred(generator: SharpenedGenerator, w: torch.Tensor) -> torch.Tensor:
    return (w @ generator.directions + generator.mean).reshape(len(w), 3, 20, 20)


@needs_weights
def test_a_critic_step_tells_real_from_generated() -> None:
    game = ProjectedGame(20, 3, TINY.changed(critic_rate=0.01, learning_rate=1e-6, augmented=0.0), seed=0, device="cpu")
    real = pixels()[:8]

    def gap() -> float:
        with torch.no_grad():
            fake = game.drawn(8, torch.Generator().manual_seed(2))
            scores = [game.critic(images) for images in (real, fake)]
        return float(sum((of_real.mean() - of_fake.mean()) for of_real, of_fake in zip(*scores, strict=True)))

    before = gap()
    for _ in range(6):
        game.advance(real)
    assert gap() > before + 0.5


@needs_weights
def test_the_clock_stops_it_and_it_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    place, stopped, shown = tmp_path / "checkpoint.pt", [], []
    watch = Watch(minutes=0.0, show=shown.append, stopped=stopped.append)
    make_generator(public(), TINY, checkpoint=place, watch=watch)
    assert stopped == [1]
    assert shown[-1].shape == (48, 20, 20, 3)
    resumed = make_generator(public(), TINY, checkpoint=place)
    whole = make_generator(public(), TINY)
    for name, value in whole.state_dict().items():
        assert torch.allclose(resumed.state_dict()[name], value, atol=1e-5), name


@needs_weights
def test_a_preview_changes_nothing() -> None:
    games = [ProjectedGame(20, 3, TINY.changed(steps=2), seed=0, device="cpu") for _ in range(2)]
    games[0].preview()
    made = [play(game, public()).state_dict() for game in games]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_without_the_weights_a_plan_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.models.features.weights.is_installed", lambda name: False)
    with pytest.raises(InputError, match=r"pip install 'veilset\[pretrained\]'"):
        LatentSettings(generator_kind="projected")


def test_a_header_of_any_length_is_no_pickle(tmp_path: Path) -> None:
    """The first byte of a safetensors file is part of a length, and may be the one that pickles begin with."""
    from safetensors.numpy import save

    from veilset.models.generators.headers import HEADER, read_description

    path, said = tmp_path / "g.safetensors", '{"size": 16, "channels": 1, "latent_size": 2}'
    contents = [save({"x": np.zeros(1)}, metadata={HEADER: said, "more": "x" * more}) for more in range(0, 264, 8)]
    chosen = next(content for content in contents if content[:1] == b"\x80")
    path.write_bytes(chosen)
    assert read_description(path)["size"] == 16
    path.write_bytes(b"\x80\x04\x95" + bytes(20))
    with pytest.raises(InputError, match="is a pickle"):
        read_description(path)
