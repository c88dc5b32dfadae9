"""What the rules decide, from what, and what they refuse."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.models.features.weights import PUBLISHED
from veilset.privacy.accounting import calibrate, epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts
from veilset.teachers import planning
from veilset.teachers.config import TeacherSettings
from veilset.teachers.planning import draft_teacher, plan_teacher


def facts(units: int = 60_000, shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10) -> PublicFacts:
    return PublicFacts(units=units, unit="record", shape=shape, class_names=tuple(map(str, range(classes))))


@pytest.mark.parametrize("units", [40, 2_420, 60_000])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 10.0])
def test_the_event_spends_the_budget(units, epsilon):
    plan = plan_teacher(facts(units), Budget(epsilon, 1e-6))
    assert 0.97 * epsilon < epsilon_of([plan.event], 1e-6) <= epsilon


@pytest.mark.parametrize(
    ("units", "batch"), [(40, 40), (8_192, 8_192), (60_000, 8_192), (160_000, 20_000), (10_000_000, 2**18)]
)
def test_a_batch_is_an_eighth_of_the_units(units, batch):
    assert plan_teacher(facts(units), Budget(1, 1e-9)).event.sampling_rate == batch / units


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_batch_of_a_large_vault_has_nearly_the_noise_of_all_units(epsilon):
    budget = Budget(epsilon, 1e-7)
    event = plan_teacher(facts(1_000_000), budget).event
    full = noise_of_one_sum(budget) * math.sqrt(event.count)
    assert 1.0 < event.noise_multiplier / event.sampling_rate / full < 1.12


def test_auto_takes_fixed_features():
    for shape in ((28, 28, 1), (32, 32, 3), (20, 36, 3), (224, 224, 3), (8, 8, 1)):
        recipe = plan_teacher(facts(5_000, shape), Budget(1, 1e-6)).recipe
        assert recipe.kind == "head"
        assert recipe.head_only


def test_auto_takes_pretrained_features_for_photographs_where_they_are_installed(monkeypatch):
    shapes = {(32, 32, 3): "lite0", (224, 160, 3): "lite0", (16, 64, 3): "wavelets"}
    shapes |= {(224, 224, 1): "lite0-maps", (224, 64, 1): "wavelets", (64, 64, 1): "wavelets"}
    for there in (True, False):
        monkeypatch.setattr(planning, "is_installed", lambda _, there=there: there)
        for shape, expected in shapes.items():
            plan = plan_teacher(facts(5_000, shape), Budget(1, 1e-6))
            assert plan.recipe.features == (expected if there else "wavelets")
            assert plan.recipe.features in plan.name
            assert planning.choose_features(facts(5_000, shape))[1]
    assert plan_teacher(facts(500), Budget(1, 1e-5), TeacherSettings(features="lite1-maps")).public_weights == {
        "lite1": PUBLISHED["lite1"].sha256
    }
    assert plan_teacher(facts(500), Budget(1, 1e-5), TeacherSettings(features="lite1")).name.startswith(
        "head on lite1 (SHA-256 77cc7160"
    )


@pytest.mark.parametrize("name", ["dpgan", "imgsyn"])
def test_a_certificate_names_the_weights_of_the_features(monkeypatch, name):
    method = METHODS.get(name).configure()
    for there in (True, False):
        monkeypatch.setattr(planning, "is_installed", lambda _, there=there: there)
        certified = method.plan(facts(5_000, (32, 32, 3)), Budget(10, 1e-6)).certified()
        known = {"public_weights": {"lite0": PUBLISHED["lite0"].sha256}} if there else {}
        assert {key: value for key, value in certified.items() if key == "public_weights"} == known


def test_a_plan_loads_no_torch():
    code = "import sys, veilset.teachers.planning; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_logits_end_with_the_same_noise_for_every_dataset():
    for units in (2_420, 15_000, 60_000):
        plan = plan_teacher(facts(units), Budget(1, 1e-6))
        recipe, event = plan.recipe, plan.event
        step = recipe.learning_rate * recipe.clip_norm / (1 - recipe.momentum)
        noise = step * event.noise_multiplier * math.sqrt(event.count) / (event.sampling_rate * units)
        assert noise == pytest.approx(1.0)


def test_more_budget_buys_more_directions_and_longer_training():
    small, large = (plan_teacher(facts(15_000), Budget(epsilon, 1e-6)) for epsilon in (0.5, 10))
    assert small.recipe.directions < large.recipe.directions
    assert small.event.count <= large.event.count


def test_fewer_classes_leave_each_weight_more_units():
    by_classes = {
        classes: plan_teacher(facts(15_000, classes=classes), Budget(1, 1e-5)).recipe.directions
        for classes in (2, 5, 10, 100)
    }
    assert by_classes[2] == by_classes[5] == 1000
    assert by_classes[10] == pytest.approx(15_000 / 3.73 / 10, rel=0.01)
    assert by_classes[100] == 200


def test_a_given_noise_is_taken_and_leaves_the_steps_alone():
    budget = Budget(2, 1e-6)
    draft, whole = draft_teacher(facts(), budget), plan_teacher(facts(), budget).event

    def shared(noise: float) -> list[Event]:
        return [draft.at(noise).event, Event(label="means", noise_multiplier=8.0)]

    noise = calibrate(budget, shared)
    assert shared(noise)[0] == replace(whole, noise_multiplier=noise)
    assert noise > whole.noise_multiplier
    assert epsilon_of(shared(noise), 1e-6) <= 2


def test_what_the_user_says_stands():
    settings = TeacherSettings(kind="network", network="lenet", batch=64, steps=7, clip_norm=0.5, learning_rate=0.2)
    plan = plan_teacher(facts(640), Budget(1, 1e-5), settings, label="mine")
    recipe, event = plan.recipe, plan.event
    assert (recipe.network, recipe.clip_norm, recipe.learning_rate) == ("lenet", 0.5, 0.2)
    assert (event.label, event.sampling_rate, event.count) == ("mine", 0.1, 7)
    assert not recipe.head_only


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "magic"}, "Expected kind to be one of auto, head, network, pretrained, got 'magic'"),
        ({"features": "lite9"}, r"Unknown features 'lite9'\. Did you mean lite\d\? Available: auto, wavelets"),
        ({"features": "lite0+wavelet"}, r"Unknown features 'wavelet'\. Did you mean wavelets\?"),
        ({"side": 16}, "Expected side to be auto or a whole number of at least 32"),
        ({"trained": "tail"}, "Expected trained to be one of all, head"),
        ({"steps": 0}, "Expected steps to be auto or a whole number of at least 1, got 0"),
        ({"batch": 2.5}, "Expected batch to be auto or a whole number"),
        ({"clip_norm": 0.0}, "Expected clip_norm to be auto or a number of at least 1e-09"),
        ({"learning_rate": float("nan")}, "Expected learning_rate to be auto or a number .*, got nan"),
        ({"noise_multiplier": 1.0}, "Unknown setting 'noise_multiplier'"),
        ({"momentum": 1.0}, "Expected momentum to be a number of at least 0 and below 1, got 1"),
        ({"average_from": 2.0}, "Expected average_from to be a number of at least 0 and of at most 1"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(InputError, match=message):
        TeacherSettings(**settings)


def test_a_batch_larger_than_the_vault():
    with pytest.raises(InputError, match="Expected a batch of 1 to 40 units, got 50"):
        plan_teacher(facts(40), Budget(1, 1e-5), TeacherSettings(batch=50))


NETWORK = TeacherSettings(kind="network")


def test_a_network_gets_bands_where_they_leave_less_noise():
    many = draft_teacher(facts(), Budget(10, 1e-6), NETWORK)
    assert (many.bands, many.steps) == (16, 400)
    event = many.event(1.0)
    assert (event.bands, event.count, event.sampling_rate) == (16, 25, 16 * 1024 / 60_000)
    assert draft_teacher(facts(), Budget(1, 1e-6), NETWORK).bands == 1, "a gain below a tenth is none"
    assert draft_teacher(facts(1000), Budget(10, 1e-6), NETWORK).bands == 1, "all units are in every batch"


def test_bands_have_room_for_their_batches():
    for units in (3000, 5000, 20_000):
        event = draft_teacher(facts(units), Budget(10, 1e-6), NETWORK).event(1.0)
        assert event.sampling_rate <= 1
        assert event.sampling_rate / event.bands * units == pytest.approx(1024)
    with pytest.raises(InputError, match="at most 4 bands"):
        draft_teacher(facts(5000), Budget(10, 1e-6), NETWORK.changed(bands=8))


def test_steps_are_rounded_up_to_whole_turns():
    event = draft_teacher(facts(), Budget(10, 1e-6), NETWORK.changed(bands=8, steps=30)).event(1.0)
    assert (event.count, event.steps) == (4, 32)


def test_heads_keep_independent_noise():
    for epsilon in (1, 10):
        assert draft_teacher(facts(), Budget(epsilon, 1e-6)).bands == 1
    with pytest.raises(InputError, match="Expected bands=1 for a head"):
        draft_teacher(facts(), Budget(1, 1e-6), TeacherSettings(bands=4))


def test_a_teacher_over_bands_spends_the_budget():
    plan = plan_teacher(facts(), Budget(10, 1e-6), NETWORK)
    assert plan.event.bands == 16
    assert 9.7 < epsilon_of([plan.event], 1e-6) <= 10
