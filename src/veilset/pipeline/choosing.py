"""Which method, which preset and which epsilon: rules over public facts and a few answers, each with its reason.

The rules follow measured results (benchmarks/results; the tables of the methods' pages). docs/how_to/choose.md says the
same in a table, and a test compares both. Nothing here reads data.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from veilset.core.errors import InputError
from veilset.pipeline.checks import few_units
from veilset.pipeline.costs import Cost, estimate
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.release.meaning import guess_from_epsilon

PublicImages = Literal["none", "other", "alike"]
Audience = Literal["world", "partners", "inside"]

PUBLIC = {
    "none": "none at hand",
    "other": "public images of something else, e.g. photographs",
    "alike": "public images of the same kind as the private ones",
}
AUDIENCE = {
    "world": "everybody: it will be published",
    "partners": "partners who sign an agreement",
    "inside": "people of the house alone",
}
EPSILON = {"world": 1.0, "partners": 3.0, "inside": 8.0}
"""A common choice for each audience. It is a dial, and the custodian turns it."""

_MANY_TIMES = (1.0, 3.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One line of the table: when it applies, what it recommends and why."""

    name: str
    when: str
    method: str
    why: str


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            name="findings",
            when="an image can have several findings",
            method="imgsyn",
            why="it takes several findings of one image",
        ),
        Rule(
            name="alike-colour",
            when="released images should look like the private ones, these are in colour, and public images are at "
            "hand",
            method="latent",
            why="of look-alikes in colour its students score best, also where the public images show other things",
        ),
        Rule(
            name="alike-large",
            when="released images should look like the private ones, and these are not squares of 16 to 64 pixels",
            method="evolve",
            why="private images vote for public ones of any shape, and the winners are varied",
        ),
        Rule(
            name="alike",
            when="released images should look like the private ones",
            method="merf",
            why="of the methods that make look-alikes without public images its students score best at epsilon 1",
        ),
        Rule(
            name="public",
            when="released images need not look like the private ones, and public images are at hand",
            method="imgsyn",
            why="public images that a private teacher labels teach most, in grey and in colour, also for a few "
            "thousand patients",
        ),
        Rule(
            name="nothing",
            when="released images need not look like the private ones, and no public image is at hand",
            method="dfd",
            why="it needs no public image, and its students score best among the methods without any",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a person says. The facts are those that will be declared public anyway."""

    facts: PublicFacts
    public: PublicImages = "none"
    look_alike: bool = False
    audience: Audience = "world"
    minutes: float | None = None  # that a run may take
    samples: int | None = None
    epsilon: float | None = None  # where it is decided already

    def __post_init__(self) -> None:
        for name, value, known in (
            ("public", self.public, get_args(PublicImages)),
            ("audience", self.audience, get_args(Audience)),
        ):
            if value not in known:
                raise InputError(f"Expected {name} to be {', '.join(known)}, got {value!r}.")
        if self.minutes is not None and not self.minutes > 0:
            raise InputError(f"Expected minutes above 0, got {self.minutes:g}.")


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to do, and why."""

    method: str
    preset: str
    epsilon: float
    delta: float
    samples: int
    cost: Cost | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    def command(self, answers: Answers) -> str:
        """The command to give, with the places to fill in."""
        words = ["veilset synthesize IMAGES", f"--method {self.method}", f"--epsilon {self.epsilon:g}"]
        words += [] if self.preset == "default" else [f"--preset {self.preset}"]
        words += [] if answers.public == "none" else ["--public PUBLIC_IMAGES"]
        words += ["--groups-file PATIENTS.csv"] if answers.facts.unit == "group" else []
        height, width, _ = answers.facts.shape
        words += [f"--size {height}"] if height == width else []
        return " ".join([*words, "--out release"])


def recommend(answers: Answers) -> Recommendation:
    """A method, a preset and an epsilon for these answers."""
    from veilset.methods import METHODS

    rule = rule_for(answers)
    budget = Budget.for_units(
        EPSILON[answers.audience] if answers.epsilon is None else answers.epsilon,
        None,
        answers.facts.units,
        answers.facts.unit,
    )
    samples = answers.samples or METHODS.get(rule.method).configure().default_samples(answers.facts)
    cost = estimate(rule.method, "default", answers.facts, samples)
    preset, warnings = "default", []
    limit = math.inf if answers.minutes is None else 60 * answers.minutes
    if cost is not None and cost.seconds > limit:
        preset, cost = "fast", estimate(rule.method, "fast", answers.facts, samples) or cost
        if cost.seconds > limit and cost.measured.preset == "fast":
            warnings.append("Even the preset fast may take longer than you have. Ask for fewer --samples.")
    few = few_units(answers.facts.unit, answers.facts.units)
    if few is not None:
        warnings.append(few)
    chosen = "you asked for it" if answers.epsilon is not None else f"it is for {AUDIENCE[answers.audience]}"
    reasons = (
        f"Method {rule.method}, because {rule.when}: {rule.why}.",
        f"Epsilon {budget.epsilon:g}, because {chosen}. {meaning(budget, answers.facts.unit)}",
    )
    return Recommendation(
        method=rule.method,
        preset=preset,
        epsilon=budget.epsilon,
        delta=budget.delta,
        samples=samples,
        cost=cost,
        reasons=reasons,
        warnings=tuple(warnings),
    )


def rule_for(answers: Answers) -> Rule:
    """The first rule that applies."""
    if answers.facts.findings:
        return RULES["findings"]
    if answers.look_alike:
        height, width, channels = answers.facts.shape
        if channels == 3 and answers.public != "none":
            return RULES["alike-colour"]
        return RULES["alike" if height == width and 16 <= height <= 64 else "alike-large"]
    return RULES["nothing" if answers.public == "none" else "public"]


def meaning(budget: Budget, unit: str) -> str:
    """What an epsilon means for one person, in one sentence."""
    return (
        f"Whoever guesses whether one {unit} was in the data, and would be right 50 times out of 100 without the "
        f"release, is right at most {_right_of_100(budget)} times with it."
    )


def _right_of_100(budget: Budget) -> int:
    return math.ceil(100 * guess_from_epsilon(budget.epsilon, budget.delta) - 1e-9)


def meanings(delta: float) -> list[str]:
    """How often such a guess is right at the usual epsilons, to compare."""
    found = {epsilon: _right_of_100(Budget(epsilon, delta)) for epsilon in _MANY_TIMES}
    return [f"epsilon {epsilon:g}: right at most {times} times out of 100" for epsilon, times in found.items()]
