"""The critic of one shard: it learns, and many at once do what each would do alone."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from veilset.methods.sanitized_gan.critics import CodeCritic, CriticTraining
from veilset.methods.shared.critics import build_critic
from veilset.privacy.mechanisms.shard_critics import State
from veilset.privacy.mechanisms.shard_rows import ShardRows

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


def advance(
    training: CriticTraining, rows: torch.Tensor, labels: torch.Tensor, asked: dict[str, torch.Tensor]
) -> tuple[State, torch.Tensor]:
    """All updates of a query with rows of one shard, then its answer."""
    shard, coins = (
        ShardRows.of([(rows, labels)], classes=CLASSES, width=rows.shape[1]),
        torch.Generator().manual_seed(3),
    )
    state = training.start()
    for fakes, classes in zip(asked["fakes"], asked["fake_labels"], strict=True):
        drawn = torch.rand(2, len(classes), generator=coins)
        real, known = shard.drawn(slice(0, 1), classes, drawn[:1])
        state = training.learn(state, real[0], known[0], drawn[1], fakes, classes)
    return state, training.answer(state, shard.held(slice(0, 1))[0], asked)


@pytest.mark.parametrize("hidden", [0, 8])
def test_its_gradient_points_from_the_generated_to_the_real(hidden: int) -> None:
    training = code_training(hidden)
    torch.manual_seed(2)
    labels = torch.arange(40) % CLASSES
    direction = torch.tensor([1.0, 0, 0, 0, 0, 0])
    rows = 0.1 * torch.randn(40, WIDTH) + torch.where(labels == 0, 1.0, -1.0)[:, None] * direction
    _, answer = advance(training, rows, labels, query(80))
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
    _, answer = advance(training, rows, labels, asked)
    cosine = torch.nn.functional.cosine_similarity(answer, direction[None])
    assert bool((cosine[0::2] > 0.9).all())
    assert bool((cosine[1::2] < -0.9).all())


def test_of_a_class_that_the_shard_lacks_nothing_is_said() -> None:
    training = code_training()
    rows, labels = torch.randn(20, WIDTH), torch.ones(20, dtype=torch.int64)
    state, answer = advance(training, rows, labels, query(5))
    assert bool((answer[0::2] == 0).all())
    assert bool((answer[1::2] != 0).any(dim=1).all())
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(state))


def test_rows_are_drawn_evenly_from_those_of_the_class() -> None:
    labels = torch.tensor([1, 0, 1, 1, 0])
    shards = ShardRows.of(
        [(torch.zeros(0, 1), labels[:0]), (torch.arange(5.0)[:, None], labels), (torch.full((2, 1), 9.0), labels[:2])],
        classes=3,
        width=1,
    )
    coins = torch.linspace(0, 1 - 1e-12, 600, dtype=torch.float64).expand(3, 600)
    for label, own in ((0, [1.0, 4.0]), (1, [0.0, 2.0, 3.0])):
        rows, known = shards.drawn(slice(0, 3), torch.full((600,), label), coins)
        assert known[:, 0].tolist() == [False, True, True]
        assert bool((rows[0] == 0).all())
        assert bool((rows[2] == 9).all())
        values, counts = rows[1].unique(return_counts=True)
        assert values.tolist() == own
        assert bool((counts - 600 / len(own)).abs().max() <= 1)
    rows, known = shards.drawn(slice(1, 2), torch.tensor([2]), coins[:1, :1])
    assert not bool(known.any())
    assert bool((rows == 0).all())
    assert shards.held(slice(0, 3)).tolist() == [[False] * 3, [True, True, False], [True, True, False]]


@pytest.mark.parametrize("kind", ["code", "image"])
def test_many_at_once_do_not_hear_of_each_other(kind: str) -> None:
    shape = (WIDTH,)
    training = code_training()
    if kind == "image":
        shape = (1, 16, 16)  # type: ignore[assignment]
        critic = build_critic("dcgan", size=16, channels=1, classes=CLASSES, width=16, norm="none")
        training = CriticTraining(critic=critic, shape=shape, learning_rate=1e-3, penalty=10.0)
    torch.manual_seed(4)
    rows, coins = torch.randn(3, 16, torch.Size(shape).numel()), torch.rand(3, 16)
    known, held = torch.ones(3, 16, dtype=torch.bool), torch.ones(3, CLASSES, dtype=torch.bool)
    learn = torch.vmap(training.learn, in_dims=(0, 0, 0, 0, None, None), randomness="error")
    ask = torch.vmap(training.answer, in_dims=(0, 0, None), randomness="error")
    asked, answers = query(2, shape), []
    for change in (0.0, 5.0):
        other = rows.clone()
        other[2] += change
        after = tree_map(lambda leaf: leaf.expand(3, *leaf.shape).clone(), training.start())
        for fakes, labels in zip(asked["fakes"], asked["fake_labels"], strict=True):
            after = learn(after, other, known, coins, fakes, labels)
        answers.append(ask(after, held, asked))
    assert torch.equal(answers[0][:2], answers[1][:2])
    assert not torch.equal(answers[0][2], answers[1][2])
    assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves(after))
