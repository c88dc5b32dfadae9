"""The one tree of errors. Each says what was expected, what came, and what to do; each knows its exit code."""

from typing import ClassVar


class VeilsetError(Exception):
    """Something failed that is not the user's input."""

    exit_code: ClassVar[int] = 1


class InputError(VeilsetError):
    """A file, an option or a value that cannot be used as given."""

    exit_code = 2


class BudgetError(VeilsetError):
    """The call would spend more than the plan, the budget or the account allows. No data was read."""

    exit_code = 3


class AuditContradictionError(VeilsetError):
    """An audit found a lower bound above the claimed epsilon."""

    exit_code = 4


class VerificationError(VeilsetError):
    """A release, ledger or certificate does not match what it claims."""

    exit_code = 5


INTERRUPTED_EXIT_CODE = 130
