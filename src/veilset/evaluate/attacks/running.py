"""`run_attacks`: every chosen attack on one target, its numbers with intervals, and what they mean in plain words.

Privacy: reads members without noise, so results and pictures are for the data holder and not for release. An attack
that fails shows nothing about the next one; only the certificate's guarantee bounds them all.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records
from veilset.evaluate.attacks import measures
from veilset.evaluate.attacks.base import Attack, AttackConfig, Outcome, Setting, Target
from veilset.evaluate.attacks.registry import chosen_attacks
from veilset.evaluate.attacks.splitting import Split, make_split
from veilset.evaluate.metrics import Measurement

PROVES_NOTHING = (
    "Passing an attack proves nothing: a better attack may still succeed, and only the certificate's guarantee bounds "
    "every attack."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackResult:
    """How well one attack told members from nonmembers."""

    attack: Attack
    auc: Measurement
    accuracy: Measurement
    rates: Mapping[float, Measurement]  # by false positive rate
    pairs: int
    seconds: float
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, tuple[Images, Labels]] = field(default_factory=dict)

    @property
    def above_chance(self) -> bool:
        """Whether the interval of the AUC or of a rate lies wholly above what guessing gives.

        Guesses get there about one time in thirty. The accuracy has no say: it is one point of the same curve.
        """
        return self.auc.interval[0] > 0.5 or any(found.interval[0] > rate for rate, found in self.rates.items())

    @property
    def verdict(self) -> str:
        """The result in plain words."""
        low, high = self.auc.interval
        numbers = f"AUC {self.auc.value:.3f}, 95 % interval {low:.3f} to {high:.3f}"
        if not self.above_chance:
            odd = " It lies below .5 even so, which guesses do one time in forty." if high < 0.5 else ""
            return f"No better than guessing who is a member ({numbers}).{odd}"
        rate, found = max(self.rates.items())
        strength = "clearly" if self.auc.value >= 0.75 or found.value >= 10 * rate else "somewhat"
        return (
            f"Tells members from others {strength} better than guessing ({numbers}; it finds {100 * found.value:.1f} % "
            f"of the members while accusing {100 * rate:g} % of the others)."
        )

    def to_json(self) -> dict[str, Any]:
        """The result under the keys of the command line."""
        rates = {f"tpr_at_fpr_{rate:g}": found for rate, found in self.rates.items()}
        named = {"auc": self.auc, "accuracy": self.accuracy, **rates}
        return {
            "name": self.attack.name,
            "title": self.attack.title,
            "needs": self.attack.needs,
            "paper": self.attack.paper,
            **{name: found.value for name, found in named.items()},
            "intervals": {name: list(found.interval) for name, found in named.items()},
            "n": 2 * self.pairs,
            "members": self.pairs,
            "nonmembers": self.pairs,
            "above_chance": self.above_chance,
            "verdict": self.verdict,
            "notes": list(self.notes),
            "details": dict(self.details),
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackReport:
    """All attacks on one target; `skipped` says why others did not run."""

    target: str
    results: tuple[AttackResult, ...]
    skipped: Mapping[str, str]
    seconds: float

    @property
    def summary(self) -> str:
        """What happened, in plain words; ends with what it does not prove."""
        worked = [result.attack.name for result in self.results if result.above_chance]
        count = len(self.results)
        attacks = "1 attack" if count == 1 else f"{count} attacks"
        if worked:
            found = f"{len(worked)} of {attacks} on {self.target} did better than guessing: {', '.join(worked)}."
            if len(worked) < count:
                found += " By luck alone about one attack in thirty does."
        else:
            found = f"None of {attacks} on {self.target} did better than guessing."
        return f"{found} {PROVES_NOTHING}"

    def to_json(self) -> dict[str, Any]:
        """The report under the keys of the command line."""
        return {
            "target": self.target,
            "attacks": [result.to_json() for result in self.results],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped.items()],
            "summary": self.summary,
            "seconds": round(self.seconds, 2),
            "not_for_release": True,
        }


def run_attacks(
    target: Target,
    members: Records,
    nonmembers: Records,
    *,
    attacks: str | Sequence[str] = "fast",
    config: AttackConfig | None = None,
    progress: Progress = SILENT,
) -> AttackReport:
    """Attack `target`: who of `members` and `nonmembers` was in the data that it was made from?

    Args:
        target: what is attacked.
        members: records that it was made from.
        nonmembers: records of the same kind that it was not made from; none may be among the members.
        attacks: "fast", "all", or names of `registry.ATTACKS`, as a list or separated by commas.
        config: how much is attacked and how hard.
        progress: is told work, never scores.
    """
    config = config or AttackConfig()
    chosen_attacks(attacks)
    split = make_split(members, nonmembers, pairs=config.records, seed=config.seed)
    return attack_split(target, split, attacks=attacks, config=config, progress=progress)


def attack_split(
    target: Target,
    split: Split,
    *,
    attacks: str | Sequence[str] = "fast",
    config: AttackConfig | None = None,
    progress: Progress = SILENT,
) -> AttackReport:
    """`run_attacks` for members and nonmembers that have been drawn and checked already."""
    config, chosen = config or AttackConfig(), chosen_attacks(attacks)
    started = time.perf_counter()
    shape = split.attacked.images.shape if target.released is None else target.released.shape
    split.require_fit(shape[1:], target.classes)
    skipped = {attack.name: reason for attack in chosen if (reason := target.lacks(attack.needs)) is not None}
    if len(skipped) == len(chosen):
        raise InputError(f"None of the attacks can run: {'; '.join(f'{n}: {why}' for n, why in skipped.items())}.")
    setting = Setting(target=target, split=split, config=config, progress=progress)
    results = []
    for attack in chosen:
        if attack.name not in skipped:
            progress.note(f"attack: {attack.name}")
            began = time.perf_counter()
            outcome = attack.run(setting)
            results.append(measured(attack, outcome, time.perf_counter() - began))
    return AttackReport(
        target=target.description,
        results=tuple(results),
        skipped=skipped,
        seconds=time.perf_counter() - started,
    )


def measured(attack: Attack, outcome: Outcome, seconds: float = 0.0) -> AttackResult:
    """The numbers of an attack's scores."""
    scores, is_member, pairs = outcome.scores, outcome.candidates.is_member, outcome.candidates.pairs
    notes = [measures.too_few_for(rate, pairs) for rate in measures.FALSE_POSITIVE_RATES]
    return AttackResult(
        attack=attack,
        auc=measures.area_under_curve(scores, is_member),
        accuracy=measures.accuracy_at(scores, is_member, outcome.threshold),
        rates={rate: measures.true_positive_rate(scores, is_member, rate) for rate in measures.FALSE_POSITIVE_RATES},
        pairs=pairs,
        seconds=seconds,
        notes=tuple(note for note in notes if note is not None),
        details=outcome.details,
        pictures=outcome.pictures,
    )
