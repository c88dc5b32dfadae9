"""Trajectory matching: gradients are right, images learn to lead a network, and a stopped run goes on bit by bit."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.methods.pldk.config import MatchingSettings
from veilset.methods.pldk.trajectories import Matching, Trajectory, unflatten
from veilset.models import build_network
from veilset.training.augment import MILD


def small_network(seed: int = 0) -> nn.Module:
    return build_network("convnet", shape=(16, 16, 1), classes=2, width=4, seed=seed)


@pytest.fixture(scope="module")
def expert() -> Trajectory:
    """A network that learns to tell bright left halves from bright right ones."""
    torch.manual_seed(0)
    network, trajectory = small_network(), Trajectory()
    trajectory.add(0, network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for point in range(1, 6):
        for _ in range(4):
            labels = torch.arange(32) % 2
            images = 0.3 * torch.rand(32, 1, 16, 16)
            images[labels == 0, :, :, :8] += 0.6
            images[labels == 1, :, :, 8:] += 0.6
            optimizer.zero_grad()
            functional.cross_entropy(network(images), labels).backward()
            optimizer.step()
        trajectory.add(point, network)
    return trajectory


def matching(expert: Trajectory, augmented: bool = False, **settings: object) -> Matching:
    wanted = MatchingSettings(**{"iterations": 12, "student_steps": 3, "match_batch": 8, "first_step": 0.1, **settings})  # type: ignore[arg-type]
    images = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    return Matching(small_network(), [expert], images, torch.arange(8) % 2, wanted, MILD if augmented else None, seed=3)


def test_images_learn_to_lead_a_network_where_the_expert_went(expert: Trajectory) -> None:
    made = matching(expert, iterations=60, image_rate=0.1, latest_start=0.0)
    images = made.run()
    assert sum(made.losses[-10:]) < 0.7 * sum(made.losses[:10])
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    left = images[0::2, :, :, :8].mean() - images[0::2, :, :, 8:].mean()
    right = images[1::2, :, :, 8:].mean() - images[1::2, :, :, :8].mean()
    assert float(left) > 0
    assert float(right) > 0


def test_the_gradient_of_the_images_is_right(expert: Trajectory) -> None:
    """Against finite differences of the loss, along one direction, in double precision."""
    made = matching(expert, student_steps=2, latest_start=0.0)
    made.network.double()
    points = [point.double() for point in expert.points]

    def loss_at(logits: torch.Tensor) -> torch.Tensor:
        weights = points[0].clone().requires_grad_()
        step = made.log_step.double().exp()
        for _ in range(2):
            weights = made._train(weights, torch.sigmoid(logits), made.labels, step, 0)
        return (weights - points[2]).square().sum() / (points[0] - points[2]).square().sum()

    start = made.logits.detach().double().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(start), start)
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = 1e-5
    with torch.enable_grad():
        difference = (loss_at(start + small * direction) - loss_at(start - small * direction)) / (2 * small)
    assert float(difference.detach()) == pytest.approx(float((gradient * direction).sum()), rel=1e-3)


@pytest.mark.parametrize("augmented", [False, True])
def test_low_memory_changes_nothing(expert: Trajectory, augmented: bool) -> None:
    plain = matching(expert, augmented, iterations=2).run()
    again = matching(expert, augmented, iterations=2, low_memory=True).run()
    assert torch.allclose(plain, again, atol=1e-6)


def test_a_stopped_run_goes_on_bit_by_bit(expert: Trajectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.methods.pldk.trajectories._SAVE_EVERY", 2)
    whole = matching(expert, augmented=True, iterations=6).run()
    stopped = matching(expert, augmented=True, iterations=4)
    stopped.run(tmp_path / "images.pt")
    again = matching(expert, augmented=True, iterations=6).run(tmp_path / "images.pt")
    assert torch.equal(whole, again)


def test_a_trajectory_is_kept_on_disk(tmp_path: Path) -> None:
    first = Trajectory(tmp_path / "expert.pt")
    first.add(0, small_network(0))
    first.add(1, small_network(1))
    again = Trajectory(tmp_path / "expert.pt")
    again.add(1, small_network(2))  # is there already
    assert len(again.points) == 2
    assert torch.equal(again.points[1], first.points[1])


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(VeilsetError, match="another network"):
        unflatten(small_network(), torch.zeros(7))


def test_a_trajectory_that_is_too_short(expert: Trajectory) -> None:
    with pytest.raises(InputError, match="more than 6 points"):
        matching(expert, expert_points=6)
