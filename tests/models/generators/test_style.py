"""The small style-based generator, its critic, and generators in files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from veilset.core.errors import InputError
from veilset.models.generators.files import description_of, load_generator, rebuild, save_generator
from veilset.models.generators.headers import read_description
from veilset.models.generators.style import StyleCritic, StyleGenerator, demodulation, level_count


def generator(size: int = 16, channels: int = 1) -> StyleGenerator:
    torch.manual_seed(0)
    made = StyleGenerator(size, channels, latent_size=6, width=4, mapping_layers=2)
    made.settle(torch.Generator().manual_seed(1))
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize(("size", "channels"), [(16, 3), (28, 1), (32, 3), (64, 1)])
def test_images_have_the_shape_and_range_that_were_asked_for(size: int, channels: int) -> None:
    made = generator(size, channels)
    w = made.draw(3, torch.Generator().manual_seed(2))
    images = made(w)
    assert images.shape == (3, channels, size, size)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert made.render(w).dtype == torch.uint8
    assert StyleCritic(size, channels, width=4)(images).shape == (3,)


def test_an_image_depends_on_its_own_latent_alone() -> None:
    made = generator()
    w = made.draw(5, torch.Generator().manual_seed(3))
    assert torch.allclose(made(w)[2:3], made(w[2:3]), atol=1e-5)


def test_the_average_is_that_of_samples() -> None:
    made = generator()
    drawn = made.draw(4000, torch.Generator().manual_seed(4))
    deviation = drawn.std(dim=0) / 4000**0.5
    assert bool(((drawn.mean(dim=0) - made.w_average).abs() < 6 * deviation).all())


def test_straightening_is_undone_by_bending() -> None:
    made = generator()
    w = made.draw(50, torch.Generator().manual_seed(5))
    assert torch.allclose(made.bend(made.straighten(w)), w, atol=1e-6)


def test_demodulation_brings_maps_to_unit_variance() -> None:
    """Scaling before and after one convolution equals a kernel of unit norm for each image."""
    torch.manual_seed(0)
    weight, styles = torch.randn(4, 3, 3, 3), torch.rand(2, 3) + 0.5
    for image in range(2):
        kernel = weight * styles[image][None, :, None, None]
        assert torch.allclose(
            demodulation(weight, styles)[image], kernel.square().sum(dim=(1, 2, 3)).rsqrt(), atol=1e-5
        )


@pytest.mark.parametrize("size", [4, 300])
def test_sizes_out_of_reach_are_refused(size: int) -> None:
    with pytest.raises(InputError, match="8 to 256"):
        level_count(size)


def test_a_file_brings_the_generator_back(tmp_path: Path) -> None:
    made = generator(28)
    save_generator(made, tmp_path / "g.safetensors")
    assert read_description(tmp_path / "g.safetensors")["size"] == 28
    back = load_generator(tmp_path / "g.safetensors")
    w = made.draw(2, torch.Generator().manual_seed(0))
    assert torch.equal(made(w), back(w))
    assert description_of(back) == description_of(made)


def test_files_that_hold_no_generator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no generator"):
        load_generator(tmp_path / "none.safetensors")
    (tmp_path / "noise.safetensors").write_bytes(b"what is this" * 10)
    with pytest.raises(InputError, match="not a safetensors file"):
        load_generator(tmp_path / "noise.safetensors")
    (tmp_path / "hidden.safetensors").write_bytes(b"\x80\x04N.")
    with pytest.raises(InputError, match="is a pickle"):
        load_generator(tmp_path / "hidden.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="does not say which generator"):
        load_generator(tmp_path / "other.safetensors")
    header = {"veilset_generator": json.dumps({"kind": "style", "size": 16})}
    save_file({"a": torch.zeros(2)}, tmp_path / "half.safetensors", metadata=header)
    with pytest.raises(InputError, match="damaged"):
        load_generator(tmp_path / "half.safetensors")


def test_weights_that_do_not_fit_their_description_are_refused() -> None:
    made = generator()
    with pytest.raises(InputError, match="Not a generator"):
        rebuild(description_of(made) | {"width": 8}, made.state_dict())
    with pytest.raises(InputError, match="Not a generator"):
        rebuild(description_of(made) | {"network": "os:system"}, made.state_dict())


def test_a_file_of_an_older_version_brings_the_generator_back(tmp_path: Path) -> None:
    made = generator()
    settings = {"size": 16, "channels": 1, "latent_size": 6, "width": 4, "mapping_layers": 2}
    header = {"veilset_generator": json.dumps({"kind": "style", **settings})}
    save_file(made.state_dict(), tmp_path / "old.safetensors", metadata=header)
    w = made.draw(2, torch.Generator().manual_seed(0))
    assert torch.equal(load_generator(tmp_path / "old.safetensors")(w), made(w))
    assert description_of(made) == {"network": "style_generator", "version": 1, **settings}
