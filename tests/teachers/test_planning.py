"""What the rules decide, from what, and what they refuse."""

import math
from dataclasses import replace

import pytest

from veilset.core.errors import InputError
from veilset.privacy.accounting import calibrate, epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts
from veilset.teachers import TeacherConfig, plan_teacher


def facts(units: int = 60_000, shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> PublicFacts:
    return PublicFacts(units=units, unit="record", shape=shape, class_names=tuple(map(str, range(classes))))


@pytest.mark.parametrize("units", [40, 2_420, 60_000])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 10.0])
def test_the_event_spends_the_budget(units, epsilon):
    _, event = plan_teacher(TeacherConfig(), facts(units), False, Budget(epsilon, 1e-6))
    assert 0.97 * epsilon < epsilon_of([event], 1e-6) <= epsilon


@pytest.mark.parametrize("has_public", [True, False])
def test_auto_takes_fixed_features(has_public):
    for shape in ((28, 28, 1), (32, 32, 3), (20, 36, 3), (224, 224, 3), (8, 8, 1)):
        recipe, _ = plan_teacher(TeacherConfig(), facts(5_000, shape), has_public, Budget(1, 1e-6))
        assert recipe.kind == "scattering"
        assert recipe.head_only


def test_the_logits_end_with_the_same_noise_for_every_dataset():
    for units in (2_420, 15_000, 60_000):
        recipe, event = plan_teacher(TeacherConfig(), facts(units), False, Budget(1, 1e-6))
        step = recipe.learning_rate * recipe.clip_norm / (1 - recipe.momentum)
        noise = step * event.noise_multiplier * math.sqrt(event.count) / (event.sampling_rate * units)
        assert noise == pytest.approx(1.0)


def test_more_budget_buys_more_directions_and_longer_training():
    small, few = plan_teacher(TeacherConfig(), facts(15_000), False, Budget(0.5, 1e-6))
    large, many = plan_teacher(TeacherConfig(), facts(15_000), False, Budget(10, 1e-6))
    assert small.directions < large.directions
    assert few.count <= many.count


def test_fewer_classes_leave_each_weight_more_units():
    by_classes = {
        classes: plan_teacher(TeacherConfig(), facts(15_000, classes=classes), False, Budget(1, 1e-5))[0].directions
        for classes in (2, 5, 10, 100)
    }
    assert by_classes[2] == by_classes[5] == 1000
    assert by_classes[10] == pytest.approx(15_000 / 3.73 / 10, rel=0.01)
    assert by_classes[100] == 200


def test_a_given_noise_is_taken_and_leaves_the_steps_alone():
    budget, whole = Budget(2, 1e-6), plan_teacher(TeacherConfig(), facts(), False, Budget(2, 1e-6))[1]

    def shared(noise: float) -> list[Event]:
        config = TeacherConfig(noise_multiplier=noise)
        return [plan_teacher(config, facts(), False, budget)[1], Event(label="means", noise_multiplier=8.0)]

    noise = calibrate(budget, shared)
    assert shared(noise)[0] == replace(whole, noise_multiplier=noise)
    assert noise > whole.noise_multiplier
    assert epsilon_of(shared(noise), 1e-6) <= 2


def test_what_the_user_says_stands():
    config = TeacherConfig(
        kind="network", network="lenet", batch=64, steps=7, clip_norm=0.5, learning_rate=0.2, label="mine"
    )
    recipe, event = plan_teacher(config, facts(640), False, Budget(1, 1e-5))
    assert (recipe.network, recipe.clip_norm, recipe.learning_rate) == ("lenet", 0.5, 0.2)
    assert (event.label, event.sampling_rate, event.count) == ("mine", 0.1, 7)
    assert not recipe.head_only


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "magic"}, "Expected kind to be one of auto, scattering, network, pretrained, got 'magic'"),
        ({"trained": "tail"}, "Expected trained to be one of all, head"),
        ({"steps": 0}, "Expected steps to be a whole number of at least 1, got 0"),
        ({"batch": 2.5}, "Expected batch to be a whole number"),
        ({"clip_norm": 0.0}, "Expected clip_norm > 0, got 0"),
        ({"learning_rate": float("nan")}, "Expected learning_rate > 0, got nan"),
        ({"noise_multiplier": -1.0}, "Expected noise_multiplier > 0"),
        ({"momentum": 1.0}, r"Expected momentum in \[0, 1\), got 1.0"),
        ({"average_from": 2.0}, "Expected average_from between 0 and 1"),
        ({"label": ""}, "Expected a label"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        TeacherConfig(**settings)


def test_a_batch_larger_than_the_vault():
    with pytest.raises(InputError, match="Expected a batch of 1 to 40 units, got 50"):
        plan_teacher(TeacherConfig(batch=50), facts(40), False, Budget(1, 1e-5))


def test_pretraining_without_public_images():
    with pytest.raises(InputError, match="needs labelled public images"):
        plan_teacher(TeacherConfig(kind="pretrained"), facts(), False, Budget(1, 1e-5))
