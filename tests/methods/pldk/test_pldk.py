"""pldk: one budget for experts and teacher, starts that are not private, and the form that has no guarantee."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import BudgetError, InputError, VerificationError
from veilset.data.images import ImageSet
from veilset.methods.base import Context
from veilset.methods.pldk.config import Pldk, PldkSettings
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.account import Account
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Ledger, check_chain
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.format import load_release
from veilset.release.inputs import InputRelease, budget_with, open_input
from veilset.release.verify import verify_release

TINY = {
    "expert_steps": "6", "expert_every": "2", "width": "4", "images_per_class": "3", "iterations": "2",
    "student_steps": "2", "student_updates": "2", "copies": "12", "networks": "3", "moves": "1",
}  # fmt: skip
FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))


def records(count: int = 200) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count) % 2)


def make(tmp_path: Path, name: str = "run", public: ImageSet | None = None, **options: Any) -> Any:
    settings = TINY | options.pop("settings", {})
    account = options.pop("account", None)
    job = Job(method="pldk", delta=1e-5, preset="fast", settings=settings, **{"epsilon": 8.0, **options})
    return run_with(records(), job, workspace=tmp_path / name, public=public, account=account)


@pytest.mark.parametrize("experts", [1, 3])
def test_experts_and_teacher_share_one_budget(experts: int) -> None:
    plan = Pldk(PldkSettings(matching="trajectory", experts=experts)).plan(FACTS, Budget(10.0, 1e-5))
    assert [event.label for event in plan.events] == ["teacher", *(f"expert {k + 1}" for k in range(experts))]
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0


def test_a_release_holds_the_distilled_images_and_a_student(tmp_path: Path) -> None:
    release = make(tmp_path, settings={"matching": "trajectory", "experts": "2"})
    release.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").ok
    assert release.images.shape == (6, 16, 16, 1)
    assert np.bincount(release.labels).tolist() == [3, 3]
    assert release.soft_labels is not None
    assert release.models["student"][1]["name"] == "convnet"
    logits = release.model("student")(torch.rand(4, 1, 16, 16))
    assert logits.shape == (4, 2)


def started_from(tmp_path: Path, place: Path, name: str = "again", epsilon: float = 8.0, **more: Any) -> Any:
    settings = {"start": "release", "release": str(place)} | more.pop("settings", {})
    return make(tmp_path, name, epsilon=epsilon, settings=settings, **more)


def test_a_release_that_is_the_start_brings_its_events(tmp_path: Path) -> None:
    first = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    second = started_from(tmp_path, first)
    certificate = second.certificate
    assert verify_release(second.save(tmp_path / "second")).ok
    assert certificate.settings["release"] == "first"
    assert len(certificate.settings["release_sha256"]) == 64
    assert certificate.header["inputs"][0]["certificate_sha256"] == certificate.settings["release_sha256"]
    # What the first one cost stands before anything that was read, and all of it together fits the budget.
    carried = [line for line in certificate.ledger if line["kind"] == "carried"]
    assert [line["sequence"] for line in carried] == [1, 2]
    events = check_chain(certificate.ledger)
    own = [event for event in events if event.source is None]
    alone = epsilon_of(check_chain(load_release(first).certificate.ledger), 1e-5)
    assert 1.9 < alone <= 2.0
    assert epsilon_of(own, 1e-5) < 7.7
    assert 7.9 < certificate.epsilon == epsilon_of(events, 1e-5) <= 8.0
    assert any("What that release cost is part of this guarantee" in warning for warning in certificate.warnings)


def test_a_release_of_a_release_of_a_release_brings_all_events(tmp_path: Path) -> None:
    first = make(tmp_path, epsilon=1.0).save(tmp_path / "first")
    second = started_from(tmp_path, first, "b", epsilon=2.0).save(tmp_path / "second")
    third = started_from(tmp_path, second, "c", epsilon=3.0)
    events = check_chain(third.certificate.ledger)
    assert len(events) == 6
    assert len({event.source for event in events}) == 3
    assert verify_release(third.save(tmp_path / "third")).ok


@pytest.mark.parametrize("reason", [{"as_published": True}, {"insecure_seed": 3}])
@pytest.mark.parametrize("others", ["true", "false"])
def test_a_release_without_a_guarantee_does_not_enter_a_run_that_claims_one(
    tmp_path: Path, reason: dict[str, Any], others: str
) -> None:
    """The laundering attack: private images in, `dp, epsilon 0.1` out."""
    place = make(tmp_path, **reason).save(tmp_path / "first")
    account = Account(tmp_path / "account.sqlite")
    with pytest.raises(VerificationError, match="has no privacy guarantee"):
        started_from(tmp_path, place, epsilon=0.1, settings={"release_is_of_others": others}, account=account)
    assert account.reservations == []
    assert not (tmp_path / "again").exists()
    # A run that claims nothing may use it.
    assert started_from(tmp_path, place, insecure_seed=1).certificate.guarantee == "none"


def test_a_start_that_costs_more_than_the_budget_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    place = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    account = Account(tmp_path / "account.sqlite")
    with pytest.raises(BudgetError, match="cost epsilon 2 already, and the budget is 1"):
        started_from(tmp_path, place, epsilon=1.0, account=account)
    assert account.reservations == []


def test_an_account_pays_once_for_a_release_that_it_paid_for(tmp_path: Path) -> None:
    own, other = Account(tmp_path / "own.sqlite"), Account(tmp_path / "other.sqlite")
    place = make(tmp_path, epsilon=2.0, account=own).save(tmp_path / "first")
    for number, account in enumerate((own, other)):
        release = started_from(tmp_path, place, f"again {number}", account=account)
        assert 7.9 < release.certificate.epsilon <= 8.0
    first, second = own.reservations
    assert [event.source for event in second.events] == [None, None]
    assert epsilon_of([*first.events, *second.events], 1e-5) <= 8.0
    # An account that does not know the first run pays for it, too.
    assert len(other.reservations[0].events) == 4


def test_a_release_of_other_people_costs_these_nothing_and_the_certificate_says_who_said_so(tmp_path: Path) -> None:
    place = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    release = started_from(tmp_path, place, epsilon=1.0, settings={"release_is_of_others": "true"})
    assert all(event.source is None for event in check_chain(release.certificate.ledger))
    statement = "The publisher declares that it is of other people"
    assert any(statement in warning for warning in release.certificate.warnings)
    assert statement in (release.save(tmp_path / "second") / "card.md").read_text()
    assert release.certificate.header["inputs"][0]["is_of_others"] is True


def test_a_release_for_records_does_not_enter_a_run_for_groups(tmp_path: Path) -> None:
    place = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    held = records()
    vault = Vault(ImageSet(held.read(np.arange(200)), held.labels, groups=np.arange(200) // 2), unit="group")
    job = Job(method="pldk", epsilon=8.0, delta=1e-5, settings=TINY | {"start": "release", "release": str(place)})
    with pytest.raises(InputError, match="protects each record, this run each group"):
        run(vault, job, workspace=tmp_path / "again")


def test_a_start_that_was_altered_or_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no release at"):
        started_from(tmp_path, tmp_path / "missing")
    place = make(tmp_path).save(tmp_path / "first")
    with (place / "card.md").open("a") as card:
        card.write("x")
    with pytest.raises(VerificationError, match="does not verify"):
        started_from(tmp_path, place)
    with pytest.raises(InputError, match="Leave it out"):
        make(tmp_path, settings={"release_is_of_others": "true"})


def test_a_session_whose_plan_leaves_the_start_out_is_refused(tmp_path: Path) -> None:
    place = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    method = Pldk.configure("fast", TINY | {"start": "release", "release": str(place)})
    vault = Vault(records())
    plan = method.plan(vault.facts, Budget(8.0, 1e-5))
    ledger = Ledger.create(tmp_path / "own.jsonl", {"run": "own"})
    with pytest.raises(BudgetError, match="is not in the plan"):
        method.fit(plan, Session(vault, plan, ledger, NoiseSource(None)), None, Context())


def test_what_was_verified_is_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release is opened once, and one that was exchanged after that is refused before anything is read."""
    place = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    other = make(tmp_path, "other", epsilon=2.0, seed=1).save(tmp_path / "second")
    opened = []

    def counted(path: Path, **options: bool) -> InputRelease:
        opened.append(path)
        return open_input(path, **options)

    monkeypatch.setattr("veilset.methods.pldk.config.open_input", counted)
    method = Pldk.configure("fast", TINY | {"start": "release", "release": str(place)})
    vault = Vault(records())
    budget = budget_with(Budget(8.0, 1e-5), method.inputs(), "record", claims_dp=True)
    plan = method.plan(vault.facts, budget)
    plan = replace(plan, events=(*plan.events, *budget.carried))
    assert plan.certified()["release_sha256"] == method.inputs()[0].certificate_sha256
    assert opened == [place]
    place.rename(tmp_path / "away")
    other.rename(place)
    ledger = Ledger.create(tmp_path / "own.jsonl", {"run": "own"})
    with pytest.raises(VerificationError, match="not the release that was verified"):
        method.fit(plan, Session(vault, plan, ledger, NoiseSource(None)), None, Context())
    assert len(ledger.lines) == 1


def test_public_images_can_be_the_start(tmp_path: Path) -> None:
    release = make(tmp_path, public=ImageSet(255 - records().read(np.arange(200)), records().labels))
    assert release.certificate.guarantee == "dp"


def test_as_published_has_no_guarantee(tmp_path: Path) -> None:
    release = make(tmp_path, as_published=True)
    assert release.certificate.guarantee == "none"
    assert "without noise" in release.certificate.reasons[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experts": "0"}, "experts to be a whole number of at least 1"),
        ({"start": "release"}, "Expected a folder for release beside"),
        ({"pretraining": "true"}, "Expected a folder for release beside"),
        ({"release": "somewhere"}, "Expected a folder for release beside"),
        ({"start": "condensed"}, "start=condensed is for matching=trajectory"),
        ({"teacher": "pretrained"}, "teacher=auto, head or network"),
        ({"alpha": "2"}, "alpha"),
        ({"images_per_class": "0"}, "images_per_class to be a whole number of at least 1"),
        ({"start": "real"}, "stay private"),
        ({"matching": "loss"}, "one of auto, trajectory"),
        ({"networks": "0"}, "networks to be a whole number of at least 1"),
        ({"student_steps": "0"}, "student_steps to be a whole number of at least 1"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pldk.configure("default", settings)


@pytest.mark.parametrize("matching", ["distribution", "gradient"])
def test_condensation_and_teacher_share_one_budget(matching: Any) -> None:
    plan = Pldk(PldkSettings(matching=matching)).plan(FACTS, Budget(10.0, 1e-5))
    assert [(event.label, event.count) for event in plan.events][1:] == [("condensation", PldkSettings().networks)]
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0


def test_a_sum_over_all_units_has_the_least_noise_for_each() -> None:
    """Sums over samples at the same cost: 2.47 times as much at epsilon 10, with 40 networks."""
    noise = []
    for batch in (4096, "auto"):
        settings = PldkSettings(matching="distribution", network_batch=batch, networks=40)  # type: ignore[arg-type]
        event = Pldk(settings).plan(FACTS, Budget(10.0, 1e-5)).condensation
        assert event is not None
        noise.append(event.noise_multiplier / event.sampling_rate)
    assert noise[0] / noise[1] == pytest.approx(2.47, abs=0.02)


def test_there_may_be_many_experts_and_a_teacher_of_another_kind(tmp_path: Path) -> None:
    settings = {"matching": "trajectory", "experts": "5", "teacher": "network", "teacher_network": "lenet"}
    plan = Pldk.configure("default", settings).plan(FACTS, Budget(10.0, 1e-5))
    assert len(plan.experts) == 5
    assert plan.teacher is not None
    assert (plan.teacher.recipe.kind, plan.teacher.recipe.network) == ("network", "lenet")
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0
    release = make(tmp_path, settings={**settings, "student": "lenet"}, as_published=True)
    assert release.models["student"][1]["name"] == "lenet"
    assert release.model("student")(torch.rand(4, 1, 16, 16)).shape == (4, 2)


def test_class_means_may_lead_before_trajectories_do(tmp_path: Path) -> None:
    settings = {"matching": "trajectory", "start": "condensed", "experts": "2"}
    plan = Pldk.configure("default", settings).plan(FACTS, Budget(10.0, 1e-5))
    assert [event.label for event in plan.events] == ["teacher", "condensation", "expert 1", "expert 2"]
    assert plan.condensation is not None
    assert plan.condensation.sampling_rate == 1.0
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0
    release = make(tmp_path, settings=settings)
    assert release.certificate.guarantee == "dp"
    assert release.images.shape == (6, 16, 16, 1)


def test_without_iterations_images_stay_as_they_started(tmp_path: Path) -> None:
    """The control of trajectory matching: its own start."""
    still = make(tmp_path, "still", settings={"matching": "trajectory", "iterations": "0"}, insecure_seed=0)
    moved = make(tmp_path, "moved", settings={"matching": "trajectory"}, insecure_seed=0)
    assert np.abs(still.images.astype(int) - moved.images).max() > 0
    # Start and end go through the logits of pixels, which keep off black and white.
    assert still.images.min() >= 5
    assert still.images.max() <= 250


def test_a_student_may_learn_from_another_release_first(tmp_path: Path) -> None:
    first = make(tmp_path, epsilon=2.0).save(tmp_path / "first")
    settings = {"pretraining": "true", "release": str(first)}
    second = make(tmp_path, "second", settings=settings)
    assert any(line["kind"] == "carried" for line in second.certificate.ledger)
    assert 7.9 < second.certificate.epsilon <= 8.0
    assert any("What that release cost is part of this guarantee" in text for text in second.certificate.warnings)


def test_the_thesis_form_runs_whole(tmp_path: Path) -> None:
    """Preset paper in small: experts, trajectories, a whole network as the teacher."""
    assert Pldk.configure("paper").settings.matching == "trajectory"
    small = {**TINY, "experts": "2", "expert_points": "1", "teacher_network": "lenet"}
    job = Job(method="pldk", epsilon=8.0, delta=1e-5, preset="paper", settings=small)
    release = run(Vault(records()), job, workspace=tmp_path / "run")
    assert [event["label"] for event in release.certificate.header["plan"]] == ["teacher", "expert 1", "expert 2"]


def test_a_rule_chooses_what_images_are_led_by() -> None:
    small = PublicFacts(units=200, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    for as_published, lead in ((False, "distribution"), (True, "trajectory")):
        plan = Pldk(as_published=as_published).plan(small, Budget(8.0, 1e-5))
        assert plan.matching == plan.certified()["matching"] == lead
        assert plan.settings.matching == "auto"


def test_images_can_be_condensed(tmp_path: Path) -> None:
    release = make(tmp_path, settings={"matching": "gradient"})
    assert release.certificate.guarantee == "dp"
    assert release.images.shape == (6, 16, 16, 1)


def test_of_real_images_only_the_student_leaves(tmp_path: Path) -> None:
    settings = {"start": "real", "matching": "distribution", "condensing_rate": "1e-6"}
    release = make(tmp_path, as_published=True, settings=settings)
    assert release.certificate.guarantee == "none"
    assert any("stayed behind" in warning for warning in release.certificate.warnings)
    private = records().read(np.arange(200)).reshape(200, -1).astype(float)
    # At this rate the distilled images are the private ones, to a few grey levels; drawn patterns are far from all.
    nearest = [np.abs(private - image).mean(axis=1).min() for image in release.images.reshape(6, -1).astype(float)]
    assert min(nearest) > 30
