"""Attack power: what was learned by heart is found, what was never seen is not, and the report says both plainly."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.evaluate.attacks import AttackConfig, Target, run_attacks
from veilset.evaluate.attacks.running import PROVES_NOTHING
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig

BY_HEART = TrainingConfig(
    epochs=60, batch_size=50, learning_rate=0.01, augmentation=None, label_smoothing=0.0, weight_decay=0.0
)


def train(images, labels, seed):
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "test network"))
        network = nn.Sequential(nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return train_classifier(network, images, labels, config=BY_HEART, seed=seed)


@pytest.fixture(scope="module")
def digits():
    """Three sets of 500 digits, three labels in ten drawn at random: nothing but memory can know those."""
    whole = open_images("builtin:digits")
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(1797) < 0.3, rng.integers(0, 10, 1797), whole.labels)
    noisy = ImageSet(whole.read(np.arange(1797)), labels, whole.class_names)
    rows = rng.permutation(1797)
    return [noisy.subset(rows[start : start + 500]) for start in (0, 500, 1000)]


@pytest.fixture(scope="module")
def overfitted(digits):
    members, nonmembers, _ = digits
    network = train(members.images, members.labels, 0)
    assert (predict(network, members.images).argmax(axis=1) == members.labels).mean() > 0.95
    target = Target(description="an overfitted network", classes=10, network=network, train_shadow=train)
    return run_attacks(target, members, nonmembers, attacks="all", config=AttackConfig(records=500, shadows=8))


def test_what_was_learned_by_heart_is_found(overfitted):
    found = {result.attack.name: result for result in overfitted.results}
    best = max(found.values(), key=lambda result: result.auc.value)
    assert best.auc.interval[0] >= 0.75
    assert max(result.rates[0.01].value for result in found.values()) >= 0.05
    for name in ("confidence", "modified-entropy", "learned-black-box", "gradient-norm", "white-box", "lira", "rmia"):
        assert found[name].auc.interval[0] > 0.6, name
        assert found[name].accuracy.value > 0.6, name
        assert found[name].above_chance
        assert "better than guessing" in found[name].verdict


def test_what_the_target_lacks_is_left_out_with_a_reason(overfitted):
    assert overfitted.skipped["gan-leaks"] == "there are no released images"
    assert "generator" in overfitted.skipped["latent-search"]
    with pytest.raises(InputError, match="None of the attacks can run"):
        run_attacks(Target(description="nothing", classes=10), *_two_sets(), attacks="lira,gan-leaks")


def _two_sets():
    rng = np.random.default_rng(0)
    return [ImageSet(rng.integers(0, 255, (200, 16, 16, 1), dtype=np.uint8), np.arange(200) % 10) for _ in range(2)]


def test_the_report_is_json_with_the_promised_keys(overfitted):
    report = json.loads(json.dumps(overfitted.to_json()))
    assert report["not_for_release"] is True
    assert report["summary"].endswith(PROVES_NOTHING)
    assert "did better than guessing" in report["summary"]
    for attack in report["attacks"]:
        keys = {"auc", "accuracy", "tpr_at_fpr_0.001", "tpr_at_fpr_0.01"}
        assert keys == set(attack["intervals"])
        for key in keys:
            low, high = attack["intervals"][key]
            assert 0 <= low <= attack[key] <= high <= 1, (attack["name"], key)
        assert attack["n"] == attack["members"] + attack["nonmembers"]
        assert any("too few for a false positive rate of 0.1 %" in note for note in attack["notes"])


def test_what_was_never_seen_is_found_no_more_often_than_by_luck(digits):
    """Twenty draws among strangers, five attacks each: luck alone gives about 3 findings in 100, rarely 15."""
    first, second, others = digits
    images, labels = (
        np.concatenate([getattr(part, name) for part in (first, second)]) for name in ("images", "labels")
    )
    whole = ImageSet(images, labels, first.class_names)
    target = Target(description="a stranger", classes=10, network=train(others.images, others.labels, 0))
    target = replace(target, released=others.images)
    attacks = "confidence,entropy,gan-leaks,gan-leaks-calibrated,nearest-neighbour"
    results = []
    for seed in range(20):
        rows = np.random.default_rng(seed).permutation(1000)
        report = run_attacks(target, whole.subset(rows[:500]), whole.subset(rows[500:]), attacks=attacks)
        results += report.results
        assert ("None of 5" in report.summary) == (not any(result.above_chance for result in report.results))
    assert sum(result.above_chance for result in results) <= 15
    assert 0.48 < np.mean([result.auc.value for result in results]) < 0.52
    assert any(result.verdict.startswith("No better than guessing") for result in results)


def test_a_release_that_copies_members_is_found(digits):
    members, nonmembers, others = digits
    copies = np.clip(
        members.images.astype(int) + np.random.default_rng(0).integers(-9, 10, members.images.shape), 0, 255
    )
    released = np.concatenate([copies[::2].astype(np.uint8), others.images])
    target = Target(description="copies", classes=10, released=released)
    report = run_attacks(target, members, nonmembers, attacks="gan-leaks,gan-leaks-calibrated,nearest-neighbour")
    for result in report.results:
        assert result.auc.interval[0] > 0.6, result.verdict
    nearest = report.results[-1]
    assert nearest.details["copies_of_members"] > 50
    assert nearest.details["copies_of_nonmembers"] == 0
    images, rows = nearest.pictures["closest-pairs"]
    shown = np.abs(images[rows == 0].astype(int) - images[rows == 1])
    assert shown.max() <= 9, "the closest pairs are the copies and their originals"


def test_where_no_image_is_nearest_to_a_member_there_is_no_pair_to_show(digits):
    members, nonmembers, _ = digits
    one = Target(description="one nonmember", classes=10, released=np.repeat(nonmembers.images[:1], 5, axis=0))
    found = run_attacks(one, members, nonmembers, attacks="nearest-neighbour").results[0]
    assert found.details["nearest_is_a_member"] == 0
    assert found.pictures == {}
