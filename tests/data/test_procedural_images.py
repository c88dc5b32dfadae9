import pytest
import torch

from veilset.data.procedural_images import drawn_patterns


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_as_many_as_are_asked_for(count: int, channels: int) -> None:
    drawn = drawn_patterns(count, 16, channels, torch.Generator().manual_seed(0))
    assert drawn.shape == (count, channels, 16, 16)
    assert bool((drawn >= 0).all())
    assert bool((drawn <= 1).all())
