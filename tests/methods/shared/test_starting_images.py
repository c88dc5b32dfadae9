"""Public images in many forms, and the batches that alignment starts from."""

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.shared.starting_images import balanced_choice, starting_images
from veilset.methods.shared.variations import vary


def pictures(count: int = 8, channels: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["none", "turned", "all", "crops"])
@pytest.mark.parametrize("channels", [1, 3])
def test_variations_keep_shape_and_range_and_follow_their_generator(kind: str, channels: int) -> None:
    first, second, other = (vary(pictures(40, channels), kind, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert first.shape == (40, channels, 16, 16)
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    assert torch.equal(first, second)
    assert torch.equal(first, other) == (kind == "none")


def public(count: int = 30, channels: int = 1, side: int = 16) -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return ImageSet(images, np.arange(count) % 2)


def test_public_images_come_once_each_and_then_turned() -> None:
    batch = starting_images("public", (16, 16, 1), public(), variation="none", blur=3, seed=0)
    first = torch.cat([batch(number, 10) for number in range(3)])
    wanted = torch.from_numpy(public().images.copy()).permute(0, 3, 1, 2).float() / 255
    assert torch.equal(first.flatten(1).sort(0).values, wanted.flatten(1).sort(0).values)
    assert torch.equal(batch(1, 10), batch(1, 10))
    later = batch(3, 10)
    assert not any(torch.equal(image, other) for image in later for other in wanted)


def test_public_images_get_the_private_shape() -> None:
    batch = starting_images("public", (28, 28, 3), public(channels=1), variation="all", blur=3, seed=0)
    assert batch(0, 10).shape == (10, 3, 28, 28)


def test_filtered_noise_is_smoother_than_noise_and_as_strong() -> None:
    def steepness(kind: str, blur: int) -> tuple[float, float]:
        images = starting_images(kind, (32, 32, 1), None, variation="none", blur=blur, seed=0)(0, 20)
        return float((images[..., 1:] - images[..., :-1]).std()), float(images.std())

    plain, little, much = steepness("noise", 3), steepness("filtered_noise", 3), steepness("filtered_noise", 11)
    assert plain[0] > little[0] > much[0]
    assert plain[1] == pytest.approx(little[1], rel=0.1)
    assert plain[1] == pytest.approx(1 / 6, rel=0.05)


@pytest.mark.parametrize("shape", [(28, 28, 1), (20, 32, 3), (96, 96, 3)])
def test_drawn_patterns_of_any_shape(shape: tuple[int, int, int]) -> None:
    images = starting_images("drawn", shape, None, variation="all", blur=3, seed=0)(0, 6)
    assert images.shape == (6, shape[2], shape[0], shape[1])


def test_public_images_must_be_there() -> None:
    with pytest.raises(InputError, match="--public"):
        starting_images("public", (16, 16, 1), None, variation="none", blur=3, seed=0)


def test_the_choice_favours_classes_that_have_little() -> None:
    soft = torch.zeros(1000, 4)
    soft[:, 0], soft[:30, 0], soft[:30, 1] = 1, 0, 1
    rows = balanced_choice(soft, 50, np.random.default_rng(0))
    assert len(set(rows.tolist())) == 50
    assert 15 <= (rows < 30).sum() <= 30


def test_crops_are_cut_from_larger_public_images() -> None:
    """Fine detail of an image twice the size is still there in a part of it, and not in the whole image made small."""
    checks = 255 * (np.indices((64, 64)).sum(axis=0) // 2 % 2).astype(np.uint8)
    large = ImageSet(np.repeat(checks[None, :, :, None], 40, axis=0), np.zeros(40, dtype=np.int64))
    found = {
        kind: starting_images("public", (32, 32, 1), large, variation=kind, blur=3, seed=0)(0, 40)
        for kind in ("none", "crops")
    }
    assert found["crops"].shape == (40, 1, 32, 32)
    contrasts = found["crops"].flatten(1).std(dim=1)
    assert float(contrasts.max()) > 2 * float(contrasts.min())
    assert not torch.equal(found["crops"][0], found["crops"][1])
