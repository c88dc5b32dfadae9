"""What a unit gives depends on that unit to the last bit, wherever it stands and whoever is beside it.

Networks change last bits with the shape of a batch, and whatever is built on them (votes, searches, critics) may make
much of a last bit. So the functions here are real networks, followed by one that amplifies: a changed bit shows.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from veilset.core.randomness import torch_generator
from veilset.core.settings import CLIP_NORM
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.latent.choices import SearchSettings
from veilset.methods.latent.moments import MomentRows
from veilset.methods.latent.search import LatentSearch
from veilset.methods.latent.space import LatentSpace
from veilset.methods.sanitized_gan.critics import CodeCritic, CriticTraining
from veilset.methods.shared.class_statistics import code_rows, public_embedding
from veilset.models.generators.style import StyleGenerator
from veilset.privacy.events import Event
from veilset.privacy.noise import Claim, NoiseSource, Owners
from veilset.privacy.rows import alone, below, squared_lengths
from veilset.privacy.session import Session
from veilset.privacy.unit_rows import MOST_IMAGES_PER_GROUP, UnitRows
from veilset.privacy.vault import PublicFacts, Vault, contents_of

OpenSession = Callable[..., Session]

SIZE, COUNT, CLASSES = 20, 45, ("a", "b", "c")
FACTS = PublicFacts(units=COUNT, unit="record", shape=(SIZE, SIZE, 1), class_names=CLASSES)
PLACES = {"beginning": 0, "middle": COUNT // 2, "end": COUNT - 1}


class Recorder(NoiseSource):
    """Keeps the exact sums, and gives each unit the coins of its own id."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sums: list[tuple[Tensor, Claim]] = []
        self.calls = 0

    def coins(self, count: int, rate: float, owners: Owners | None = None) -> np.ndarray:
        return self.uniforms(count, 1, owners)[:, 0].numpy() < rate

    def uniforms(self, count: int, width: int, owners: Owners | None = None) -> Tensor:
        assert owners is not None, "a draw without an owner cannot be tied to a unit"
        self.calls += 1
        seeds = [int.from_bytes(own[:8].ljust(8, b"-"), "big") ^ self.calls for own in owners()]
        assert len(seeds) == count
        drawn = np.array([np.random.default_rng(seed).random(width) for seed in seeds])
        return torch.from_numpy(drawn.reshape(count, width))

    def release(self, total: Tensor, claim: Claim) -> Tensor:
        self.sums.append((total.clone(), claim))
        return torch.zeros(total.shape, dtype=torch.float64)  # a recorded world goes on like the other


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@cache
def pictures(count: int = COUNT, seed: int = 5) -> np.ndarray:
    drawn = drawn_patterns(count, SIZE, 1, torch_generator(seed, "test pictures"))
    return (drawn.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()


def without(left_out: int | None, groups: np.ndarray | None = None) -> ImageSet:
    """The pictures without one unit."""
    units = np.arange(COUNT) if groups is None else groups
    kept = np.flatnonzero(units != left_out)
    return dataset(kept, groups)


def dataset(rows: np.ndarray, groups: np.ndarray | None = None) -> ImageSet:
    own = None if groups is None else groups[rows]
    return ImageSet(pictures()[rows], rows % 3, CLASSES, own, may_lack_classes=True)


@cache
def codes() -> Callable[[Tensor, Tensor], Tensor]:
    return code_rows(public_embedding(FACTS, random_features=8, pictures=60, seed=1), "cpu")


def amplified(images: Tensor, labels: Tensor) -> Tensor:
    """A fixed function of an image that turns a last bit into one that the sum's grid shows.

    No more than that: a function that a last bit turns around is refused, as one that mixes images.
    """
    rows = codes()(images, labels).double()
    return rows + 1e-5 * torch.sin(1e6 * rows)


# --- Sums ---------------------------------------------------------------------------------------------------------


def exact_sum(
    open_session: OpenSession,
    data: Any,
    function: Any = amplified,
    *,
    unit: str = "record",
    sampling_rate: float = 1.0,
    **options: Any,
) -> Tensor:
    noise = Recorder()
    event = Event(label="sum", noise_multiplier=1.0, sampling_rate=sampling_rate)
    session = open_session(data, [event], noise=noise, unit=unit)
    session.gaussian_sum(function, event, clip_norm=0.5, **options)
    ((total, claim),) = noise.sums
    assert claim.sensitivity == 0.5
    return total


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", [{}, {"by_class": True}, {"sampling_rate": 0.6}, {"batch": 7}], ids=str)
def test_a_sum_moves_by_the_row_of_the_unit_and_nothing_else(
    place: str, options: dict[str, Any], threads: int, open_session: OpenSession
) -> None:
    whole = exact_sum(open_session, without(None), **options)
    less = exact_sum(open_session, without(PLACES[place]), **options)
    single = exact_sum(open_session, dataset(np.array([PLACES[place]])), **options)
    assert torch.equal(whole - less, single)
    assert float(single.double().norm()) <= 2.0**30


@pytest.mark.parametrize("place", PLACES)
def test_a_search_for_latents_is_a_function_of_its_image(place: str, open_session: OpenSession) -> None:
    """Steps of a descent, whose rates here are so large that a last bit would become a first one."""
    torch.manual_seed(0)
    space = LatentSpace.of(StyleGenerator(SIZE, 1, latent_size=4, width=4).eval(), seed=0)
    search = LatentSearch(space, None, SearchSettings(start="average", steps=6, learning_rate=2.0))

    def row(images: Tensor, labels: Tensor) -> Tensor:
        return MomentRows(size=4, clip_norm=2.0, count_weight=0.0)(search(images))

    whole, less, single = (
        exact_sum(open_session, data, row, batch=search.batch)
        for data in (without(None), without(PLACES[place]), dataset(np.array([PLACES[place]])))
    )
    assert torch.equal(whole - less, single)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1.7e308, 1e151])
def test_a_group_with_a_number_beyond_measure_gives_nothing(value: float, open_session: OpenSession) -> None:
    def row(images: Tensor, labels: Tensor) -> Tensor:
        return torch.full((len(images), 3), value, dtype=torch.float64)

    total = exact_sum(open_session, without(None, np.arange(COUNT) // 3), row, unit="group")
    assert not bool(total.any())


def test_the_image_of_another_unit_may_be_there_twice(open_session: OpenSession) -> None:
    twice = np.concatenate([np.arange(COUNT), [3, 3]])
    moved = exact_sum(open_session, dataset(twice)) - exact_sum(open_session, without(None))
    assert torch.equal(moved, 2 * exact_sum(open_session, dataset(np.array([3]))))


@pytest.mark.parametrize("left_out", [0, 4, 7])
@pytest.mark.parametrize("by_class", [False, True])
def test_a_group_is_a_function_of_its_own_images(
    left_out: int, by_class: bool, threads: int, open_session: OpenSession
) -> None:
    groups = np.arange(COUNT) ** 2 % 9  # of different sizes, and spread over the vault
    groups[groups == 4] = 1
    groups[::9] = 4
    options: dict[str, Any] = {"unit": "group", "by_class": by_class}
    whole = exact_sum(open_session, without(None, groups), **options)
    less = exact_sum(open_session, without(left_out, groups), **options)
    single = exact_sum(open_session, dataset(np.flatnonzero(groups == left_out), groups), **options)
    assert torch.equal(whole - less, single)


def test_the_order_of_a_groups_images_in_the_vault_does_not_matter(open_session: OpenSession) -> None:
    groups = np.arange(COUNT) // 9
    backwards = dataset(np.arange(COUNT)[::-1].copy(), groups)
    assert torch.equal(
        exact_sum(open_session, without(None, groups), unit="group"), exact_sum(open_session, backwards, unit="group")
    )


def test_of_a_huge_group_some_images_are_read_and_always_the_same(open_session: OpenSession) -> None:
    many = 3 * MOST_IMAGES_PER_GROUP
    images = np.random.default_rng(0).integers(0, 256, (many + 2, 4, 4, 1), dtype=np.uint8)
    groups = np.where(np.arange(many + 2) < many, 7, np.arange(many + 2))
    labels = np.arange(many + 2) % 3
    rows = UnitRows(ImageSet(images, labels, CLASSES, groups), "group")
    order = np.random.default_rng(1).permutation(many + 2)
    turned = UnitRows(ImageSet(images[order], labels[order], CLASSES, groups[order]), "group")
    assert [len(rows.of(unit)) for unit in range(3)] == [MOST_IMAGES_PER_GROUP, 1, 1]
    for unit in range(3):
        assert np.array_equal(rows.read(rows.of(unit))[0], turned.read(turned.of(unit))[0])


def test_a_row_that_depends_on_its_place_gets_a_batch_of_its_own() -> None:
    sizes = []

    def by_place(images: Tensor, labels: Tensor) -> Tensor:
        sizes.append(len(images))
        return images.flatten(1).double().mean(dim=1, keepdim=True) + 1e-9 * torch.arange(len(images))[:, None]

    row_of, width = alone(by_place, FACTS)
    sizes.clear()
    images = torch.from_numpy(pictures()[:5])
    found = row_of(images, torch.zeros(5, dtype=torch.int64))
    assert width == 1
    assert sizes == [1] * 5
    assert torch.equal(found[:, 0], images.flatten(1).double().mean(dim=1))


def test_batches_have_one_shape() -> None:
    sizes = []

    def watched(images: Tensor, labels: Tensor) -> Tensor:
        sizes.append((len(images), len(labels)))
        return images.flatten(1).double()

    row_of, _ = alone(watched, FACTS, 16)
    for count in (0, 1, 16, 40):
        sizes.clear()
        images = torch.from_numpy(pictures()[:count])
        assert torch.equal(row_of(images, torch.zeros(count, dtype=torch.int64)), images.flatten(1).double())
        assert set(sizes) == {(16, 16)}


def test_the_length_of_a_row_does_not_depend_on_the_other_rows(threads: int) -> None:
    long = torch.sin(torch.arange(3 * 100_000, dtype=torch.float64)).view(3, -1)
    alone_ = torch.cat([squared_lengths(row[None]) for row in long])
    assert torch.equal(squared_lengths(long), alone_)


def test_a_scaled_row_is_never_longer_than_the_bound() -> None:
    """In whole numbers, where nothing rounds."""
    coins = np.random.default_rng(0)
    for numbers in (1, 2, 50, 20_000):
        row = torch.from_numpy(coins.standard_normal((1, numbers)) * 1e3)
        scaled = row * (below(0.1, numbers) / squared_lengths(row).sqrt())
        whole = torch.trunc(scaled / (0.1 * 2.0**-30)).to(torch.int64)
        assert int(whole.square().sum()) <= 2**60
    assert CLIP_NORM["least"] ** 2 > 1e-300


# --- Models of shards ---------------------------------------------------------------------------------------------

TEACHERS, QUERIES = 9, 4


def volatile(codes: Tensor, labels: Tensor) -> Tensor:
    """A model that is another one as soon as a bit of its shard changes, with a coin of its own on top."""
    seed = hash((codes.numpy().tobytes(), labels.numpy().tobytes())) % 2**31
    own = torch.randn(QUERIES, 3, generator=torch.Generator().manual_seed(seed))
    return own + torch.rand(())


def trained(open_session: OpenSession, data: Any, unit: str = "record") -> tuple[list[bytes], Tensor, Claim]:
    noise = Recorder()
    event = Event(label="once", noise_multiplier=1.0)
    session = open_session(data, [event], noise=noise, unit=unit)
    ensemble = session.ensemble(volatile, codes(), teachers=TEACHERS)
    ensemble.gradient(lambda model: model, event, shape=(QUERIES, 3), norm_bound=1.0)
    assert ensemble._models is not None
    ((total, claim),) = noise.sums
    return [model.numpy().tobytes() for model in ensemble._models], total, claim


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("unit", ["record", "group"])
def test_one_unit_changes_one_teacher(place: str, unit: str, threads: int, open_session: OpenSession) -> None:
    groups = np.arange(COUNT) % 23 if unit == "group" else None
    left_out = PLACES[place] % 23 if unit == "group" else PLACES[place]
    before, total, claim = trained(open_session, without(None, groups), unit)
    after, less, _ = trained(open_session, without(left_out, groups), unit)
    assert len(set(before) - set(after)) == 1
    assert len(set(after) - set(before)) <= 1
    assert float((total - less).double().norm()) * claim.step <= claim.sensitivity


def test_a_record_that_is_there_twice_goes_to_one_shard(open_session: OpenSession) -> None:
    before, _, _ = trained(open_session, without(None))
    after, _, _ = trained(open_session, dataset(np.concatenate([np.arange(COUNT), [7]])))
    assert len(set(before) - set(after)) == len(set(after) - set(before)) == 1


def test_the_order_of_the_vault_makes_no_difference_to_a_teacher(open_session: OpenSession) -> None:
    assert trained(open_session, without(None))[0] == trained(open_session, dataset(np.arange(COUNT)[::-1].copy()))[0]


def test_an_open_vault_tells_how_it_orders_groups() -> None:
    vault = Vault(without(None, np.arange(COUNT) // 5), unit="group")
    contents = contents_of(vault)
    digests = contents.records.digests()
    for unit in range(contents.count):
        own = [bytes(digest) for digest in digests[contents.of(unit)]]
        assert own == sorted(own)


# --- Critics of shards --------------------------------------------------------------------------------------------

CRITICS, VISITS, WIDTH = 6, 3, 59


def visited(open_session: OpenSession, data: Any, unit: str = "record") -> tuple[list[bytes], Recorder]:
    """What every critic is after some visits, to the last bit, and the sums that left."""
    noise = Recorder()
    event = Event(label="critics", noise_multiplier=1.0, count=VISITS)
    session = open_session(data, [event], noise=noise, unit=unit)
    coins = torch.Generator().manual_seed(4)
    torch.manual_seed(0)
    training = CriticTraining(
        critic=CodeCritic(WIDTH, len(CLASSES), hidden=8), shape=(WIDTH,), learning_rate=0.5, penalty=10.0
    )
    critics = session.critics(training, codes(), [event], critics=CRITICS, shape=(4, WIDTH), clip_norm=0.1)
    for _ in range(VISITS):
        critics.step(
            {
                "fakes": torch.randn(4, 8, WIDTH, generator=coins),
                "fake_labels": torch.arange(32).view(4, 8) % 3,
                "points": torch.randn(4, WIDTH, generator=coins),
                "labels": torch.arange(4) % 3,
            }
        )
    leaves = tree_leaves(critics._state)
    return [b"".join(leaf[shard].numpy().tobytes() for leaf in leaves) for shard in range(CRITICS)], noise


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("unit", ["record", "group"])
def test_one_unit_changes_one_critic(place: str, unit: str, threads: int, open_session: OpenSession) -> None:
    groups = np.arange(COUNT) % 23 if unit == "group" else None
    left_out = PLACES[place] % 23 if unit == "group" else PLACES[place]
    before, recorded = visited(open_session, without(None, groups), unit)
    after, less = visited(open_session, without(left_out, groups), unit)
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
    assert recorded.calls == less.calls
    for (total, claim), (other, _) in zip(recorded.sums, less.sums, strict=True):
        assert float((total - other).double().norm()) * claim.step <= claim.sensitivity


def test_the_size_of_a_shard_changes_no_other(open_session: OpenSession) -> None:
    """Many more images of one patient: other critics' rows were padded to the longest shard once."""
    groups = np.arange(COUNT) % 20
    more = np.concatenate([np.arange(COUNT), np.tile(np.flatnonzero(groups == 2), 30)])
    before, _ = visited(open_session, without(None, groups), "group")
    after, _ = visited(open_session, dataset(more, groups), "group")
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
