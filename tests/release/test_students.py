import pytest

from veilset.core.errors import VerificationError
from veilset.release.card import card_text
from veilset.release.students import student_name, student_recipe
from veilset.training.augment import MILD
from veilset.training.settings import TrainingConfig


def test_a_release_that_says_nothing_leaves_the_recipe(make):
    wanted = TrainingConfig(epochs=3)
    assert student_recipe(make.certificate(), wanted) == wanted
    assert student_recipe(make.certificate()) == TrainingConfig()


def test_a_release_names_its_labels_temperature_and_changes_to_images(make):
    certificate = make.certificate(settings={"label_temperature": 4.0, "student_changes": {"shift": 0.5}})
    recipe = student_recipe(certificate, TrainingConfig(epochs=3))
    assert (recipe.epochs, recipe.label_temperature, recipe.augmentation.shift) == (3, 4.0, 0.5)
    assert student_recipe(certificate, TrainingConfig(augmentation=MILD)).augmentation == MILD
    assert student_recipe(certificate, TrainingConfig(augmentation=None)).augmentation is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"label_temperature": "4"},
        {"label_temperature": 0},
        {"label_temperature": None},
        {"student_changes": "mild"},
        {"student_changes": {"shift": 2.0}},
        {"student_changes": {"blur": 1.0}},
        {"student_changes": {"shift": "far"}},
    ],
)
def test_what_cannot_be_used_is_refused(make, wrong):
    with pytest.raises(VerificationError, match=next(iter(wrong))):
        student_recipe(make.certificate(settings=wrong))


def test_a_release_recommends_a_network(make):
    certificate = make.certificate(settings={"student_network": "scatternet"})
    assert student_name(certificate) == "scatternet"
    assert student_name(certificate, "lenet") == "lenet"
    assert student_name(make.certificate()) == "convnet"
    assert "Recommended network: `scatternet`" in card_text(certificate)


@pytest.mark.parametrize("wrong", [3, "os:system", ""])
def test_a_certificate_cannot_name_code_of_its_own(make, wrong):
    with pytest.raises(VerificationError, match="student_network"):
        student_name(make.certificate(settings={"student_network": wrong}))
