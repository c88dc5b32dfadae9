"""Which units a mechanism reads: all of them, a Poisson sample, or one shard of a partition.

The sampler that runs here is the one that the event claims: every unit has its own coin (privacy/noise.py), and a
unit's shard is a keyed hash of its own id, so that adding or removing one unit moves no other.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from veilset.core.records import Rows
from veilset.privacy.noise import NoiseSource, Owners
from veilset.privacy.unit_rows import UnitRows, Units


def owners_of(rows: UnitRows, units: Units) -> Owners:
    """The own ids of these units, for a source that ties its draws to them."""

    return lambda: [rows.own_id(unit) for unit in units]


def poisson_sample(rows: UnitRows, units: Units, sampling_rate: float, noise: NoiseSource) -> Units:
    """Each of `units` independently with probability `sampling_rate`."""
    if sampling_rate >= 1.0:
        return units
    return units[noise.coins(len(units), sampling_rate, owners_of(rows, units))]


def poisson_rows(rows: UnitRows, units: Units, sampling_rate: float, noise: NoiseSource) -> tuple[Units, Rows]:
    """A Poisson sample of `units`, and one uniformly drawn row of each sampled unit."""
    sampled = poisson_sample(rows, units, sampling_rate, noise)
    return sampled, rows.row_of_each(sampled, noise.choices(rows.sizes(sampled), owners_of(rows, sampled)))


def shard_of_each(rows: UnitRows, shards: int, key: bytes) -> NDArray[np.int64]:
    """The shard of every unit, from a keyed hash of its own id.

    Privacy: depends on that unit alone, so disjoint shards compose in parallel under add/remove-one. The key is public
    randomness, drawn before any data is read.
    """
    shard = np.empty(rows.count, np.int64)
    for unit, own_id in enumerate(rows.own_ids()):  # one after the other: there may be millions
        shard[unit] = int.from_bytes(hashlib.blake2b(own_id, key=key, digest_size=8).digest(), "big") % shards
    return shard


def rows_of_shards(rows: UnitRows, shards: int, key: bytes) -> list[Rows]:
    """The rows of every shard, in the order of their units' own ids.

    Privacy: as `shard_of_each`; the order within a shard depends on what that shard holds and on nothing else.
    """
    owner = shard_of_each(rows, shards, key)
    parts = (np.flatnonzero(owner == shard) for shard in range(shards))
    return [rows.of_all(part) for part in rows.in_own_order(parts)]
