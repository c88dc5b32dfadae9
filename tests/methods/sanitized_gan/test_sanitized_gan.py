"""sanitized_gan: what one record can move, what resumes, what is refused, and the form that has no guarantee."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.base import Context
from veilset.methods.sanitized_gan.config import SanitizedGan
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.verify import verify_release

SMALL = {
    "steps": "6", "points": "4", "critics": "3", "warmup": "2", "critic_updates": "1", "critic_batch": "4",
    "pictures": "40", "code_size": "8", "width": "16", "latent_size": "8",
}  # fmt: skip
FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))


def records(count: int = 60) -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 1), dtype=np.uint8)
    return ImageSet(pixels, np.arange(count) % 2)


def job(**settings: str) -> Job:
    return Job(method="sanitized_gan", epsilon=8.0, delta=1e-5, settings=SMALL | settings, samples=20)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheme": "in_turn"},
        {"teacher_share": "0.3"},
        {"teacher_share": "0.3", "scheme": "in_turn"},
        {"critic": "image"},
        {"latent": "bernoulli"},
        {"generator": "smooth", "image_noise": "0.3", "least_difference": "0.3"},
        {"hidden": "8"},
    ],
    ids=lambda settings: "-".join(settings.values()) or "default",
)
def test_every_form_makes_a_release_that_verifies(settings: dict[str, str], tmp_path: Path) -> None:
    release = run(Vault(records()), job(**settings), workspace=tmp_path / "run")
    release.save(tmp_path / "release")
    found = verify_release(tmp_path / "release")
    assert found.ok, found.problems
    assert found.epsilon == pytest.approx(8.0, abs=0.01)
    assert release.images.shape == (20, 16, 16, 1)
    seen = set(release.labels.tolist())  # a classifier labels what it sees, and that may be one class
    assert seen == {0, 1} or ("teacher_share" in settings and seen < {0, 1})


def test_the_classifier_holds_the_classes_apart_unless_it_has_no_weight(tmp_path: Path) -> None:
    images = []
    for weight in ("0", "5"):
        seeded = replace(job(teacher_share="0.3", teacher_weight=weight), insecure_seed=0)
        images.append(run(Vault(records()), seeded, workspace=tmp_path / weight).images)
    assert not np.array_equal(*images)


@pytest.mark.parametrize(("scheme", "drowned"), [("in_turn", True), ("together", False)])
def test_an_answer_that_drowns_in_noise_is_told(scheme: str, drowned: bool, tmp_path: Path) -> None:
    made = run(Vault(records()), job(scheme=scheme, critics="12"), workspace=tmp_path / "run")
    assert any("times the answers" in warning for warning in made.certificate.warnings) == drowned


def test_in_turn_is_noisier_by_the_root_of_the_number_of_critics() -> None:
    plan = SanitizedGan.configure("default", {"critics": "25", "steps": "100"}).plan(FACTS, Budget(10.0, 1e-5))
    together, in_turn = (float(plan.facts[name]) for name in plan.facts if name.startswith("noise"))
    assert in_turn / together == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize("scheme", ["together", "in_turn"])
def test_the_plan_spends_the_budget_and_no_more(scheme: str) -> None:
    plan = SanitizedGan.configure("default", {"scheme": scheme, "critics": "20"}).plan(FACTS, Budget(3.0, 1e-5))
    assert 2.97 < epsilon_of(plan.events, 1e-5) <= 3.0
    assert len(plan.events) == (1 if scheme == "together" else 20)


def test_the_generator_hears_of_the_records_through_noisy_sums_alone(tmp_path: Path) -> None:
    """Other records, the same noised sums: the same images."""
    released = []
    for data in (records(), ImageSet(255 - records().read(np.arange(60)), records().labels)):
        method = SanitizedGan.configure("default", SMALL)
        session = _Scripted(Vault(data).facts)
        plan = method.plan(session.facts, Budget(8.0, 1e-5))
        released.append(method.fit(plan, session, None, Context()).sample(10).images)  # type: ignore[arg-type]
    assert np.array_equal(released[0], released[1])


class _Scripted:
    """A session whose critics give the same sums whatever the records are."""

    def __init__(self, facts: PublicFacts) -> None:
        self.facts = facts

    def critics(self, critic: Any, features: Any, events: Any, *, shape: tuple[int, ...], **_: Any) -> Any:
        import torch

        class Critics:
            together, keeps_now, total = True, False, 6

            def __init__(self) -> None:
                self.steps_left = self.total

            def kept(self) -> None:
                pass

            def step(self, query: Any) -> torch.Tensor:
                self.steps_left -= 1
                return torch.ones(shape)

        return Critics()


def test_a_run_that_was_cut_off_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilset.privacy.mechanisms.shard_critics import Critics

    monkeypatch.setattr("veilset.methods.sanitized_gan.method._CHECKPOINT_EVERY", 2)
    step, calls = Critics.step, []

    def cut_off(self: Critics, query: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(self, query)

    monkeypatch.setattr(Critics, "step", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run(Vault(records()), job(), workspace=tmp_path / "run")
    calls.extend([1] * 100)
    release = run(Vault(records()), job(), workspace=tmp_path / "run", resume=True)
    leased = [line for line in release.certificate.ledger if line["kind"] == "lease"]
    assert len(leased) == 6
    assert release.certificate.epsilon == pytest.approx(8.0, abs=0.01)


THESIS = {"critic": "image", "generator": "dcgan", "points": 32, "clip_norm": 1.0}
QUICK = {"steps": "2", "width": "16", "warmup": "1", "critic_updates": "1", "critic_batch": "4"}


def test_the_preset_paper_is_the_thesis_form_under_our_account(tmp_path: Path) -> None:
    settings = {**QUICK, "critics": "3"}
    wanted = Job(method="sanitized_gan", preset="paper", epsilon=8.0, delta=1e-5, settings=settings, samples=10)
    release = run(Vault(records()), wanted, workspace=tmp_path / "run")
    assert release.certificate.guarantee == "dp"
    assert {name: release.certificate.settings[name] for name in THESIS} == THESIS
    assert release.certificate.epsilon == pytest.approx(8.0, abs=0.01)


def test_as_published_is_the_thesis_form_and_has_no_guarantee(tmp_path: Path) -> None:
    """The flag alone sets critic, generator, points and steps."""
    assert SanitizedGan.configure(as_published=True).settings.steps == 2000
    wanted = Job(method="sanitized_gan", epsilon=8.0, delta=1e-5, settings=QUICK, samples=10, as_published=True)
    release = run(Vault(records()), wanted, workspace=tmp_path / "run")
    assert {name: release.certificate.settings[name] for name in THESIS} == THESIS
    assert release.certificate.guarantee == "none"
    assert release.certificate.epsilon is None
    assert "one critic" in release.certificate.reasons[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critics": "1"}, "critics to be auto or a whole number of at least 2"),
        ({"steps": "0"}, "steps to be a whole number of at least 1"),
        ({"clip_norm": "0"}, "clip_norm to be a number of at least"),
        ({"code_size": "4000"}, "code_size < pictures"),
        ({"ema_decay": "1"}, "ema_decay"),
        ({"scheme": "both"}, "one of together, in_turn"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SanitizedGan.configure("default", settings)


def test_too_many_critics_for_the_records() -> None:
    with pytest.raises(InputError, match="at least 5"):
        SanitizedGan.configure("default", {"critics": "13000"}).plan(FACTS, Budget(1.0, 1e-5))
