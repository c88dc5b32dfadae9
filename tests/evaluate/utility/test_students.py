"""Utility: students see the release alone, the test set only scores them, and mismatches are named."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest

from veilset.core.errors import InputError
from veilset.evaluate.utility import students
from veilset.evaluate.utility.students import evaluate_utility
from veilset.training.settings import TrainingConfig

QUICK = TrainingConfig(epochs=5, batch_size=32, learning_rate=0.01, augmentation=None)


@dataclass
class Held:
    """Records in memory that remember which rows were read."""

    images: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...] = ("dark", "bright", "striped")
    groups: None = None
    rows_read: list[int] = field(default_factory=list)

    @property
    def shape(self):
        return self.images.shape[1:]

    def read(self, rows):
        self.rows_read += rows.tolist()
        return self.images[rows]

    def digests(self):
        raise AssertionError("evaluation has no use for digests")


def shades(count, seed, classes=3):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.int64)
    images = rng.integers(0, 40, (count, 16, 16, 1), dtype=np.uint8)
    images[labels == 1] += 150
    images[labels == 2, ::2] += 150
    return images, labels


def evaluate(test, release=None, soft=None, **settings):
    images, labels = release or shades(120, seed=0)
    settings = {"classes": 3, "seeds": 2, "config": QUICK} | settings
    return evaluate_utility(images, labels, soft, settings.pop("classes"), test, **settings)


def test_result_has_the_keys_that_scripts_rely_on():
    test = Held(*shades(90, seed=1))
    result = json.loads(json.dumps(evaluate(test).to_json(), allow_nan=False))
    keys = {"accuracy", "accuracy_std", "balanced_accuracy", "per_class", "seeds", "student"}
    assert keys | {"seconds", "train_images", "not_for_release"} <= set(result)
    assert result["not_for_release"] is True
    assert result["student"] == "convnet"
    assert result["train_images"] == 120
    assert [entry["seed"] for entry in result["seeds"]] == [0, 1]
    assert result["accuracy"] == pytest.approx(np.mean([entry["accuracy"] for entry in result["seeds"]]))
    assert result["accuracy_std"] == pytest.approx(np.std([entry["accuracy"] for entry in result["seeds"]], ddof=1))
    assert result["accuracy_interval"][0] <= result["accuracy"] <= result["accuracy_interval"][1]
    assert [entry["n"] for entry in result["per_class"]] == np.bincount(test.labels).tolist()
    assert [entry["name"] for entry in result["per_class"]] == ["dark", "bright", "striped"]
    assert result["accuracy"] > 0.9


def test_every_test_record_is_scored_once_per_student(monkeypatch):
    monkeypatch.setattr(students, "_READ_AT_ONCE", 7)
    test = Held(*shades(30, seed=1))
    evaluate(test)
    assert test.rows_read == list(range(30)) * 2


def test_students_do_not_learn_from_the_test_set():
    """Test labels that are all wrong turn the accuracy around; a student that peeked would follow them."""
    images, labels = shades(90, seed=1)
    assert evaluate(Held(images, (labels + 1) % 3), seeds=1).accuracy < 0.1


def test_seeds_repeat_and_differ():
    release = shades(40, seed=0)
    weak = TrainingConfig(epochs=1, batch_size=20, learning_rate=1e-4)
    test = Held(*shades(90, seed=1))
    first, again = (evaluate(test, release, config=weak) for _ in range(2))
    assert [s.accuracy for s in first.scores] == [s.accuracy for s in again.scores]
    assert first.scores[0].per_class != first.scores[1].per_class
    assert evaluate(test, release, config=weak, seeds=1, first_seed=1).scores[0].per_class == first.scores[1].per_class


def test_one_seed_has_no_spread_and_an_absent_class_no_recall():
    images, labels = shades(60, seed=1)
    kept = labels != 2
    result = evaluate(Held(images[kept], labels[kept]), seeds=1).to_json()
    assert result["accuracy_std"] == 0.0
    assert result["per_class"][2]["recall"] is None
    assert result["per_class"][0]["recall"] > 0.8


def test_soft_labels_are_what_students_match():
    images, labels = shades(120, seed=0)
    soft = np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    images_test, labels_test = shades(60, seed=1)
    result = evaluate(Held(images_test, (labels_test + 1) % 3), (images, labels), soft, seeds=1)
    assert result.accuracy > 0.9


@pytest.mark.parametrize(
    ("test", "settings", "message"),
    [
        (Held(np.zeros((3, 16, 20, 1), np.uint8), np.zeros(3, np.int64)), {}, "16x16x1 as in the release, got 16x20x1"),
        (Held(np.zeros((3, 16, 16, 3), np.uint8), np.zeros(3, np.int64)), {}, "got 16x16x3"),
        (Held(np.zeros((3, 16, 16, 1), np.uint8), np.zeros(3, np.int64), ("a", "b")), {}, "3 classes, got 2"),
        (Held(np.zeros((0, 16, 16, 1), np.uint8), np.zeros(0, np.int64)), {}, "empty test set"),
        (Held(*shades(9, seed=1)), {"classes": 2}, "labels 0 to 1, got 0 to 2"),
        (Held(*shades(9, seed=1)), {"seeds": 0}, "at least 1 seed"),
        (Held(*shades(9, seed=1)), {"student": "convnot"}, "Did you mean convnet"),
        (Held(*shades(9, seed=1)), {"soft": np.zeros((120, 4), np.float32)}, r"soft labels of shape \(120, 3\)"),
    ],
)
def test_mismatches_are_named_before_training(test, settings, message):
    with pytest.raises(InputError, match=message):
        evaluate(test, **settings)
    assert test.rows_read == []
