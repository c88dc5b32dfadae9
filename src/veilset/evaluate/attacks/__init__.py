"""Attacks on a release or a network: who was in its training data? docs/explanation/attacks.md says what each assumes.

`run_attacks(Target(...), members, nonmembers)` is the way in for other code; `release_target` makes the target of a
release.
"""

from veilset.evaluate.attacks.base import Attack, AttackConfig, Target
from veilset.evaluate.attacks.registry import ATTACKS, GROUPS
from veilset.evaluate.attacks.running import AttackReport, AttackResult, attack_split, run_attacks
from veilset.evaluate.attacks.targets import plain_shadows, release_target

__all__ = [
    "ATTACKS",
    "GROUPS",
    "Attack",
    "AttackConfig",
    "AttackReport",
    "AttackResult",
    "Target",
    "attack_split",
    "plain_shadows",
    "release_target",
    "run_attacks",
]
