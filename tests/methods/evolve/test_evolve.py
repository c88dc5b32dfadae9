"""Private Evolution: its plan, its votes, who survives, its generators, a whole small run, and resuming."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import run_with
from torch import Tensor

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.base import Context
from veilset.methods.evolve.config import Evolve, EvolvePlan, EvolveSettings, candidate_count
from veilset.methods.evolve.features import feature_space, features_of
from veilset.methods.evolve.generators import Checked
from veilset.methods.evolve.method import _next
from veilset.methods.evolve.pool import EigenPool, PoolGenerator, pool_pictures
from veilset.methods.evolve.sampling import FittedEvolve
from veilset.methods.evolve.voting import Ballot, Survivors
from veilset.models.features.weights import PUBLISHED, is_installed
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.spending import Spending
from veilset.privacy.vault import PublicFacts, Vault

SMALL: dict[str, Any] = {"rounds": 3, "candidates": 8, "pool": 80, "teacher_share": 0.0}
FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
TOY = PublicFacts(units=600, unit="record", shape=(16, 16, 1), class_names=("strokes", "clouds"))
BUDGET = Budget(1.0, 1e-5)


@pytest.fixture
def records() -> ImageSet:
    """Two classes that a look tells apart: strokes, and clouds."""
    pictures = drawn_patterns(900, 16, 1, torch.Generator().manual_seed(3))
    images = as_bytes(torch.cat([pictures[:300], pictures[600:]])).numpy()
    return ImageSet(images, np.repeat([0, 1], 300))


@pytest.fixture
def public() -> ImageSet:
    images = np.random.default_rng(9).integers(0, 256, (120, 16, 16, 1), dtype=np.uint8)
    return ImageSet(images, np.arange(120) % 2)


@pytest.fixture
def pictures() -> Tensor:
    return pool_pictures(None, TOY.shape, 80, seed=0)


def job(**settings: Any) -> Job:
    return Job(method="evolve", epsilon=10.0, samples=30, insecure_seed=0, settings={**SMALL, **settings})


# The plan


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_plan_spends_the_budget_and_no_more(epsilon: float, share: float) -> None:
    plan = Evolve(EvolveSettings(rounds=4, teacher_share=share)).plan(FACTS, Budget(epsilon, 1e-5))
    assert plan.events == (*(() if plan.teacher is None else (plan.teacher.event,)), *plan.rounds)
    assert (plan.teacher is None) == (share == 0)
    assert 0.99 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon


def test_each_round_is_one_full_sum_and_all_have_the_same_noise() -> None:
    plan = Evolve(EvolveSettings(rounds=5)).plan(FACTS, BUDGET)
    assert len(plan.rounds) == len(set(plan.rounds)) == 5
    assert all(event.count == 1 and event.sampling_rate == 1 for event in plan.rounds)
    assert len({event.noise_multiplier for event in plan.rounds}) == 1


def test_rounds_cost_as_one_sum_of_less_noise() -> None:
    noises = [
        Evolve(EvolveSettings(rounds=rounds, teacher_share=0.0)).plan(FACTS, BUDGET).rounds[0].noise_multiplier
        for rounds in (1, 9)
    ]
    assert noises[1] == pytest.approx(3 * noises[0], rel=5e-3)


def test_the_number_of_candidates_follows_votes_and_noise() -> None:
    assert candidate_count(1000.0, 5.0) == 100
    assert candidate_count(1.0, 100.0) == 10
    assert candidate_count(1e6, 1.0) == 2000
    plan = Evolve().plan(FACTS, BUDGET)
    assert plan.decided["candidates"].value == plan.candidates
    assert "candidates" not in Evolve(EvolveSettings(candidates=20)).plan(FACTS, BUDGET).decided


def test_degrees_fall_from_the_first_to_the_last() -> None:
    settings = EvolveSettings(rounds=3, degree=0.9, last_degree=0.1)
    assert [settings.degree_after(number) for number in (1, 2, 3)] == pytest.approx([0.9, 0.5, 0.1])
    assert EvolveSettings(rounds=1, degree=0.9, last_degree=0.1).degree_after(1) == 0.1


def test_a_release_varies_more_where_a_classifier_labels_it() -> None:
    alone, labelled = (Evolve(EvolveSettings(teacher_share=share)).plan(FACTS, BUDGET) for share in (0.0, 0.5))
    assert alone.release_degree == alone.settings.last_degree
    assert labelled.release_degree == labelled.decided["release_degree"].value == 1
    assert Evolve(EvolveSettings(release_degree=0.3)).plan(FACTS, BUDGET).release_degree == 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator": "nonsense"}, "Expected generator to be one of"),
        ({"candidates": 4, "votes": 5}, "Expected votes of at most candidates=4"),
        ({"degree": 0.1, "last_degree": 0.2}, "Expected last_degree of at most"),
        ({"rounds": 0}, "Expected rounds to be"),
        ({"kept": 1.0}, "Expected kept to be"),
        ({"features": "lite9"}, "Expected features to be"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EvolveSettings(**settings)


def test_more_votes_than_a_rule_leaves_candidates_are_refused() -> None:
    with pytest.raises(InputError, match="the candidates of a class"):
        Evolve(EvolveSettings(votes=2000)).plan(TOY, BUDGET)


# Votes


def ballot(pictures: Tensor, candidates: Tensor, votes: int = 1) -> Ballot:
    features = feature_space("wavelets", as_floats(pictures), seed=0, device="cpu")
    rows = features_of(features, as_floats(candidates), "cpu").reshape(2, len(candidates) // 2, -1)
    return Ballot(features, rows, votes, TOY, "cpu")


def test_an_image_votes_for_its_own_copy_among_its_class(pictures: Tensor) -> None:
    candidates = pictures[:12]  # the first six are of class 0
    votes = ballot(pictures, candidates)(candidates, torch.tensor([0] * 6 + [1] * 6))
    assert torch.equal(votes, torch.eye(6, dtype=torch.float64).repeat(2, 1))


def test_an_image_votes_within_its_class_even_where_another_has_its_copy(pictures: Tensor) -> None:
    votes = ballot(pictures, pictures[:12])
    cast = votes(pictures[:1].repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    assert cast[0, 0] == 1
    assert cast[1].sum() == 1


@pytest.mark.parametrize("count", [1, 3, 6])
def test_votes_have_length_one(pictures: Tensor, count: int) -> None:
    cast = ballot(pictures, pictures[:12], count)(pictures[20:50], torch.arange(30) % 2)
    torch.testing.assert_close(cast.square().sum(dim=1), torch.ones(30, dtype=torch.float64))
    assert ((cast > 0).sum(dim=1) == count).all()
    assert cast.max() == pytest.approx(1 / math.sqrt(count))


def test_of_equal_candidates_the_first_gets_the_vote(pictures: Tensor) -> None:
    cast = ballot(pictures, pictures[[0, 0, 0, 1, 1, 1]])(pictures[:1], torch.tensor([0]))
    assert cast.tolist() == [[1.0, 0.0, 0.0]]


def test_a_vote_does_not_depend_on_place_or_company(pictures: Tensor) -> None:
    votes, labels = ballot(pictures, pictures[:40], 2), torch.arange(80) % 2
    together = votes(pictures, labels)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(0))
    assert torch.equal(votes(pictures[order], labels[order]), together[order])
    assert torch.equal(torch.cat([votes(pictures[i : i + 1], labels[i : i + 1]) for i in range(80)]), together)


def test_one_image_more_moves_the_votes_by_one(pictures: Tensor) -> None:
    votes, labels = ballot(pictures, pictures[:20], 4), torch.arange(80) % 2
    with_it, without = (votes(pictures[first:], labels[first:]).sum(dim=0) for first in (0, 1))
    assert float((with_it - without).norm()) == pytest.approx(1.0)


def test_features_have_length_one_and_their_own_shape() -> None:
    for shape in ((16, 16, 1), (40, 20, 3)):
        images = as_floats(pool_pictures(None, shape, 60, seed=0))
        for name in ("wavelets", "pixels", *(["pretrained"] if is_installed("lite0") else [])):
            rows = features_of(feature_space(name, images, seed=0, device="cpu"), images, "cpu")
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(60))


# Survivors


def test_survivors_are_drawn_by_what_is_left_of_their_votes() -> None:
    alive = Survivors.of(torch.tensor([10.0, -4.0, 4.0, 2.5]), threshold=2.0)
    torch.testing.assert_close(alive.shares, torch.tensor([8.0, 0.0, 2.0, 0.5]).double() / 10.5)
    assert alive.best(10).tolist() == [0, 2, 3]
    assert alive.best(1).tolist() == [0]
    drawn = torch.bincount(alive.drawn(1050, torch.Generator().manual_seed(0)), minlength=4)
    assert (drawn - torch.tensor([800, 0, 200, 50])).abs().max() <= 1


def test_a_class_without_votes_keeps_its_best_and_says_so() -> None:
    votes = torch.linspace(-1, 1, 40)
    alive = Survivors.of(votes, threshold=5.0)
    assert not alive.were_elected
    assert sorted(alive.best(40).tolist()) == [36, 37, 38, 39]


def test_some_survivors_stay_as_they_are(pictures: Tensor) -> None:
    generator = Checked(EigenPool(pictures, flip=False), TOY, "eigen")
    candidates = as_floats(pictures[:8])
    alive = Survivors.of(torch.tensor([0.0, 9, 0, 0, 5, 0, 0, 0]), threshold=1.0)
    after = _next(candidates, alive, 0.5, 0.5, generator, seed=0)
    assert after.shape == candidates.shape
    assert torch.equal(after[:2], candidates[[1, 4]])
    assert not any(torch.equal(after[2], candidate) for candidate in candidates)


# Generators


@pytest.mark.parametrize("kind", ["pool", "eigen"])
def test_generators_repeat_themselves_and_move_farther_with_the_degree(pictures: Tensor, kind: str) -> None:
    features = feature_space("wavelets", as_floats(pictures), seed=0, device="cpu")
    pool = PoolGenerator(pictures, features, mixing=0.5, flip=False, device="cpu")
    generator = pool if kind == "pool" else EigenPool(pictures, flip=True)
    images = generator.random(torch.zeros(100), seed=1)
    assert images.shape == (100, 1, 16, 16)
    assert torch.equal(images, generator.random(torch.zeros(100), seed=1))
    near, far = (generator.vary(images[:80], degree, seed=2) for degree in (0.1, 1.0))
    assert torch.equal(near, generator.vary(images[:80], 0.1, seed=2))
    if kind == "pool":
        assert (near - images[:80]).abs().mean() < (far - images[:80]).abs().mean()


class Greys:
    """A generator of the user's own: grey images, and a little lighter or darker ones."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.height, self.width, self.channels = shape

    def random(self, labels: Tensor, seed: int) -> Tensor:
        levels = torch.rand(len(labels), 1, 1, 1, generator=torch.Generator().manual_seed(seed))
        return levels.expand(-1, self.channels, self.height, self.width)

    def vary(self, images: Tensor, degree: float, seed: int) -> Tensor:
        draw = torch.rand(len(images), 1, 1, 1, generator=torch.Generator().manual_seed(seed))
        return images + degree * (draw - 0.5)


def make_greys(shape: tuple[int, int, int], classes: int, seed: int) -> Greys:
    return Greys(shape)


def make_nothing(**offered: Any) -> object:
    return object()


def test_a_generator_of_ones_own(records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(generator=f"{__name__}:make_greys"), workspace=tmp_path / "run")
    assert (release.images == release.images[:, :1, :1]).all()
    assert any("was not compared" in warning for warning in release.certificate.warnings)


def test_what_is_no_generator_is_refused(records: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"make_nothing to return an object with random"):
        run(Vault(records), job(generator=f"{__name__}:make_nothing"), workspace=tmp_path / "run")


def test_images_of_a_wrong_shape_are_refused() -> None:
    wrong = Checked(Greys((8, 8, 1)), TOY, "greys")
    with pytest.raises(InputError, match="Expected 3 images of shape"):
        wrong.random(torch.zeros(3), seed=0)
    assert len(wrong.vary(torch.zeros(0, 1, 16, 16), 0.5, seed=0)) == 0


# Whole runs


def test_evolved_images_look_like_their_class(records: ImageSet, tmp_path: Path) -> None:
    """Strokes have few bright pixels, clouds have many."""
    release = run(Vault(records), job(candidates=30, pool=400), workspace=tmp_path / "run")
    assert release.soft_labels is not None
    np.testing.assert_array_equal(release.labels, np.arange(30) % 2)
    real = [records.images[records.labels == label].mean() for label in (0, 1)]
    made = [release.images[release.labels == label].mean() for label in (0, 1)]
    assert real[0] < real[1]
    assert made[0] < made[1]


def test_public_images_are_shown_and_a_warning_says_so(records: ImageSet, public: ImageSet, tmp_path: Path) -> None:
    plain = {"degree": 0.0, "last_degree": 0.0, "mixing": 0.0}
    release = run_with(records, job(**plain), public=public, workspace=tmp_path / "run")
    shown = {image.tobytes() for image in public.images}
    assert all(image.tobytes() in shown for image in release.images)
    assert any("public images, changed" in warning for warning in release.certificate.warnings)
    drawn = run_with(records, job(generator="drawn"), public=public, workspace=tmp_path / "drawn")
    assert not any("public images, changed" in warning for warning in drawn.certificate.warnings)


def test_without_public_images_public_is_refused(records: ImageSet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="public"):
        run(Vault(records), job(generator="public"), workspace=tmp_path / "run")


def test_few_votes_are_named(records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(threshold=1000.0), workspace=tmp_path / "run")
    assert any("votes than noise explains" in warning for warning in release.certificate.warnings)


def test_a_classifier_labels_what_is_stored(records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(teacher_share=0.5), workspace=tmp_path / "run")
    assert release.soft_labels is not None
    np.testing.assert_array_equal(release.soft_labels.argmax(axis=1), release.labels)


@pytest.mark.parametrize("settings", [{}, {"lookahead": 2, "votes": 2}])
def test_a_run_that_was_cut_off_ends_with_the_same_bytes(
    records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    whole = run(Vault(records), job(**settings), workspace=tmp_path / "whole")
    kept = []

    def keep(self: Spending, released: Tensor) -> Tensor:
        kept.append(real(self, released))
        if len(kept) == 2:
            raise KeyboardInterrupt
        return kept[-1]

    real = Spending.keep
    vault = Vault(records)
    with monkeypatch.context() as patch:
        patch.setattr(Spending, "keep", keep)
        with pytest.raises(KeyboardInterrupt):
            run(vault, job(**settings), workspace=tmp_path / "cut")
    resumed = run(vault, job(**settings), workspace=tmp_path / "cut", resume=True)
    assert np.array_equal(resumed.images, whole.images)
    assert np.array_equal(resumed.labels, whole.labels)


def test_another_shape_and_colour(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 20, 36, 3), dtype=np.uint8)
    release = run(Vault(ImageSet(images, np.arange(60) % 3)), job(), workspace=tmp_path / "run")
    assert release.images.shape == (30, 20, 36, 3)
    with pytest.raises(InputError, match="Expected square images"):
        run(Vault(ImageSet(images, np.arange(60) % 3)), job(generator="eigen"), workspace=tmp_path / "eigen")


def test_presets_run_in_small(records: ImageSet, tmp_path: Path) -> None:
    method = Evolve.configure("paper", dict(Evolve.smallest))
    assert method.settings.teacher_share == 0
    assert method.settings.kept == 0
    assert method.settings.votes == 1
    release = run(
        Vault(records),
        Job(method="evolve", preset="paper", settings=dict(Evolve.smallest), epsilon=4.0, samples=10),
        workspace=tmp_path / "run",
    )
    assert len(release.images) == 10


def test_the_space_follows_from_public_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(shape: tuple[int, int, int]) -> EvolvePlan:
        facts = PublicFacts(units=5000, unit="record", shape=shape, class_names=("a", "b"))
        return Evolve(EvolveSettings(teacher_share=0.0)).plan(facts, Budget(1.0, 1e-5))

    monkeypatch.setattr("veilset.teachers.planning.is_installed", lambda name: True)
    assert plan((32, 32, 3)).certified()["features"] == "pretrained"
    assert plan((32, 32, 3)).public_weights() == {"lite0": PUBLISHED["lite0"].sha256}
    assert plan((16, 16, 3)).space == "wavelets"
    assert plan((224, 224, 1)).space == "wavelets"
    monkeypatch.setattr("veilset.teachers.planning.is_installed", lambda name: False)
    assert plan((32, 32, 3)).space == "wavelets"
    assert plan((32, 32, 3)).public_weights() == {}


def test_the_control_has_random_candidates_alike_often(tmp_path: Path) -> None:
    """Other candidates, the same generator, classifier and variations, and no votes."""
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 1), dtype=np.uint8)
    vault = Vault(ImageSet(images, np.arange(40) % 2))
    plan = Evolve.configure("fast", Evolve.smallest).plan(vault.facts, Budget(10.0, 1e-3))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"run": "test"})
    session = Session(vault, plan, ledger, NoiseSource(), workspace=None)
    fitted = Evolve.fit(plan, session, None, Context())
    session.finish()
    ledger.close()
    assert isinstance(fitted, FittedEvolve)
    control = fitted.unvoted(seed=3)
    assert control.candidates.shape == fitted.candidates.shape
    assert not torch.equal(control.candidates, fitted.candidates)
    assert all(float(own.shares.std()) == 0 and not own.were_elected for own in control.survivors)
    assert (control.generator, control.teacher, control.degree) == (fitted.generator, fitted.teacher, fitted.degree)
    assert control.sample(10).images.shape == (10, 16, 16, 1)
