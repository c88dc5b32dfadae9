"""What a run that protects each record costs a person with several images.

Formal guarantee. A plan for one record holds events of noise multiplier s and sampling rate q. Let a person have at
most m images, and add or remove all of them at once.

Sum over the whole vault (q = 1): along a chain of m single records the sum moves by at most m sensitivities, so the
event is a Gaussian of multiplier s/m. Of the shards of a partition the person's images may touch several, with
k_1 + k_2 + ... = m; the squares k_i^2 / s_i^2 add up to at most that of all m images in the worst shard, since a convex
function is largest in a corner. So shards keep composing in parallel, each with s/m.

Poisson sample (q < 1): each image has a coin of its own, so the sum is a mixture of Gaussians whose shift is at most
the number of sampled images. With probability (1-q)^m it is zero, and otherwise at most m. Such a mixture only becomes
easier to tell from no shift when its shifts grow in one direction (Ganesh 2024, "Tight group-level DP guarantees for
DP-SGD with sampling via mixture of Gaussians mechanisms", who prices the tight mixture with binomial shifts). So the
event is dominated by one Gaussian of multiplier s/m, sampled at 1-(1-q)^m. Sampled shards are composed one after
another: that several of them meet one person is then covered without an argument.

Correlated noise (bands > 1): what one record adds in its rounds is orthogonal, because its steps are so many bands
apart, and has length 1 in each. A person's images have steps of their own, which may lie side by side, so rounds do not
compose one after another for a person. But whatever the coins say, what m images add in all n rounds is no longer than
m sqrt(n), and by joint convexity no mixture of such shifts is easier to tell than the longest (adaptive steps
included: Denisov et al. 2022). So the event counts as n Gaussians of multiplier s/m without the gain of sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from veilset.core.errors import InputError
from veilset.privacy.events import Event
from veilset.privacy.vault import Unit


def unit_of_all(units: set[Unit], images_per_group: int | None) -> Unit:
    """For whom runs of these units add up: a group once one of them is for groups or the images of one are declared."""
    return "group" if images_per_group is not None or "group" in units else "record"


def in_one_unit(
    plans: Sequence[tuple[Sequence[Event], Unit]], images_per_group: int | None
) -> tuple[Unit, list[list[Event]]]:
    """The unit in which these plans, each for a unit of its own, add up; and what each of them counts for it."""
    whole = unit_of_all({unit for _, unit in plans}, images_per_group)
    return whole, [_counted_as(events, unit, whole, images_per_group) for events, unit in plans]


def _counted_as(events: Sequence[Event], unit: Unit, whole: Unit, images_per_group: int | None) -> list[Event]:
    if unit == whole:
        return list(events)
    assert images_per_group is not None, "an account of two units knows the images of one group"
    return for_groups(events, images_per_group)


def for_groups(events: Sequence[Event], images_per_group: int) -> list[Event]:
    """Events that were planned for each record, as they count for a group of at most that many images.

    Privacy: unit group; relation add/remove-one; an upper bound by the argument above; assumes that no group has more
    images than declared.
    """
    if images_per_group < 1:
        raise InputError(f"Expected at least 1 image for each group, got {images_per_group}.")
    sampled = {event.partition for event in events if event.sampling_rate < 1}
    return [_for_group(event, images_per_group, keeps_shard=event.partition not in sampled) for event in events]


def _for_group(event: Event, images: int, *, keeps_shard: bool) -> Event:
    if images == 1:
        return event
    certain = event.sampling_rate == 1 or event.bands > 1
    rate = 1.0 if certain else -math.expm1(images * math.log1p(-event.sampling_rate))
    changed = replace(event, noise_multiplier=event.noise_multiplier / images, sampling_rate=min(1.0, rate), bands=1)
    return changed if keeps_shard else replace(changed, partition=None, shard=None)
