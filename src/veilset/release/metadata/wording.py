"""Sentences that every description of a release shares, so that no two of them disagree."""

import math

from veilset.release.certificate import Certificate
from veilset.release.meaning import meaning_of

UNITS = {"record": "one image", "group": "one group (all images of one person, for example a patient)"}

LIMITS = (
    "Synthetic images are not evidence: do not draw conclusions about single people or rare cases from them.",
    "What the private data teaches about everyone (for example that a sign goes with a disease) is kept on "
    "purpose, and may hurt people who were not in it.",
)
NOT_COVERED = (
    "The number of records, the image shape and the class names are declared public and not protected.",
    "People with more in the data than one unit, and records that depend on each other (relatives, repeated scans), "
    "are protected less.",
    "Settings that somebody tuned by hand on the private data, and whatever else was published from the same data, are "
    "not in this epsilon.",
)
NO_GUARANTEE = "No privacy guarantee: these images may show or betray single private images."


def what_it_is(certificate: Certificate) -> str:
    """One sentence about the images."""
    height, width, channels = certificate.facts.shape
    return (
        f"{certificate.samples} synthetic images of {height} x {width} pixels with {channels} "
        f"channel{'s' if channels > 1 else ''} in {certificate.facts.classes} classes, which stand in for a private "
        "dataset that is not published."
    )


def guarantee_sentence(certificate: Certificate) -> str:
    """What is guaranteed, for whom, and what it means; or that nothing is."""
    meaning = meaning_of(certificate)
    if meaning is None:
        return NO_GUARANTEE
    return (
        f"Differential privacy with epsilon = {rounded_up(meaning.epsilon)} and delta = {meaning.delta:g} for "
        f"{UNITS[certificate.unit]}, under {certificate.relation}: the best attacker who could only toss a coin before "
        f"is right at most {meaning.right_of_100} times out of 100."
    )


def rounded_up(value: float, digits: int = 4) -> str:
    """A number in `digits` digits that is never below the value it stands for."""
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step - 1e-9) * step:.{digits}g}"
