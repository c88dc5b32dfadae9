"""How students of a release are trained: with what its certificate says of networks, labels and changes to images."""

from veilset.core.errors import InputError, VerificationError
from veilset.models import NETWORKS
from veilset.release.certificate import Certificate
from veilset.training.augment import AugmentConfig
from veilset.training.settings import TrainingConfig

AUTO = "auto"
_DEFAULT = "convnet"


def student_name(certificate: Certificate, wanted: str = AUTO) -> str:
    """The network that is wanted; for "auto" the one that the release names, else a convnet.

    A certificate is a stranger's word, so it may name our networks and no code of its own.
    """
    if wanted != AUTO:
        return wanted
    named = _DEFAULT if certificate.student_network is None else certificate.student_network
    if named not in NETWORKS:
        raise VerificationError(
            f"certificate.json: expected student_network to be one of {', '.join(NETWORKS)}, found {named!r}."
        )
    return named


def student_recipe(certificate: Certificate, wanted: TrainingConfig | None = None) -> TrainingConfig:
    """The recipe that is wanted, at the labels' temperature.

    Where the release names changes to images they are made, unless the recipe has its own.
    """
    recipe = (wanted or TrainingConfig()).changed(label_temperature=certificate.label_temperature)
    changes = certificate.student_changes
    if changes is None or recipe.augmentation != "auto":
        return recipe
    try:
        return recipe.changed(augmentation=AugmentConfig(**changes))
    except (TypeError, InputError) as error:
        raise VerificationError(f"certificate.json: student_changes cannot be used. {error}") from error
