"""Which versions of the code a method's numbers depend on; comparisons and benchmarks write them into their lines."""

import sys

from veilset.core import versions
from veilset.methods import METHODS


def versions_of(method: str) -> dict[str, int]:
    """Today's versions of a method, of the students that are scored, and of the teachers where it can have one."""
    found = {method: METHODS.get(method).version, "students": versions.STUDENTS}
    # A method whose plan can hold a teacher imports what the plan holds.
    if hasattr(sys.modules[METHODS.get(method).__module__], "TeacherPlan"):
        found["teachers"] = versions.TEACHERS
    return found
