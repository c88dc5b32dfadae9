"""Rows of what a network sees: bounded, of their own image alone, and told apart by spread as well as by mean."""

import pytest
import torch
from torch import Tensor, nn

from veilset.data.procedural_images import drawn_patterns
from veilset.models.features.perceptual import PerceptualEmbedding
from veilset.models.features.pretrained import OwnFeatures


@pytest.fixture
def embedding() -> PerceptualEmbedding:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2), nn.ReLU()).eval()
    pictures = drawn_patterns(60, 32, 3, torch.Generator().manual_seed(0))
    return PerceptualEmbedding(OwnFeatures("own", network, side=0, channels=3), pictures, code_size=8)


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_rows_and_codes_are_bounded(embedding: PerceptualEmbedding) -> None:
    code, rows = embedding(torch.cat([images(), torch.ones(1, 3, 32, 32), torch.zeros(1, 3, 32, 32)]))
    assert code.shape == (8, 8)
    assert bool((rows.norm(dim=1) <= 1 + 1e-6).all())
    torch.testing.assert_close(code.norm(dim=1), torch.ones(8))
    torch.testing.assert_close(embedding.code(images()), code[:6])


def test_public_pictures_have_the_mean_zero_before_the_cut(embedding: PerceptualEmbedding) -> None:
    points = embedding._points(drawn_patterns(60, 32, 3, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(points.mean(dim=0), torch.zeros(points.shape[1]), atol=1e-4, rtol=0)


def test_a_row_depends_on_its_own_image(embedding: PerceptualEmbedding) -> None:
    together = embedding(images())[1]
    alone = torch.cat([embedding(image[None])[1] for image in images()])
    torch.testing.assert_close(together, alone)


def test_gradients_reach_the_images(embedding: PerceptualEmbedding) -> None:
    pixels = images().requires_grad_()
    (found,) = torch.autograd.grad(embedding(pixels)[1].square().sum(), [pixels])
    assert float(found.abs().min()) >= 0
    assert float(found.abs().sum()) > 0


def test_squares_tell_one_image_from_several_with_the_same_mean(embedding: PerceptualEmbedding) -> None:
    """Half the width are means, half are squares: images around a mean differ from the mean in the squares."""
    middle = torch.full((1, 3, 32, 32), 0.5)
    apart = torch.cat([middle + 0.2, middle - 0.2])
    half = embedding(middle)[1].shape[1] // 2
    points = [embedding._points(part)[:, : embedding.widths[0]].mean(dim=0) for part in (middle, apart)]
    torch.testing.assert_close(*points)  # of the coarse picture, which is linear
    rows = [embedding(part)[1][:, half : half + embedding.widths[0]].mean(dim=0) for part in (middle, apart)]
    assert float((rows[0] - rows[1]).norm()) > 0.01
