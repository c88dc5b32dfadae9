"""How many teachers dfd and pate divide a vault among, and how much they may be asked. Torch-free."""

from veilset.core.errors import InputError
from veilset.core.settings import Auto
from veilset.privacy.vault import PublicFacts

# As in PATE on MNIST: 250 teachers with 240 images each.
_UNITS_PER_TEACHER = 240
_MOST_TEACHERS = 250
_FEWEST_UNITS_PER_TEACHER = 5

MOST_QUERIES = 4000
"""More answers than this teach a linear head nothing new."""


def teachers_for(facts: PublicFacts, wanted: int | Auto) -> int:
    """The number of teachers: as wanted, or by the rule; too many for the units raises."""
    by_rule = min(_MOST_TEACHERS, max(2, facts.units // _UNITS_PER_TEACHER))
    teachers = by_rule if wanted == "auto" else wanted
    most = facts.units // _FEWEST_UNITS_PER_TEACHER
    if teachers < 2 or teachers > most:
        raise InputError(
            f"Expected 2 to {most} teachers for {facts.units} {facts.unit}s (at least {_FEWEST_UNITS_PER_TEACHER} for "
            f"each), got {teachers}. Set teachers, or take a method with one teacher."
        )
    return teachers
