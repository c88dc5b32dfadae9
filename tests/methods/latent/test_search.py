"""Coordinates of latents, the inversion network, and searches that treat every image alone."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.methods.latent.choices import SEARCHES, InversionTraining, SearchSettings
from veilset.methods.latent.config import LatentSettings
from veilset.methods.latent.inversion import train_inversion
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.models.generators.style import LatentGenerator, StyleGenerator


class Blobs(LatentGenerator):
    """Four smooth bumps whose heights are w: easy to invert."""

    settings = ()

    def __init__(self) -> None:
        super().__init__()
        self.size, self.channels, self.latent_size = 16, 1, 4
        self.register_buffer("w_average", torch.zeros(4))
        axis = torch.linspace(-1, 1, 16)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        places = torch.tensor([[-0.5, -0.5], [-0.5, 0.5], [0.5, -0.5], [0.5, 0.5]])
        self.register_buffer("bumps", torch.stack([(-8 * ((y - a) ** 2 + (x - b) ** 2)).exp() for a, b in places]))

    def map(self, z: Tensor) -> Tensor:
        return z

    def forward(self, w: Tensor) -> Tensor:
        return torch.sigmoid(torch.einsum("bk,khw->bhw", w, self.get_buffer("bumps")))[:, None]


@pytest.fixture(scope="module")
def space() -> LatentSpace:
    return LatentSpace.of(Blobs(), seed=0)


@pytest.fixture(scope="module")
def network(space: LatentSpace) -> torch.nn.Module:
    return train_inversion(space, InversionTraining(steps=150, batch=32, width=8), seed=0)


def pictures(space: LatentSpace, count: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    v = space.draw(count, torch.Generator().manual_seed(seed))
    return space.stored(v).permute(0, 2, 3, 1), v


def test_public_coordinates_are_standard() -> None:
    torch.manual_seed(0)
    made = StyleGenerator(16, 1, latent_size=6, width=4)
    space = LatentSpace.of(made.eval(), seed=0)
    v = space.draw(20_000, torch.Generator().manual_seed(1)).detach()
    assert torch.allclose(v.mean(dim=0), torch.zeros(6), atol=0.05)
    assert torch.allclose(torch.cov(v.T), torch.eye(6), atol=0.06)
    w = made.draw(10, torch.Generator().manual_seed(2))
    assert torch.allclose(space.latents(space.coordinates(w)), w, atol=1e-4)


def test_the_inversion_network_learns_from_samples(space: LatentSpace, network: torch.nn.Module) -> None:
    images, v = pictures(space, 200)
    found = LatentSearch(space, network, SEARCHES["ff"])(images)
    assert float((found - v).square().mean()) < 0.3  # 1 is what the mean alone gives


def test_the_network_is_kept_and_found_again(space: LatentSpace, tmp_path: Path) -> None:
    place = tmp_path / "inversion.pt"
    config = InversionTraining(steps=3, batch=8, width=8)
    first = train_inversion(space, config, seed=0, checkpoint=place)
    written = place.stat().st_mtime_ns
    second = train_inversion(space, config, seed=1, checkpoint=place)
    assert place.stat().st_mtime_ns == written
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_descent_comes_nearer(space: LatentSpace, network: torch.nn.Module) -> None:
    images, v = pictures(space, 20)
    start = LatentSearch(space, network, SEARCHES["ff"])(images)
    found = LatentSearch(space, network, SearchSettings(steps=60))(images)
    assert float((found - v).square().mean()) < 0.5 * float((start - v).square().mean())


def test_the_penalty_keeps_latents_short(space: LatentSpace) -> None:
    images, _ = pictures(space, 8)
    lengths = [
        float(LatentSearch(space, None, SearchSettings(start="average", steps=40, penalty=penalty))(images).norm())
        for penalty in (0.0, 1.0, 100.0)
    ]
    assert lengths[0] > lengths[1] > lengths[2]


@pytest.fixture(scope="module")
def styled() -> LatentSpace:
    torch.manual_seed(0)
    return LatentSpace.of(StyleGenerator(16, 1, latent_size=6, width=4).eval(), seed=0)


@pytest.mark.parametrize("steps", [0, 10])
@pytest.mark.parametrize("start", ["network", "average"])
@pytest.mark.parametrize("kind", ["bumps", "style"])
def test_an_answer_depends_on_its_own_image_to_the_last_bit(
    space: LatentSpace, styled: LatentSpace, start: str, kind: str, steps: int
) -> None:
    """Alone, in company, at other places, and with one image more before, between and after."""
    own = space if kind == "bumps" else styled
    network = train_inversion(own, InversionTraining(steps=2, batch=8, width=8), seed=0)
    search = LatentSearch(own, network, SearchSettings(start=start, steps=steps, penalty=0.01))  # type: ignore[arg-type]
    images, _ = pictures(own, 40)
    another, _ = pictures(own, 1, seed=6)
    together = search(images)
    assert together.shape == (40, own.size)
    for row in (0, 33, 39):
        assert torch.equal(search(images[row : row + 1]), together[row : row + 1])
    for place in (0, 20, 40):
        found = search(torch.cat([images[:place], another, images[place:]]))
        assert torch.equal(torch.cat([found[:place], found[place + 1 :]]), together)
    assert torch.equal(search(images.flip(0)).flip(0), together)


class Unsteady(torch.nn.Module):
    """Answers whose last digits depend on their place, or on their company, in batches of more than `steady`."""

    def __init__(self, steady: int, on: str) -> None:
        super().__init__()
        self.steady, self.on, self.calls = steady, on, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        rows = images.flatten(1)[:, :4]
        if len(rows) <= self.steady:
            return rows
        return rows + (1e-6 * torch.arange(len(rows))[:, None] if self.on == "place" else 1e-6 * rows.mean())


@pytest.mark.parametrize("on", ["place", "company"])
@pytest.mark.parametrize("steady", [1, 2, 8, 32, 100])
def test_a_search_takes_as_many_images_together_as_leave_each_other_alone(
    space: LatentSpace, steady: int, on: str
) -> None:
    network = Unsteady(steady, on)
    search = LatentSearch(space, network, SEARCHES["ff"])
    assert search.together == min(steady, 32)
    images, _ = pictures(space, 40)
    tried = network.calls
    found = search(images)
    assert network.calls - tried == -(-40 // search.together)  # nothing is tried twice
    assert torch.equal(found, torch.cat([search(images[row : row + 1]) for row in range(40)]))


def test_names_and_settings(space: LatentSpace) -> None:
    assert SEARCHES["opt"] == SearchSettings(steps=500, learning_rate=0.1, penalty=0.0)
    assert SEARCHES["opt_b"].penalty > SEARCHES["opt_a"].penalty > 0
    with pytest.raises(InputError, match="Expected search"):
        LatentSettings(search="opt_c")
    with pytest.raises(InputError, match="needs one"):
        LatentSearch(space, None, SEARCHES["ff"])
    with pytest.raises(InputError, match="Expected steps to be a whole number of at least 0"):
        SearchSettings(steps=-1)
