"""Augmentation: each part does what its name says, within bounds, and repeats by seed."""

import pytest
import torch

from veilset.core.errors import InputError
from veilset.training.augment import MILD, NO_AUGMENTATION, AugmentConfig, _Own, augment, augment_width


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def only(**settings):
    return NO_AUGMENTATION.changed(**settings)


def random_images(count=64, channels=1, height=20, width=28):
    return torch.rand(count, channels, height, width, generator=generator(9))


def test_nothing_when_all_is_zero():
    images = random_images()
    assert torch.equal(augment(images, NO_AUGMENTATION, generator()), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_mild_stays_in_range_and_repeats(channels):
    images = random_images(channels=channels)
    kept = images.clone()
    first, again, other = (augment(images, MILD, generator(seed)) for seed in (1, 1, 2))
    assert first.shape == images.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, kept)


def test_shift_moves_a_dot_as_far_as_allowed_and_no_further():
    images = torch.zeros(500, 1, 20, 40)
    images[:, 0, 10, 20] = 1.0
    moved = augment(images, only(shift=0.1), generator())
    mass = moved.sum(dim=(1, 2, 3))
    down = (moved.sum(dim=(1, 3)) * torch.arange(20)).sum(1) / mass - 10
    right = (moved.sum(dim=(1, 2)) * torch.arange(40)).sum(1) / mass - 20
    assert 1.8 < down.abs().max() <= 2.05
    assert 3.6 < right.abs().max() <= 4.05


def test_rotation_keeps_lengths_on_images_that_are_not_square():
    # A dot 8 pixels right of the centre must stay 8 pixels from it: a rotation that forgot the aspect would not.
    images = torch.zeros(200, 1, 21, 41)
    images[:, 0, 9:12, 27:30] = 1.0
    turned = augment(images, only(rotation=40.0), generator())
    mass = turned.sum(dim=(1, 2, 3))
    y = (turned.sum(dim=(1, 3)) * (torch.arange(21) - 10)).sum(1) / mass
    x = (turned.sum(dim=(1, 2)) * (torch.arange(41) - 20)).sum(1) / mass
    assert y.abs().max() > 4
    torch.testing.assert_close((x**2 + y**2).sqrt(), torch.full((200,), 8.0), atol=0.15, rtol=0)
    assert torch.rad2deg(torch.atan2(y, x)).abs().max() <= 40.5


def test_flip_mirrors_about_half_and_only_when_asked():
    images = random_images(count=400)
    flipped = augment(images, only(flip=True), generator())
    is_mirror = (flipped == images.flip(3)).all(dim=(1, 2, 3))
    is_same = (flipped == images).all(dim=(1, 2, 3))
    assert (is_mirror | is_same).all()
    assert 150 < is_mirror.sum() < 250  # 5 standard deviations of Binomial(400, 1/2)
    assert MILD.flip is False


def test_erase_covers_the_share_of_images_and_at_most_the_area():
    images = torch.full((1000, 3, 32, 32), 2.0)  # no grey equals 2, so a changed pixel is an erased one
    erased = (augment(images, only(erase=0.5, erase_area=0.2), generator()) != 2.0).any(dim=1).float()
    area = erased.mean(dim=(1, 2))
    assert 0.4 < (area > 0).float().mean() < 0.55  # a few rectangles are thinner than a pixel
    assert area.max() <= 0.2 * 1.3  # plus the rounding to whole pixels
    assert area.max() > 0.1


def test_contrast_keeps_the_mean_and_brightness_shifts_it():
    images = 0.4 + 0.2 * random_images()
    stretched = augment(images, only(contrast=0.5), generator())
    torch.testing.assert_close(stretched.mean(dim=(1, 2, 3)), images.mean(dim=(1, 2, 3)))
    ratio = stretched.std(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))
    assert ratio.min() < 0.7
    assert ratio.max() > 1.3
    shift = (augment(images, only(brightness=0.1), generator()) - images).mean(dim=(1, 2, 3))
    assert 0.08 < shift.abs().max() <= 0.1001


def test_noise_has_at_most_its_deviation():
    images = torch.full((300, 1, 24, 24), 0.5)
    deviation = augment(images, only(noise=0.1), generator()).std(dim=(1, 2, 3))
    assert 0.09 < deviation.max() < 0.115  # 576 pixels: 5 standard errors of a deviation are 15 %
    assert deviation.min() < 0.01


@pytest.mark.parametrize(
    ("name", "value"), [("shift", -0.1), ("erase", 1.5), ("rotation", 200.0), ("noise", float("nan"))]
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(InputError, match=f"Expected {name} to be a number of at least 0"):
        AugmentConfig(**{name: value})


def test_images_that_bring_their_own_numbers_do_not_change_with_their_company() -> None:
    config = AugmentConfig(erase=0.5, noise=0.2, flip=True)
    images = torch.rand(9, 3, 8, 8)
    numbers = torch.rand(9, augment_width(config, (3, 8, 8)), dtype=torch.float64)
    together = augment(images, config, numbers)
    assert torch.equal(together[1:], augment(images[1:], config, numbers[1:]))
    assert not torch.equal(together, images)
    assert float(together.min()) >= 0


@pytest.mark.parametrize("config", [MILD, NO_AUGMENTATION, AugmentConfig(noise=0.0, flip=True), only(noise=0.1)])
def test_every_number_that_an_image_brings_is_used(config) -> None:
    drawn = _Own(torch.rand(4, augment_width(config, (1, 2, 2)), dtype=torch.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veilset.training.augment._Own", lambda _: drawn)
        augment(torch.rand(4, 1, 2, 2), config, torch.zeros(0))
    assert drawn._next == drawn._numbers.shape[1]


def test_normal_numbers_from_uniform_ones() -> None:
    drawn = _Own(torch.rand(1, 100_000, dtype=torch.float64, generator=generator()))
    normals = drawn.normals(torch.Size((1, 100_000)))
    assert float(normals.mean()) == pytest.approx(0, abs=0.015)
    assert float(normals.std()) == pytest.approx(1, abs=0.01)
    assert bool(torch.isfinite(_Own(torch.tensor([[0.0, 1.0]])).normals(torch.Size((1, 2)))).all())
