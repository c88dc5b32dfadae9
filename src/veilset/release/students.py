"""How students of a release are trained: with what its certificate says of its labels and of changes to its images."""

from dataclasses import replace

from veilset.core.errors import InputError, VerificationError
from veilset.release.certificate import Certificate
from veilset.training.augment import AugmentConfig
from veilset.training.recipe import TrainingConfig


def student_recipe(certificate: Certificate, wanted: TrainingConfig | None = None) -> TrainingConfig:
    """The recipe that is wanted, at the labels' temperature.

    Where the release names changes to images they are made, unless the recipe has its own.
    """
    recipe = replace(wanted or TrainingConfig(), label_temperature=certificate.label_temperature)
    changes = certificate.student_changes
    if changes is None or recipe.augmentation != "auto":
        return recipe
    try:
        return replace(recipe, augmentation=AugmentConfig(**changes))
    except (TypeError, InputError) as error:
        raise VerificationError(f"certificate.json: student_changes cannot be used. {error}") from error
