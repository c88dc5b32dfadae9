"""pldk: one budget for experts and teacher, starts that are not private, and the form that has no guarantee."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_with

from veilset.core.errors import InputError
from veilset.data.images import ImageSet
from veilset.methods.pldk import Pldk, PldkConfig
from veilset.pipeline.synthesize import Job
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
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
    job = Job(method="pldk", epsilon=8.0, delta=1e-5, preset="fast", settings=settings, **options)
    return run_with(records(), job, workspace=tmp_path / name, public=public)


@pytest.mark.parametrize("experts", [1, 3])
def test_experts_and_teacher_share_one_budget(experts: int) -> None:
    plan = Pldk(PldkConfig(matching="trajectory", experts=experts)).plan(FACTS, Budget(10.0, 1e-5))
    assert [event.label for event in plan.events] == ["teacher", *(f"expert {k + 1}" for k in range(experts))]
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0


def test_a_release_holds_the_distilled_images_and_a_student(tmp_path: Path) -> None:
    release = make(tmp_path, settings={"matching": "trajectory", "experts": "2"})
    release.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").ok
    assert release.images.shape == (6, 16, 16, 1)
    assert np.bincount(release.labels).tolist() == [3, 3]
    assert release.soft_labels is not None
    from veilset.evaluate.attacks.targets import rebuild_student

    weights, description = release.models["student"]
    assert rebuild_student(description, weights)[0] == "convnet"


def test_another_release_can_be_the_start(tmp_path: Path) -> None:
    first = make(tmp_path)
    first.save(tmp_path / "first")
    second = make(tmp_path, "again", settings={"start": "release", "release": str(tmp_path / "first")})
    assert any("start from another release" in warning for warning in second.certificate.warnings)
    assert second.certificate.settings["release"] == "first"
    assert len(second.certificate.settings["release_sha256"]) == 64
    with pytest.raises(InputError, match="no release at"):
        make(tmp_path, "nowhere", settings={"start": "release", "release": str(tmp_path / "missing")})


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
        ({"experts": "4"}, "1 to 3 experts"),
        ({"start": "release"}, "folder for release alone"),
        ({"release": "somewhere"}, "folder for release alone"),
        ({"alpha": "2"}, "alpha"),
        ({"images_per_class": "0"}, "images_per_class >= 1"),
        ({"start": "real"}, "stay private"),
        ({"matching": "loss"}, "one of auto, trajectory"),
        ({"networks": "0"}, "networks >= 1"),
        ({"student_steps": "0"}, "student_steps >= 1"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pldk.configure("default", settings)


@pytest.mark.parametrize("matching", ["distribution", "gradient"])
def test_condensation_and_teacher_share_one_budget(matching: Any) -> None:
    plan = Pldk(PldkConfig(matching=matching)).plan(FACTS, Budget(10.0, 1e-5))
    assert [(event.label, event.count) for event in plan.events][1:] == [("condensation", PldkConfig().networks)]
    assert 9.9 < epsilon_of(plan.events, 1e-5) <= 10.0


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
