"""Data-free distillation: its plans, whole small runs of both variants, resuming, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.dfd.config import Dfd, DfdSettings
from veilset.methods.dfd.gradients import labels_by_gradient
from veilset.methods.shared.data_free import DataFreeTraining
from veilset.methods.shared.queries import Queries, odds_of_votes
from veilset.methods.shared.shard_teachers import fit_head, scores
from veilset.models import build_network
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.format import Release

FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
SMALL = {
    "warmup_steps": "3", "steps": "3", "settle_steps": "4", "batch": "16", "student_batch": "16", "bank": "48",
    "random_features": "64", "pictures": "60", "width": "16", "teacher_steps": "10", "teachers": "30",
}  # fmt: skip


@pytest.fixture
def records() -> ImageSet:
    """Two classes that a look tells apart: strokes, and clouds."""
    pictures = drawn_patterns(900, 16, 1, torch.Generator().manual_seed(3))
    kept = torch.cat([pictures[:300], pictures[600:]])
    images = (kept * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return ImageSet(images, np.repeat([0, 1], 300))


def job(variant: str = "B", **settings: str) -> Job:
    return Job(
        method="dfd", epsilon=10.0, samples=30, insecure_seed=0, settings={**SMALL, "variant": variant, **settings}
    )


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("variant", ["A", "B"])
def test_plan_spends_the_budget_and_no_more(variant: str, epsilon: float) -> None:
    plan = Dfd(DfdSettings(variant=variant)).plan(FACTS, Budget(epsilon, 1e-5))  # type: ignore[arg-type]
    assert 0.98 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon * (1 + 1e-9)


def test_without_statistics_a_has_one_event() -> None:
    plan = Dfd.configure("paper").plan(FACTS, Budget(1.0, 1e-5))
    assert [event.label for event in plan.events] == ["teacher"]


def test_more_epsilon_buys_more_queries_of_b() -> None:
    asked = []
    for epsilon in (0.5, 1.0, 10.0):
        facts = Dfd(DfdSettings(variant="B")).plan(FACTS, Budget(epsilon, 1e-5)).facts
        asked.append(facts["iterations that this budget buys"] * facts["synthetic images of an iteration"])  # type: ignore[operator]
    assert asked[0] < asked[1] < asked[2]
    assert asked[1] < 200 < 1000 < asked[2]


def test_what_the_rules_decide_is_certified() -> None:
    one = Dfd(DfdSettings()).plan(FACTS, Budget(1.0, 1e-5))
    assert one.teacher is not None
    assert one.certified()["teacher_steps"] == one.teacher.event.count
    many = Dfd(DfdSettings(variant="B")).plan(FACTS, Budget(1.0, 1e-5))
    assert many.rounds is not None
    assert many.certified()["teachers"] == many.rounds.teachers == 250
    assert len(many.gradients) == many.rounds.rounds


def test_b_is_one_event_for_each_iteration_of_the_whole_vault() -> None:
    plan = Dfd(DfdSettings(variant="B", rounds=3)).plan(FACTS, Budget(1.0, 1e-5))
    rounds = [event for event in plan.events if event.label == "gradients of the teachers"]
    assert len(rounds) == 3
    assert all((event.sampling_rate, event.partition, event.count) == (1.0, None, 1) for event in rounds)


def test_signs_are_votes_and_buy_twice_the_queries() -> None:
    """At even odds a teacher's largest entry names its class, so two answers are sqrt 2 apart for each query, not 2."""
    budget = Budget(1.0, 1e-5)
    gradient, signs = (Dfd(DfdSettings(variant="B", vote=vote)).plan(FACTS, budget) for vote in ("gradient", "signs"))
    assert gradient.rounds is not None
    assert signs.rounds is not None
    queries = [plan.rounds.rounds * plan.rounds.batch for plan in (gradient, signs)]
    assert queries[1] == pytest.approx(2 * queries[0], rel=0.05)
    assert [event.count for event in signs.gradients] == [signs.rounds.batch] * signs.rounds.rounds
    deviation = math.sqrt(2) * signs.gradients[0].noise_multiplier
    assert 250 / deviation == pytest.approx(4.0, rel=0.05)  # `signal`, against a unanimous vote
    for plan in (gradient, signs):
        assert 0.99 < epsilon_of(plan.events, 1e-5) <= 1.0 + 1e-9


def test_odds_of_votes_are_as_sure_as_they_are_right() -> None:
    coins = torch.Generator().manual_seed(0)
    event = Event(label="votes", noise_multiplier=100.0, count=4000)
    truth = torch.randint(10, (4000,), generator=coins)
    exact = 200.0 * torch.nn.functional.one_hot(truth, 10)
    counts = exact + math.sqrt(2) * 100 * torch.randn(exact.shape, generator=coins)
    odds = odds_of_votes(counts, event)
    assert (odds.argmax(dim=1) == counts.argmax(dim=1)).all()
    right = float((odds.argmax(dim=1) == truth).double().mean())
    # A share of 4,000 draws has a standard error below 0.008.
    assert float(odds.amax(dim=1).mean()) == pytest.approx(right, abs=0.03)
    assert 0.3 < right < 0.7


@pytest.mark.parametrize("vote", ["gradient", "signs"])
def test_whole_run_of_b(vote: str, records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(vote=vote), workspace=tmp_path / "run")
    assert release.soft_labels is not None
    np.testing.assert_array_equal(release.soft_labels.argmax(axis=1), release.labels)
    weights, description = release.models["student"]
    assert description["name"] == "convnet"
    build_network("convnet", shape=(16, 16, 1), classes=2).load_state_dict(dict(weights))
    weights, description = release.models["generator"]
    ConditionalGenerator(16, 1, 2, description["latent_size"], description["width"]).load_state_dict(dict(weights))


@pytest.mark.parametrize("variant", ["A", "B"])
def test_a_run_goes_on_where_it_stopped(
    variant: str, records: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes as without a stop: what was paid for is taken up, the rest is deterministic."""
    monkeypatch.setattr("veilset.methods.shared.data_free._CHECKPOINT_EVERY", 1)
    straight = run(Vault(records), job(variant), workspace=tmp_path / "straight")
    advance = DataFreeTraining.advance

    def stop(training: DataFreeTraining) -> None:
        if training.step == 5:
            raise KeyboardInterrupt
        advance(training)

    monkeypatch.setattr(DataFreeTraining, "advance", stop)
    with pytest.raises(KeyboardInterrupt):
        run(Vault(records), job(variant), workspace=tmp_path / "stopped")
    monkeypatch.setattr(DataFreeTraining, "advance", advance)
    resumed = run(Vault(records), job(variant), workspace=tmp_path / "stopped", resume=True)
    _assert_same(straight, resumed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "C"}, "variant to be one of A, B"),
        ({"teachers": 1}, "teachers to be auto or a whole number of at least 2"),
        ({"rounds": 0}, "rounds to be a whole number of at least 1"),
        ({"statistics_share": 0.0}, "nothing to match"),
        ({"statistics_share": 1.0}, "statistics_share to be a number of at least 0 and below 1"),
        ({"variant": "B", "statistics_share": 0.0, "statistics_weight": 0.0, "warmup_steps": 0}, "variant B"),
        ({"bank": 10}, "bank >= batch"),
        ({"bank": 0}, "settle_steps=0"),
        ({"student_loss": "mean"}, "one of distance, cross_entropy"),
        ({"one_hot_weight": -1.0}, "one_hot_weight to be a number of at least 0"),
        ({"bounding": "cut"}, "one of clip, normalise"),
        ({"off_distribution": 1.5}, "off_distribution to be a number of at least 0 and of at most 1"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DfdSettings(**settings)


def test_too_few_records_for_the_teachers() -> None:
    few = PublicFacts(units=60, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    with pytest.raises(InputError, match="Expected 2 to 12 teachers for 60 records"):
        Dfd(DfdSettings(variant="B", teachers=20)).plan(few, Budget(1.0, 1e-3))


def test_a_shard_without_a_class_still_gives_a_teacher() -> None:
    codes = torch.nn.functional.normalize(torch.randn(20, 4), dim=1)
    head = fit_head(codes, torch.nn.functional.one_hot(torch.zeros(20, dtype=torch.int64), 3))
    assert scores(head, codes).shape == (20, 3)
    assert (scores(head, codes).argmax(dim=1) == 0).all()


def test_labels_are_found_in_a_sum_of_normalised_gradients() -> None:
    coins = torch.Generator().manual_seed(0)
    odds = torch.randn(40, 5, generator=coins).softmax(dim=1).double()
    wanted = torch.randint(5, (40,), generator=coins)
    matrix = odds - torch.nn.functional.one_hot(wanted, 5)
    assert (labels_by_gradient(50 * matrix / matrix.norm(), odds, teachers=50) == wanted).all()


def test_answers_outvote_what_images_were_made_for_once_there_are_enough() -> None:
    coins = torch.Generator().manual_seed(0)
    kind = torch.arange(300) % 3
    codes = torch.nn.functional.normalize(torch.eye(4)[kind] + 0.1 * torch.randn(300, 4, generator=coins), dim=1)
    pool = Queries(codes=codes, asked_for=kind, known=codes)
    answer = (kind + 1) % 3
    odds = torch.nn.functional.one_hot(answer, 3).float()

    def share(answers: int, wanted: torch.Tensor) -> float:
        rows = torch.arange(answers) % 300
        head = pool.head(codes[rows], odds[rows])
        return float((scores(head, codes).argmax(dim=1) == wanted).double().mean())

    assert share(0, kind) == 1
    assert share(30, kind) > 0.9
    assert share(900, answer) > 0.9
    alone = Queries(codes=codes).head(codes[:30], odds[:30])
    assert (scores(alone, codes).argmax(dim=1) == answer).all()


def _assert_same(first: Release, second: Release) -> None:
    np.testing.assert_array_equal(first.images, second.images)
    for name, (weights, _) in first.models.items():
        for key, value in weights.items():
            torch.testing.assert_close(value, second.models[name][0][key])


def test_a_network_as_the_teacher(records: ImageSet, tmp_path: Path) -> None:
    """A's teacher may be any network, by DP-SGD with steps of one's own."""
    asked = {"teacher": "network", "network": "lenet", "teacher_batch": "64", "teacher_clip_norm": "0.5"}
    settings = DfdSettings(teacher="network", network="lenet", teacher_batch=64, teacher_clip_norm=0.5)
    plan = Dfd(settings).plan(FACTS, Budget(1.0, 1e-5))
    assert plan.teacher is not None
    assert (plan.teacher.recipe.kind, plan.teacher.recipe.clip_norm) == ("network", 0.5)
    event = plan.teacher.event  # with bands a step samples from one group of the units, at a rate as much higher
    assert event.sampling_rate / event.bands == pytest.approx(64 / FACTS.units, rel=0.01)
    assert epsilon_of(plan.events, 1e-5) <= 1.0
    release = run(Vault(records), job("A", **asked), workspace=tmp_path / "run")
    assert len(release.images) == 30
    with pytest.raises(InputError, match="pretrained"):
        DfdSettings(teacher="pretrained")


def test_normalised_clipping_of_the_teacher_costs_the_same(records: ImageSet, tmp_path: Path) -> None:
    plans = [
        Dfd(DfdSettings(teacher_clipping=clipping)).plan(FACTS, Budget(1.0, 1e-5))  # type: ignore[arg-type]
        for clipping in ("flat", "automatic")
    ]
    assert plans[0].events == plans[1].events
    made = [
        run(Vault(records), job("A", teacher_clipping=clipping), workspace=tmp_path / clipping)
        for clipping in ("flat", "automatic")
    ]
    assert made[1].certificate.settings["teacher_clipping"] == "automatic"
    assert not np.array_equal(made[0].soft_labels, made[1].soft_labels)


def test_the_papers_form_has_no_statistics_no_bank_and_its_own_losses(records: ImageSet, tmp_path: Path) -> None:
    method = Dfd.configure("paper")
    settings = method.settings
    assert (settings.student_weight, settings.one_hot_weight, settings.balance_weight, settings.activation_weight) == (
        1,
    ) * 4
    assert (settings.student_loss, settings.bounding, settings.bank, settings.settle_steps) == (
        "cross_entropy",
        "normalise",
        0,
        0,
    )
    assert not settings.statistics_share
    small = {
        "steps": "3",
        "batch": "16",
        "student_batch": "16",
        "width": "16",
        "teacher_steps": "3",
        "network": "lenet",
    }
    asked = Job(method="dfd", epsilon=8.0, samples=20, insecure_seed=0, preset="paper", settings=small)
    release = run(Vault(records), asked, workspace=tmp_path / "run")
    assert [event["label"] for event in release.certificate.header["plan"]] == ["teacher"]
    assert len(release.images) == 20
