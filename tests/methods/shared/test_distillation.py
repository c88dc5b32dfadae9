"""Losses of data-free distillation against their definitions."""

import pytest
import torch
from torch.nn import functional

from veilset.methods.shared.data_free_config import DataFreeSettings
from veilset.methods.shared.distillation import (
    WithFeatures,
    balance_loss,
    bounded_rows,
    bounded_step,
    decoupled_distillation,
    output_gradient,
    student_loss,
)
from veilset.models import build_network


@pytest.fixture
def logits() -> tuple[torch.Tensor, torch.Tensor]:
    coins = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, generator=coins), 2 * torch.randn(5, 4, generator=coins)


def test_decoupled_loss_is_the_sum_of_its_two_parts(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    student, teacher = logits
    expected = []
    for s, t in zip(student.softmax(dim=1), teacher.softmax(dim=1), strict=True):
        target = int(t.argmax())
        rest = [k for k in range(4) if k != target]
        pairs = [(t[target], s[target]), (1 - t[target], 1 - s[target])]
        among = [(t[k] / t[rest].sum(), s[k] / s[rest].sum()) for k in rest]
        expected.append(sum(p * (p / q).log() for p, q in pairs) + 2 * sum(p * (p / q).log() for p, q in among))
    got = decoupled_distillation(student, teacher, other_weight=2.0)
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_weighed_by_doubt_it_is_ordinary_distillation(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    student, teacher = logits
    doubt = 1 - teacher.softmax(dim=1).amax(dim=1)
    alone = decoupled_distillation(student, teacher, other_weight=0.0)
    among = decoupled_distillation(student, teacher, other_weight=1.0) - alone
    plain = functional.kl_div(
        student.log_softmax(dim=1), teacher.log_softmax(dim=1), log_target=True, reduction="none"
    ).sum(dim=1)
    torch.testing.assert_close(alone + doubt * among, plain, rtol=1e-4, atol=1e-5)


def test_two_classes_have_no_others() -> None:
    loss = decoupled_distillation(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]]))
    assert torch.isfinite(loss).all()
    assert float(loss) > 0


def test_gradient_vanishes_where_student_and_teacher_agree(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    gradient = output_gradient(logits[1], logits[1], other_weight=1.0, temperature=2.0)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


def test_bounding() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.03, 0.04]])
    torch.testing.assert_close(bounded_rows(rows, 1.0, "clip").norm(dim=1), torch.tensor([1.0, 0.05]))
    torch.testing.assert_close(
        bounded_rows(rows, 1.0, "normalise").norm(dim=1), torch.tensor([1.0, 1.0]), atol=3e-3, rtol=0
    )


def test_student_loss_hands_the_gradient_on() -> None:
    outputs, gradient = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    (got,) = torch.autograd.grad(student_loss(outputs, gradient), outputs)
    torch.testing.assert_close(got, gradient / 4)


def test_balance_is_least_where_all_classes_appear() -> None:
    even, odd = 10 * torch.eye(3), 10 * torch.eye(3)[[0, 0, 0]]
    assert balance_loss(even) < balance_loss(odd)


def test_features_are_what_the_head_reads() -> None:
    network = build_network("convnet", shape=(16, 16, 1), classes=3)
    logits, features = WithFeatures(network)(torch.rand(2, 1, 16, 16))
    head = network.get_submodule("head")
    torch.testing.assert_close(head(features), logits)


def test_the_papers_student_loss_is_cross_entropy_to_the_shifted_outputs(
    logits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    outputs, gradient = logits
    expected = -((outputs - gradient).softmax(dim=1) * outputs.log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(student_loss(outputs, gradient, "cross_entropy"), expected)


def test_line_14_draws_images_to_what_the_student_knows() -> None:
    """The bounded step, seen from the images: moving against its gradient brings the student's loss down."""
    network = build_network("lenet", shape=(16, 16, 1), classes=3, seed=1).eval()
    coins = torch.Generator().manual_seed(0)
    images = torch.rand(8, 1, 16, 16, generator=coins).requires_grad_()
    answers = 3 * torch.randn(8, 3, generator=coins)
    settings = DataFreeSettings(output_bound=5.0, bounding="normalise")
    loss = bounded_step(network(images), answers, settings)
    (gradient,) = torch.autograd.grad(loss, images)
    assert float(gradient.abs().max()) > 0
    moved = (images - 0.1 * gradient).detach()
    target = (
        network(images)
        - bounded_rows(output_gradient(network(images), answers, other_weight=1.0, temperature=1.0), 5.0, "normalise")
    ).detach()
    before, after = (0.5 * (network(x) - target).square().sum(dim=1).mean() for x in (images, moved))
    assert after < before
