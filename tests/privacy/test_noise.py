import os

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.noise import NoiseSource


def test_a_seed_reproduces_and_entropy_does_not() -> None:
    assert torch.equal(NoiseSource(7).normal(100), NoiseSource(7).normal(100))
    assert not torch.equal(NoiseSource(7).normal(100), NoiseSource(8).normal(100))
    assert not torch.equal(NoiseSource().normal(100), NoiseSource().normal(100))
    assert NoiseSource(7).seeded
    assert not NoiseSource().seeded


def test_a_stream_does_not_repeat() -> None:
    noise = NoiseSource(7)
    first, second = noise.normal(1001), noise.normal(1001)
    assert len(torch.unique(torch.cat([first, second]))) == 2002


def test_a_forked_process_has_noise_of_its_own() -> None:
    noise = NoiseSource()
    noise.normal(10)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, noise.normal(10).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reader, 80))
    assert not np.array_equal(theirs, noise.normal(10).numpy())


def test_odd_counts_and_chunk_edges() -> None:
    for count in (0, 1, 2, 3, (1 << 18) - 1, (1 << 18) + 1):
        drawn = NoiseSource(1).normal(count)
        assert drawn.shape == (count,)
        assert bool(torch.isfinite(drawn).all())


def test_the_low_bits_are_gone() -> None:
    """Whatever was summed, the result lies on one public grid, so which values can occur tells nothing."""
    for value in (0.0, 1 / 3, 1e-9):
        total = GridSum(1, 1000, clip_norm=1.0)
        total.add(torch.full((1, 1000), value, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
        released = total.release(NoiseSource(), 3.0)
        assert torch.equal(released, torch.round(released * 2**9) / 2**9)


def test_rows_are_truncated_toward_zero_so_that_no_norm_grows() -> None:
    total = GridSum(1, 2, clip_norm=1.0)
    total.add(torch.tensor([[1 - 2**-40, -(1 - 2**-40)]], dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert total._total.tolist() == [[2**30 - 1, -(2**30 - 1)]]


def test_sums_on_the_grid_do_not_depend_on_order() -> None:
    rows = torch.rand(1000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 3
    orders = [torch.arange(1000), torch.randperm(1000, generator=torch.Generator().manual_seed(1))]
    totals = []
    for order in orders:
        total = GridSum(2, 5, clip_norm=1.0)
        for piece in order.split(77):
            total.add(rows[piece], piece % 2)
        totals.append(total._total)
    assert torch.equal(*totals)


def test_rates_that_are_almost_one_or_zero() -> None:
    noise = NoiseSource(3)
    assert noise.coins(1000, 1.0).all()
    assert not noise.coins(1000, 1e-30).any()
    assert noise.coins(1000, 1 - 2**-53).all()


def test_noise_that_would_not_fit_the_integers_is_refused() -> None:
    total = GridSum(1, 3, clip_norm=1.0)
    assert bool(torch.isfinite(total.release(NoiseSource(1), 1e7)).all())
    with pytest.raises(InputError, match="grid steps"):
        total.release(NoiseSource(1), 1e9)
