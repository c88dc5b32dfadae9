"""Style-based generators by Z and W+, and in shapes that are not square."""

from pathlib import Path

import pytest
import torch

from veilset.models.generators.files import load_generator, save_generator
from veilset.models.generators.sides import layer_count, level_count, starting_sides
from veilset.models.generators.style import LayeredGenerator, StyleCritic, StyleGenerator
from veilset.models.generators.stylegan2 import StyleGan2
from veilset.models.generators.views import LayersView, behind, seen_by


def generator(kind: str) -> LayeredGenerator:
    torch.manual_seed(0)
    made: LayeredGenerator
    if kind == "style":
        made = StyleGenerator(32, 1, latent_size=6, width=4)
    else:
        made = StyleGan2(32, 1, latent_size=6, channel_base=128, channel_max=8, mapping_layers=2)
    made.settle(torch.Generator().manual_seed(1))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("kind", ["style", "stylegan2"])
def test_one_latent_in_all_layers_is_w(kind: str) -> None:
    made = generator(kind)
    w = made.draw(3, torch.Generator().manual_seed(2))
    view = seen_by(made, "w_plus")
    assert view.latent_size == 8 * 6
    assert torch.allclose(view(w.repeat(1, 8)), made(w), atol=1e-5)  # strides may change last bits
    assert behind(view) is made
    assert seen_by(made, "w") is made


@pytest.mark.parametrize("kind", ["style", "stylegan2"])
def test_every_layer_has_a_latent_of_its_own(kind: str) -> None:
    made = generator(kind)
    view = seen_by(made, "w_plus")
    w = view.w_average.clone()[None].requires_grad_()
    view(w).square().sum().backward()
    assert w.grad is not None
    assert bool((w.grad.reshape(8, 6).abs().sum(dim=1) > 0).all())


@pytest.mark.parametrize("kind", ["style", "stylegan2"])
def test_z_is_the_noise_itself(kind: str) -> None:
    made = generator(kind)
    view = seen_by(made, "z")
    z = view.draw(4000, torch.Generator().manual_seed(3))
    assert torch.allclose(torch.cov(z.T), torch.eye(6), atol=0.1)
    assert torch.equal(view(z[:3]), made(made.map(z[:3])))


def test_draws_of_w_plus_mix_two_styles() -> None:
    made = generator("style")
    view = seen_by(made, "w_plus")
    assert isinstance(view, LayersView)
    layers = view.draw(2000, torch.Generator().manual_seed(4)).reshape(2000, 8, 6)
    changes = (layers[:, 1:] != layers[:, :-1]).any(dim=2).sum(dim=1)
    assert set(changes.tolist()) == {0, 1}
    # Seven places where the second may take over, and none, each as often.
    assert float((changes == 0).float().mean()) == pytest.approx(1 / 8, abs=0.04)
    for layer in (0, 7):  # each layer by itself has the generator's own w
        assert torch.allclose(layers[:, layer].mean(dim=0), made.w_average, atol=0.1)


@pytest.mark.parametrize(
    ("height", "breadth", "levels", "start"),
    [(32, 48, 3, (4, 6)), (48, 32, 3, (6, 4)), (28, 28, 3, (4, 4)), (20, 20, 3, (4, 4)), (16, 64, 2, (4, 16))],
)
def test_the_rule_of_sides(height: int, breadth: int, levels: int, start: tuple[int, int]) -> None:
    assert level_count(height, breadth) == levels
    assert starting_sides(height, breadth) == start
    assert layer_count(height, breadth) == 2 * levels + 2


@pytest.mark.parametrize(("height", "breadth"), [(32, 48), (48, 32), (29, 29), (27, 45)])
def test_any_shape_goes_through_generator_critic_and_file(height: int, breadth: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = StyleGenerator(height, 3, latent_size=6, width=4, breadth=breadth).eval()
    images = made(made.draw(2, torch.Generator().manual_seed(0)))
    assert images.shape == (2, 3, height, breadth)
    assert StyleCritic(height, 3, width=4, breadth=breadth)(images).shape == (2,)
    save_generator(made, tmp_path / "g.safetensors")
    assert load_generator(tmp_path / "g.safetensors").shape == (height, breadth, 3)
