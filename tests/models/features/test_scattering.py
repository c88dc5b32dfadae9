"""The scattering transform: its numbers, its gradient, its sizes and its invariances."""

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.models.features.scattering import Scattering, group_norm


def chirp(size: int) -> np.ndarray:
    """A chirp that has energy at every scale and angle and no symmetry."""
    row, column = np.mgrid[:size, :size].astype(np.float64)
    return (
        0.5 + 0.25 * np.cos(0.9 * row + 0.4 * column) + 0.25 * np.sin(0.35 * row - 1.1 * column + 0.02 * row * column)
    )


# kymatio 0.3.0 with scipy 1.14 and its NumPy frontend: Scattering2D(J=2, shape=(28, 28), L=8)(chirp(28)),
# by path, at the output positions of POSITIONS; and Scattering2D(J=3, shape=(32, 32), L=4)(chirp(32))[::3, 1, 2].
POSITIONS = ((0, 0), (3, 2), (6, 6), (5, 1))
KYMATIO = {
    0: [0.422829, 0.475334, 0.56736, 0.45859],
    1: [0.04944, 0.0208665, 0.0220938, 0.0216141],
    4: [0.0477156, 0.0397534, 0.0413264, 0.0395859],
    8: [0.0751938, 0.0312445, 0.0170624, 0.0267759],
    9: [0.0390533, 0.00828427, 0.0296743, 0.0111012],
    12: [0.0495092, 0.0478009, 0.0556436, 0.0556925],
    16: [0.0831167, 0.0273913, 0.0219996, 0.0318597],
    17: [0.00528969, 0.00274661, 0.00305448, 0.00313026],
    20: [0.00289505, 0.0019435, 0.000778701, 0.0032381],
    30: [0.00273379, 0.00025926, 0.00162938, 0.000848304],
    45: [0.00270687, 0.00151142, 0.00173527, 0.00191664],
    60: [0.00280505, 0.000626007, 0.00411112, 0.0011604],
    80: [0.00833021, 0.000778737, 0.00242938, 0.000971542],
}
KYMATIO_THREE_SCALES = [
    0.501185, 0.063756, 0.0877273, 0.0407042, 0.00990691, 0.00133918, 0.000502714, 0.00500425, 0.0102581,
    0.000294448, 0.00203178, 0.000602313, 0.00104936, 0.00288279, 0.00126095, 0.000774561, 0.0011998, 0.00129673,
    0.00237203, 0.0027415, 0.00215786,
]  # fmt: skip


def as_batch(size: int) -> torch.Tensor:
    return torch.from_numpy(chirp(size)).float()[None, None]


@pytest.mark.parametrize("path", list(KYMATIO))
def test_agrees_with_kymatio(path: int) -> None:
    maps = Scattering(28)(as_batch(28))[0]
    ours = np.array([maps[path, row, column].item() for row, column in POSITIONS])
    reference = np.array(KYMATIO[path])
    assert np.linalg.norm(ours - reference) / np.linalg.norm(reference) < 0.02


def test_agrees_with_kymatio_at_three_scales_and_other_angles() -> None:
    ours = Scattering(32, J=3, L=4)(as_batch(32))[0, ::3, 1, 2].numpy()
    reference = np.array(KYMATIO_THREE_SCALES)
    assert np.abs(ours - reference).max() < 0.02 * np.abs(reference[1:]).max()
    assert np.linalg.norm(ours[5:] - reference[5:]) / np.linalg.norm(reference[5:]) < 0.02


def test_agrees_with_kymatio_where_it_is_installed() -> None:
    try:  # kymatio 0.3.0 raises ImportError on scipy >= 1.17
        from kymatio.numpy import Scattering2D
    except ImportError as error:
        pytest.skip(f"kymatio cannot be imported: {error}")
    images = np.random.default_rng(0).random((2, 30, 30)).astype(np.float32)
    reference = Scattering2D(J=2, shape=(30, 30), L=8)(images)
    ours = Scattering(30)(torch.from_numpy(images)[:, None]).numpy()
    assert ours.shape == reference.shape
    for order in (slice(0, 1), slice(1, 17), slice(17, 81)):
        error = np.linalg.norm(ours[:, order] - reference[:, order]) / np.linalg.norm(reference[:, order])
        assert error < 0.02


@pytest.mark.parametrize(("size", "scales", "angles"), [(16, 2, 8), (19, 2, 4), (17, 3, 4), (16, 1, 4)])
def test_gradient_is_the_derivative(size: int, scales: int, angles: int) -> None:
    scattering = Scattering(size, J=scales, L=angles).double()
    image = torch.rand(1, 1, size, size, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    image.requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda x: scattering(x).flatten()[::53], (image,), eps=1e-6, atol=1e-4, fast_mode=True
    )


def test_gradient_of_a_blank_image_is_finite() -> None:
    image = torch.zeros(1, 1, 28, 28, requires_grad=True)
    Scattering(28)(image).sum().backward()
    assert image.grad is not None
    assert torch.isfinite(image.grad).all()


@pytest.mark.parametrize("size", [16, 17, 22, 28, 31, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_colour(size: int, channels: int) -> None:
    scattering = Scattering(size, channels)
    maps = scattering(torch.rand(2, channels, size, size))
    assert maps.shape == (2, 81 * channels, size // 4, size // 4)
    assert maps.shape[1:] == (scattering.out_channels, scattering.out_size, scattering.out_size)


def test_colours_are_transformed_one_by_one() -> None:
    images = torch.rand(3, 3, 20, 20)
    together = Scattering(20, 3)(images)
    apart = torch.cat([Scattering(20)(images[:, c : c + 1]) for c in range(3)], dim=1)
    torch.testing.assert_close(together, apart)


def test_records_do_not_mix() -> None:
    images = torch.rand(70, 1, 28, 28)  # more than one chunk
    scattering = Scattering(28)
    torch.testing.assert_close(scattering(images)[65:66], scattering(images[65:66]))


def test_empty_batch() -> None:
    assert Scattering(28)(torch.zeros(0, 1, 28, 28)).shape == (0, 81, 7, 7)


def test_constant_image_has_only_a_mean() -> None:
    maps = Scattering(28)(torch.full((1, 1, 28, 28), 0.7))[0]
    torch.testing.assert_close(maps[0], torch.full((7, 7), 0.7), atol=1e-4, rtol=0)
    assert maps[1:].abs().max() < 1e-3


def test_scales_with_the_contrast() -> None:
    scattering = Scattering(28)
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(scattering(3 * images), 3 * scattering(images), rtol=1e-3, atol=1e-4)


def test_small_shifts_move_the_maps_less_than_the_pixels() -> None:
    image = torch.zeros(1, 1, 32, 32)
    image[..., 10:22, 12:16] = 1.0
    shifted = torch.roll(image, 1, dims=3)
    scattering = Scattering(32)
    maps, moved = scattering(image), scattering(shifted)
    assert (maps - moved).norm() / maps.norm() < 0.6 * (image - shifted).norm() / image.norm()


def test_transform_does_not_expand_distances() -> None:
    # The filters are close to a contraction: no pair of images may drift apart by much.
    scattering = Scattering(28)
    left, right = torch.rand(16, 1, 28, 28), torch.rand(16, 1, 28, 28)
    pixels = (left - right).flatten(1).norm(dim=1)
    maps = (scattering(left) - scattering(right)).flatten(1).norm(dim=1)
    assert (maps < pixels).all()


def test_group_norm_uses_each_record_alone() -> None:
    maps = torch.rand(5, 81, 7, 7)
    normed = group_norm(maps)
    torch.testing.assert_close(normed[2:3], group_norm(maps[2:3]))
    grouped = normed.reshape(5, 27, -1)
    torch.testing.assert_close(grouped.mean(dim=2), torch.zeros(5, 27), atol=1e-5, rtol=0)
    assert (grouped.std(dim=2) < 1.01).all()


def test_group_norm_falls_to_a_divisor() -> None:
    assert group_norm(torch.rand(2, 61, 4, 4)).shape == (2, 61, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 12}, "size >= 16"),
        ({"size": 16, "J": 4}, "size >= 32"),
        ({"size": 28, "L": 0}, "at least 1"),
    ],
)
def test_bad_settings(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Scattering(**arguments)


def test_wrong_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"Expected images of shape \(batch, 1, 28, 28\), got \(2, 3, 28, 28\)"):
        Scattering(28)(torch.rand(2, 3, 28, 28))
