"""Several findings per image from a vault to a scored release, and what refuses them."""

import json
from pathlib import Path

import numpy as np
import pytest
from running import run_with

import veilset as vs
from veilset.core.errors import InputError, VerificationError
from veilset.data.archives.reading import Reading
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.methods import METHODS
from veilset.pipeline.evaluate import Evaluation, evaluate
from veilset.pipeline.job import Job, draw_plan
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.export import export_release
from veilset.release.format import load_release
from veilset.release.verify import verify_release
from veilset.report.page import write_report

NAMES = ("A", "B", "C")


def records(count: int = 600, seed: int = 0) -> ImageSet:
    """A shows as a bright upper half, B as a bright left half, C not at all."""
    coins = np.random.default_rng(seed)
    matrix = coins.integers(0, 2, (count, 3))
    images = coins.integers(0, 60, (count, 16, 16, 1))
    images[:, :8] += 90 * matrix[:, 0, None, None, None]
    images[:, :, :8] += 90 * matrix[:, 1, None, None, None]
    return ImageSet(images.astype(np.uint8), matrix, NAMES)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("findings") / "release"
    made = vs.synthesize(
        Vault(records()), method="imgsyn", budget=vs.Budget(20.0, 1e-4), preset="smoke", samples=300, insecure_seed=1
    )
    made.save(place)
    return place


def test_a_release_of_findings(release: Path) -> None:
    assert verify_release(release).ok
    loaded = load_release(release)
    assert loaded.certificate.declared_public["findings"] is True
    assert loaded.labels.shape == loaded.soft_labels.shape == (300, 3)
    assert np.array_equal(loaded.labels, loaded.soft_labels >= 0.5)
    assert np.load(release / "data.npz")["labels"].dtype == np.uint8
    assert open_images(release, labels="labels").class_names == ("A", "B", "C")  # as train.parquet has them
    assert "3 findings (A, B, C)" in (release / "card.md").read_text()
    events = [event.label for event in draw_plan(Job(method="imgsyn", epsilon=1.0), Vault(records()).facts).events]
    assert events == ["count", "teacher", "statistics"]


@pytest.mark.slow
def test_its_scores(release: Path) -> None:
    wanted = Evaluation(epochs=3, wants_references=True, wants_controls=True)
    result = evaluate(release, wanted, test=records(400, 7), train=records())
    auc = {one["name"]: one["auc"] for one in result["per_finding"]}
    teacher = next(mark for mark in result["reference_scores"] if mark["name"] == "teacher")
    seen = {one["name"]: one["auc"] for one in teacher["per_finding"]}
    assert min(seen["A"], seen["B"]) > 0.9 > 0.65 > seen["C"]
    assert abs(auc["C"] - 0.5) < 0.15
    assert {mark["name"] for mark in result["reference_scores"]} >= {"teacher", "ceiling"}
    json.dumps(result, allow_nan=False)
    with pytest.raises(InputError, match="one class"):
        evaluate(release, wanted, test=ImageSet(records(20).images, np.arange(20) % 3, NAMES))


def test_exports_can_be_read_again(release: Path, tmp_path: Path) -> None:
    loaded = load_release(release)
    folder = open_images(export_release(release, "folder", tmp_path / "folder"), reading=Reading(findings=NAMES))
    assert np.array_equal(folder.labels, loaded.labels)
    assert np.array_equal(folder.read(np.arange(300)), loaded.images)
    tables = export_release(release, "parquet", tmp_path / "parquet")
    again = open_images(tables, labels="labels")
    assert again.class_names == NAMES
    assert np.array_equal(again.labels, loaded.labels)


def test_labels_that_are_no_findings_are_refused(release: Path) -> None:
    loaded = load_release(release)
    with pytest.raises((InputError, VerificationError), match="findings"):
        vs.Release(images=loaded.images, labels=loaded.labels[:, 0], certificate=loaded.certificate)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_take_findings_or_say_what_to_do(name: str) -> None:
    facts = PublicFacts(units=5000, unit="record", shape=(32, 32, 1), class_names=NAMES, findings=True)
    if METHODS.get(name).takes_findings:
        assert draw_plan(Job(method=name, epsilon=1.0), facts).events
    else:
        with pytest.raises(InputError, match=r"needs one class .* --findings-as classes"):
            draw_plan(Job(method=name, epsilon=1.0), facts)


def bright_above(images: np.ndarray) -> np.ndarray:
    """How much brighter the upper half is than the lower one: what the finding A shows."""
    return images[:, :8].mean(axis=(1, 2, 3)) - images[:, 8:].mean(axis=(1, 2, 3))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("merf", {"steps": "60", "random_features": "256", "code_size": "32", "pictures": "300"}),
        ("latent", {}),
        ("latent", {"teacher_share": "0.4"}),
        ("imgsyn", {"start": "latent", "iterations": "3"}),
        ("evolve", {"rounds": "2", "pool": "300"}),
    ],
)
def test_every_taker_releases_a_probability_for_each_finding(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    public = ImageSet(records(300, 5).images, np.zeros(300, np.int64))
    made = vs.synthesize(
        Vault(records(2000)),
        method=name,
        budget=vs.Budget(20.0, 1e-4),
        public=public,
        samples=200,
        insecure_seed=1,
        settings=settings,
    )
    made.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").ok
    assert made.soft_labels is not None
    assert made.labels.shape == made.soft_labels.shape == (200, 3)
    assert np.array_equal(made.labels, made.soft_labels >= 0.5)
    assert (made.labels.sum(axis=1) != 1).any()  # they are no classes
    assert np.corrcoef(bright_above(made.images), made.soft_labels[:, 0])[0, 1] > 0.5


def test_a_rare_finding_is_said_to_be_noise(tmp_path: Path) -> None:
    matrix = np.stack([np.arange(4000) % 2, np.arange(4000) < 6], axis=1).astype(np.int64)
    images = np.random.default_rng(0).integers(0, 256, (4000, 16, 16, 1), dtype=np.uint8)
    job = Job(method="merf", epsilon=2.0, preset="smoke", samples=20, insecure_seed=1)
    made = run_with(ImageSet(images, matrix, ("common", "rare")), job, workspace=tmp_path, public=None)
    assert [text.split()[1] for text in made.certificate.warnings] == ["'rare'"]


def test_the_report_speaks_of_findings(release: Path, tmp_path: Path) -> None:
    result = evaluate(release, Evaluation(epochs=1, seeds=1), test=records(200, 7))
    (tmp_path / "evaluation.json").write_text(json.dumps(result))
    page = write_report(release, evaluations=[tmp_path / "evaluation.json"], internal=True)
    assert "with any of 3 findings" in page
    assert "Mean AUC on real images" in page
    assert "AUC of each finding" in page
    assert " classes" not in page.partition("<main")[2]
