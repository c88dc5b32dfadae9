"""The critic of one shard: it learns, it respects the padding, and many at once do what each would do alone."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from veilset.models.critics import build_critic
from veilset.training.shard_critics import CodeCritic, CriticTraining

WIDTH, CLASSES = 6, 2


def code_training(hidden: int = 8) -> CriticTraining:
    torch.manual_seed(0)
    critic = CodeCritic(WIDTH, CLASSES, hidden)
    return CriticTraining(critic=critic, shape=(WIDTH,), learning_rate=0.02, penalty=10.0)


def query(updates: int, shape: tuple[int, ...] = (WIDTH,), at: float = 0.0) -> dict[str, torch.Tensor]:
    coins = torch.Generator().manual_seed(1)
    return {
        "fakes": at + 0.1 * torch.randn(updates, 16, *shape, generator=coins),
        "fake_labels": torch.arange(16).repeat(updates, 1) % CLASSES,
        "points": at + torch.zeros(4, *shape),
        "labels": torch.arange(4) % CLASSES,
    }


@pytest.mark.parametrize("hidden", [0, 8])
def test_its_gradient_points_from_the_generated_to_the_real(hidden: int) -> None:
    training = code_training(hidden)
    torch.manual_seed(2)
    labels = torch.arange(40) % CLASSES
    direction = torch.tensor([1.0, 0, 0, 0, 0, 0])
    rows = 0.1 * torch.randn(40, WIDTH) + torch.where(labels == 0, 1.0, -1.0)[:, None] * direction
    _, answer = training.advance(training.start(), rows, labels, torch.tensor(40), query(80))
    cosine = torch.nn.functional.cosine_similarity(answer, direction[None])
    assert bool((cosine[0::2] > 0.9).all())
    assert bool((cosine[1::2] < -0.9).all())
    assert float(answer.norm(dim=1).mean()) == pytest.approx(1.0, abs=0.35)  # the penalty draws the slope to 1


def test_a_rare_class_is_heard_like_a_common_one() -> None:
    training = code_training(hidden=0)
    torch.manual_seed(2)
    labels = torch.where(torch.arange(40) < 4, 0, 1)
    # Far from the origin, where a class that weighs less than its images would be pulled back to it.
    far, direction = torch.tensor([0, 5.0, 0, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0, 0, 0])
    rows = 0.1 * torch.randn(40, WIDTH) + far + torch.where(labels == 0, 1.0, -1.0)[:, None] * direction
    asked = query(80)
    asked["fakes"], asked["points"] = asked["fakes"] + far, asked["points"] + far
    _, answer = training.advance(training.start(), rows, labels, torch.tensor(40), asked)
    cosine = torch.nn.functional.cosine_similarity(answer, direction[None])
    assert bool((cosine[0::2] > 0.9).all())
    assert bool((cosine[1::2] < -0.9).all())


def test_of_a_class_that_the_shard_lacks_nothing_is_said() -> None:
    training = code_training()
    rows, labels = torch.randn(20, WIDTH), torch.ones(20, dtype=torch.int64)
    state, answer = training.advance(training.start(), rows, labels, torch.tensor(20), query(5))
    assert bool((answer[0::2] == 0).all())
    assert bool((answer[1::2] != 0).any(dim=1).all())
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(state))


def test_padding_is_not_seen() -> None:
    training = code_training()
    rows, labels = torch.randn(20, WIDTH), torch.arange(20) % CLASSES
    padded = torch.cat([rows, torch.full((9, WIDTH), 1e6)])
    more = torch.cat([labels, torch.zeros(9, dtype=torch.int64)])
    torch.manual_seed(3)
    _, alone = training.advance(training.start(), rows, labels, torch.tensor(20), query(5))
    torch.manual_seed(3)
    _, beside = training.advance(training.start(), padded, more, torch.tensor(20), query(5))
    assert torch.equal(alone, beside)


@pytest.mark.parametrize("kind", ["code", "image"])
def test_many_at_once_do_not_hear_of_each_other(kind: str) -> None:
    shape = (WIDTH,)
    training = code_training()
    if kind == "image":
        shape = (1, 16, 16)  # type: ignore[assignment]
        critic = build_critic("dcgan", size=16, channels=1, classes=CLASSES, width=16, norm="none")
        training = CriticTraining(critic=critic, shape=shape, learning_rate=1e-3, penalty=10.0)
    torch.manual_seed(4)
    rows = torch.randn(3, 12, torch.Size(shape).numel())
    labels, counts = torch.arange(12).repeat(3, 1) % CLASSES, torch.tensor([12, 12, 12])
    every = torch.vmap(training.advance, in_dims=(0, 0, 0, 0, None), randomness="different")
    state = tree_map(lambda leaf: leaf.expand(3, *leaf.shape).clone(), training.start())
    answers = []
    for change in (0.0, 5.0):
        other = rows.clone()
        other[2] += change
        torch.manual_seed(5)
        after, answer = every(state, other, labels, counts, query(2, shape))
        answers.append(answer)
    assert torch.equal(answers[0][:2], answers[1][:2])
    assert not torch.equal(answers[0][2], answers[1][2])
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(after))
