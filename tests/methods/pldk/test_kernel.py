"""pldk by a kernel: rows, moments, the error that images are moved by, and the plan."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from veilset.audit.game import MemoryLedger, Scripted
from veilset.data.images import ImageSet
from veilset.methods.base import Context
from veilset.methods.pldk.config import Pldk
from veilset.methods.pldk.kernel import (
    CLASS_PART,
    SECOND_PART,
    MomentRows,
    kernel_error,
    match_kernel,
    plain_moments,
    public_code,
)
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

FACTS = PublicFacts(units=200, unit="record", shape=(16, 16, 1), class_names=("a", "b", "c"))


def records(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes by where the picture is bright."""
    labels = torch.arange(count) % 3
    images = torch.randint(0, 80, (count, 16, 16, 1), generator=torch.Generator().manual_seed(seed))
    for label in range(3):
        images[labels == label, 5 * label : 5 * label + 5] += 150
    return images.to(torch.uint8), labels


@pytest.fixture(scope="module")
def rows() -> MomentRows:
    return MomentRows(public_code(FACTS, 12, seed=0), 3, "cpu")


def test_rows_have_length_one_and_stand_in_the_block_of_their_class(rows: MomentRows) -> None:
    images, labels = records(9)
    images[0], images[1] = 0, 255
    found = rows(images, labels)
    assert float(found.norm(dim=1).max()) <= 1 + 1e-6
    assert torch.allclose(found[2:].norm(dim=1), torch.ones(7), atol=1e-5)
    blocks = found[:, : 3 * 12].reshape(9, 3, 12)
    for number, label in enumerate(labels.tolist()):
        assert not blocks[number, [other for other in range(3) if other != label]].any()
    assert math.hypot(CLASS_PART, SECOND_PART) == pytest.approx(1.0)


def test_the_moments_give_the_error_of_regression_on_all_records(rows: MomentRows) -> None:
    """Against ridge regression done record by record."""
    images, labels = records(120)
    moments = plain_moments(rows, images, labels)
    few, few_labels = records(9, seed=5)
    codes = rows.embedding.code(few.permute(0, 3, 1, 2).float() / 255)
    every = rows.embedding.code(images.permute(0, 3, 1, 2).float() / 255)

    def wanted(numbers: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(numbers, 3).float() - 1 / 3

    weights = codes.T @ torch.linalg.inv(codes @ codes.T + 0.1 * torch.eye(9)) @ wanted(few_labels)
    direct = (wanted(labels) - every @ weights).square().sum(dim=1).mean() - wanted(labels).square().sum(dim=1).mean()
    assert float(kernel_error(moments, codes, few_labels, 0.1)) == pytest.approx(float(direct), abs=1e-4)


def test_moved_images_predict_better(rows: MomentRows) -> None:
    moments = plain_moments(rows, *records(120))
    start, labels = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    moved = match_kernel(moments, rows.embedding, start, labels, steps=40, rate=0.1, ridge=0.1)
    before, after = (
        float(kernel_error(moments, rows.embedding.code(images), labels, 0.1)) for images in (start, moved)
    )
    assert after < before - 0.05
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1


def test_noise_leaves_a_positive_second_moment(rows: MomentRows) -> None:
    images, labels = records(30)
    noise = torch.randn(3 * 12 + 12 * 13 // 2, generator=torch.Generator().manual_seed(2)) * 30
    moments = rows.read(rows(images, labels).sum(dim=0) + noise, 30)
    assert float(torch.linalg.eigvalsh(moments.second).min()) > -1e-5


def test_the_plan_is_one_full_sum_and_the_teacher() -> None:
    plan = Pldk.configure("fast", {"matching": "kernel"}).plan(FACTS, Budget(4.0, 1e-4))
    assert plan.moments is not None
    assert (plan.moments.sampling_rate, plan.moments.count) == (1.0, 1)
    assert [event.label for event in plan.events][1:] == ["kernel moments"]
    assert (plan.experts, plan.condensation, plan.condensing) == ((), None, None)
    assert 3.9 < epsilon_of(plan.events, 1e-4) <= 4.0


def test_one_unit_more_moves_the_sum_by_at_most_one() -> None:
    method = Pldk.configure(
        "fast",
        {"matching": "kernel", "kernel_features": "8", "kernel_steps": "1", "student_updates": "1", "copies": "12"},
    )
    images, labels = records(12)
    seen: list[Tensor] = []

    class Watched(Session):
        def gaussian_sum(self, per_image, event, **options):  # type: ignore[no-untyped-def]
            found = super().gaussian_sum(per_image, event, **options)
            if event.label == "kernel moments":
                seen.append(found)
            return found

    for count in (12, 11):
        part = ImageSet(images[:count].numpy(), labels[:count].numpy(), FACTS.class_names)
        vault = Vault(part)
        vault.facts = FACTS
        plan = method.plan(FACTS, Budget(4.0, 1e-4))
        method.fit(plan, Watched(vault, plan, MemoryLedger(), Scripted()), None, Context())
    # Rows reach the bound; what leaves has its low bits rounded away after the noise, here 2^-10 a number at most. The
    # neighbour run compares exact sums.
    slack = 2**-10 * math.sqrt(len(seen[0]))
    assert 0.5 < float((seen[0] - seen[1]).norm()) <= 1 + slack


def test_as_published_has_no_guarantee(tmp_path: Path) -> None:
    images, labels = records(60)
    settings = {
        "matching": "kernel", "kernel_features": "8", "kernel_steps": "2", "student_updates": "1", "copies": "12",
        "images_per_class": "2",
    }  # fmt: skip
    job = Job(method="pldk", epsilon=4.0, preset="fast", settings=settings, as_published=True)
    vault = Vault(ImageSet(images.numpy(), labels.numpy(), FACTS.class_names))
    release = run(vault, job, workspace=tmp_path / "run")
    assert release.images.shape == (6, 16, 16, 1)
    assert (release.certificate.guarantee, release.certificate.epsilon) == ("none", None)
