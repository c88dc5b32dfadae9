"""Versions of what several methods build upon, for lines of benchmark results.

A version counts up when the same settings and seed give other numbers than before. Lines that were measured with
another version show as stale in the tables of README and docs (`scripts/bench tables`). A method has its own:
`Method.version`.
"""

TEACHERS = 1
"""Private classifiers by DP-SGD (`teachers/`) and the engine below them."""

STUDENTS = 1
"""Ordinary training of students on a release (`training/`)."""
