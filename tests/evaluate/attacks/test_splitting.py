"""Pairs of one class, halves that share nothing, and refusals."""

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.evaluate.attacks.splitting import make_split


def pictures(count, seed, classes=3, side=6):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 255, (count, side, side, 1), dtype=np.uint8)
    return ImageSet(images, rng.integers(0, classes, count), tuple("abc"[:classes]), may_lack_classes=True)


def ids(images):
    return {image.tobytes() for image in images}


def test_halves_are_balanced_and_share_no_image():
    members, nonmembers = pictures(200, 0), pictures(150, 1)
    split = make_split(members, nonmembers, seed=3)
    for part in (split.known, split.attacked):
        assert part.is_member.sum() == len(part.labels) / 2 == part.pairs
        assert ids(part.images[part.is_member]) <= ids(members.images)
        assert ids(part.images[~part.is_member]) <= ids(nonmembers.images)
        assert (part.labels[0::2] == part.labels[1::2]).all()
        everyone = {
            image.tobytes(): label
            for s in (members, nonmembers)
            for image, label in zip(s.images, s.labels, strict=True)
        }
        assert all(everyone[image.tobytes()] == label for image, label in zip(part.images, part.labels, strict=True))
    assert not ids(split.known.images) & ids(split.attacked.images)
    assert abs(split.known.pairs - split.attacked.pairs) <= 1


def test_copies_among_the_members_do_not_cross_the_halves():
    few = pictures(60, 0)
    doubled = few.subset(np.tile(np.arange(60), 3))
    split = make_split(doubled, pictures(300, 1))
    assert not ids(split.known.images) & ids(split.attacked.images)
    assert split.known.pairs + split.attacked.pairs <= 60


def test_the_limit_and_the_seed():
    members, nonmembers = pictures(200, 0), pictures(200, 1)
    split = make_split(members, nonmembers, pairs=50, seed=1)
    assert split.known.pairs == split.attacked.pairs == 25
    again = make_split(members, nonmembers, pairs=50, seed=1)
    assert (split.attacked.images == again.attacked.images).all()
    assert ids(split.attacked.images) != ids(make_split(members, nonmembers, pairs=50, seed=2).attacked.images)
    assert (split.head(10).attacked.images == split.attacked.images[:10]).all()


def test_an_image_on_both_sides_is_refused_whatever_its_label():
    members = pictures(100, 0)
    relabelled = ImageSet(members.images[:7], (members.labels[:7] + 1) % 3, members.class_names, may_lack_classes=True)
    mixed = np.concatenate([pictures(90, 1).images, relabelled.images])
    nonmembers = ImageSet(mixed, np.resize(np.arange(3), 97), members.class_names)
    with pytest.raises(InputError, match=r"7 of 97 different images of --nonmembers are in --members"):
        make_split(members, nonmembers)


@pytest.mark.parametrize(
    ("nonmembers", "message"),
    [
        (pictures(100, 1, side=8), "one shape"),
        (pictures(100, 1, classes=2), "same classes"),
        (pictures(10, 1), "at least 20 pairs"),
    ],
)
def test_what_cannot_be_paired_is_refused(nonmembers, message):
    with pytest.raises(InputError, match=message):
        make_split(pictures(100, 0), nonmembers)


def test_candidates_of_another_kind_than_the_target():
    split = make_split(pictures(100, 0), pictures(100, 1))
    split.require_fit((6, 6, 1), 3)
    with pytest.raises(InputError, match="8x8x1"):
        split.require_fit((8, 8, 1), 3)
    with pytest.raises(InputError, match="4 classes"):
        split.require_fit((6, 6, 1), 4)
