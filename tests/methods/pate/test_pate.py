"""PATE: its plan, whole small runs with synthetic and public queries, the confident form, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from running import run_with

from veilset.core.errors import InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.base import Context
from veilset.methods.pate.config import Pate, PateSettings
from veilset.methods.pate.public_queries import require_all_classes
from veilset.methods.shared.distilled import Distilled
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

FACTS = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
SMALL = {
    "warmup_steps": "3", "steps": "2", "settle_steps": "2", "batch": "16", "student_batch": "16", "bank": "48",
    "random_features": "64", "pictures": "60", "width": "16", "teachers": "30",
}  # fmt: skip


@pytest.fixture
def pictures() -> torch.Tensor:
    return (drawn_patterns(1200, 16, 1, torch.Generator().manual_seed(3)) * 255).round().to(torch.uint8)


@pytest.fixture
def records(pictures: torch.Tensor) -> ImageSet:
    """Two classes that a look tells apart: strokes, and clouds."""
    kept = torch.cat([pictures[:300], pictures[800:1100]])
    return ImageSet(kept.permute(0, 2, 3, 1).numpy(), np.repeat([0, 1], 300))


def job(**settings: str) -> Job:
    return Job(method="pate", epsilon=10.0, samples=30, insecure_seed=0, settings={**SMALL, **settings})


@pytest.mark.parametrize("confident", [0.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.5, 10.0])
def test_plan_spends_the_budget_and_no_more(confident: float, epsilon: float) -> None:
    plan = Pate(PateSettings(agreement_share=confident)).plan(FACTS, Budget(epsilon, 1e-5))
    assert len(plan.events) == (3 if confident else 2)
    assert 0.99 * epsilon < epsilon_of(plan.events, 1e-5) <= epsilon * (1 + 1e-9)


def test_the_noise_on_a_count_is_what_the_plan_says() -> None:
    """A unanimous vote of 250 is `signal` times the noise, or the number of queries would be another."""
    plan = Pate(PateSettings(signal=4.0)).plan(FACTS, Budget(1.0, 1e-5))
    assert 250 / float(plan.facts["noise on a count of votes"]) == pytest.approx(4.0, rel=0.05)
    assert plan.facts["noise on a count of votes"] == math.sqrt(2) * plan.events[-1].noise_multiplier


def test_the_majority_knows_public_pictures_of_the_same_kinds(records: ImageSet, tmp_path: Path) -> None:
    fresh = (drawn_patterns(900, 16, 1, torch.Generator().manual_seed(9)) * 255).round().to(torch.uint8)
    fresh, truth = torch.cat([fresh[:300], fresh[600:]]), torch.arange(2).repeat_interleave(300)
    # The labels of public images are not looked at, so wrong ones do no harm.
    public = ImageSet(fresh.permute(0, 2, 3, 1).numpy(), 1 - truth.numpy())
    method = Pate.configure("default", SMALL)
    vault, ledger = Vault(records), Ledger.create(tmp_path / "ledger.jsonl", {"run": "x", "seed": 0})
    plan = method.plan(vault.facts, Budget(10.0, 1e-4))
    session = Session(vault, plan, ledger, NoiseSource(1))
    fitted = method.fit(plan, session, vault.check_public(public), Context())
    session.finish()
    ledger.close()
    assert isinstance(fitted, Distilled)
    # Chance would give 0.5, to within 0.02; the labels that must not be looked at, less.
    assert (fitted.guide(fresh.float() / 255).argmax(dim=1) == truth).double().mean() > 0.65


def test_confident_run(records: ImageSet, tmp_path: Path) -> None:
    release = run(Vault(records), job(agreement_share="0.3"), workspace=tmp_path / "run")
    labels = [line["body"]["event"]["label"] for line in release.certificate.ledger if line["kind"] == "spend"]
    assert labels == ["class statistics", "agreement of the teachers", "votes"]


def test_too_few_public_images(records: ImageSet, tmp_path: Path) -> None:
    public = ImageSet(np.zeros((12, 16, 16, 1), dtype=np.uint8), np.arange(12) % 2)
    with pytest.raises(InputError, match="images to vote on, got 12"):
        run_with(records, job(), workspace=tmp_path / "run", public=public)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teachers": 1}, "teachers to be auto or a whole number of at least 2"),
        ({"signal": 0.0}, "signal to be a number above 0"),
        ({"candidates": 1}, "candidates to be a whole number of at least 2"),
        ({"agreement_share": 1.0}, "agreement_share to be a number of at least 0 and below 1"),
        ({"statistics_share": 0.0, "warmup_steps": 0, "statistics_weight": 0.0}, "statistics_share > 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PateSettings(**settings)


def test_a_class_that_is_never_named() -> None:
    with pytest.raises(VeilsetError, match="never name two"):
        require_all_classes(torch.tensor([0, 1, 0]), ("zero", "one", "two"))


def test_too_few_records_for_the_teachers() -> None:
    few = PublicFacts(units=8, unit="record", shape=(16, 16, 1), class_names=("a", "b"))
    with pytest.raises(InputError, match="at least 5 for each"):
        Pate(PateSettings()).plan(few, Budget(1.0, 1e-2))
