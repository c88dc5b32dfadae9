"""Private Evolution: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import Auto, Settings, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.models.features.weights import PUBLISHED, is_installed, require_installed
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import TeacherPlan
from veilset.teachers.planning import choose_features, draft_teacher

FeatureSpace = Literal["wavelets", "pixels", "pretrained"]
PRETRAINED = "lite0"
GENERATORS = ("auto", "public", "drawn", "eigen")

_FEWEST_CANDIDATES, _MOST_CANDIDATES = 10, 2000
_VOTES_OVER_NOISE = 2.0  # what a candidate gets on average, in deviations of the noise
_COLOUR = 3
_NOISE_EXPLAINS = 2.0  # deviations below which votes are taken for noise


class EvolveSettings(Settings):
    """Public settings of Private Evolution."""

    generator: str = setting(
        "auto",
        "What makes and varies images: public (public images, changed and mixed with similar ones), drawn (the same of "
        "patterns that a program draws), eigen (steps along the principal directions of either), or your own "
        "module:function. auto is public where there are public images and drawn elsewhere.",
    )
    features: FeatureSpace | Auto = setting(
        "auto",
        "The fixed space in which an image's nearest candidates are found. auto is pretrained (a network trained on "
        "ImageNet) where images are in colour, have 24 pixels or more and the extra is installed, else wavelets.",
    )
    rounds: int = setting(6, "Votes, each a release of its own.", least=1, most=1000)
    candidates: int | Auto = setting(
        "auto", "Of each class; auto is as many as still get more votes than noise.", least=2, most=100_000
    )
    votes: int = setting(1, "Nearest candidates that an image votes for, with 1/sqrt(votes) each.", least=1)
    lookahead: int = setting(
        0, "Variations whose mean feature stands for a candidate; 0 is its own feature.", least=0, most=100
    )
    threshold: float | Auto = setting(
        "auto", "What is taken off every count before it counts, in deviations of the noise.", least=0
    )
    kept: float = setting(
        0.5, "Share of the next candidates that are survivors as they are; 0 varies all, as in the paper.",
        least=0, below=1,
    )  # fmt: skip
    degree: float = setting(0.8, "How far variations go after the first round.", least=0, most=1)
    last_degree: float = setting(0.2, "How far they go after the last round but one.", least=0, most=1)
    release_degree: float | Auto = setting(
        "auto",
        "How far variations go in the release; auto is 1 where a classifier labels what is stored, else last_degree.",
        least=0,
        most=1,
    )
    mixing: float = setting(
        1.0, "How much of a similar public image a variation takes, at the degree 1; 0 is none.", least=0, most=1
    )
    flip: bool = setting(False, "Let variations be mirrored; right for faces, wrong for digits.")
    pool: int = setting(12_000, "Public images or drawn patterns to evolve from, at most.", least=20)
    teacher_share: float = setting(
        0.5, "Share of the privacy spent on a classifier that labels the release; 0 leaves it out.", least=0, below=1
    )

    def check(self) -> None:
        """A generator has a known name or is the user's own; an image cannot vote for more than there are."""
        super().check()
        if self.generator not in GENERATORS and ":" not in self.generator:
            raise InputError(
                f"Expected generator to be one of {', '.join(GENERATORS)} or module:function, got {self.generator!r}."
            )
        if self.candidates != "auto" and self.votes > self.candidates:
            raise InputError(f"Expected votes of at most candidates={self.candidates}, got {self.votes}.")
        if self.last_degree > self.degree:
            raise InputError(f"Expected last_degree of at most degree={self.degree:g}, got {self.last_degree:g}.")

    def degree_after(self, number: int) -> float:
        """How far variations go after round `number`, counted from 1: from `degree` evenly to `last_degree`."""
        if self.rounds == 1:
            return self.last_degree
        return self.degree + (self.last_degree - self.degree) * (number - 1) / (self.rounds - 1)


@dataclass(frozen=True, kw_only=True)
class EvolvePlan(MethodPlan):
    """One Gaussian for each round's votes and, where it has a share, the classifier; and what rules chose."""

    settings: EvolveSettings
    teacher: TeacherPlan | None
    rounds: tuple[Event, ...]
    space: FeatureSpace
    candidates: int
    """Of each class."""
    threshold: float
    """In deviations of the noise."""
    release_degree: float

    def public_weights(self) -> dict[str, str]:
        """Those of the classifier's features, and of the space in which images vote."""
        own = {PRETRAINED: PUBLISHED[PRETRAINED].sha256} if self.space == "pretrained" else {}
        return super().public_weights() | own


_SMALL_PRETRAINED = {"features": "pretrained", "teacher_share": 0.0, "mixing": 0.0, "rounds": 1}


class Evolve(Method):
    """Private Evolution."""

    name = "evolve"
    title = "Images that private ones vote for (Private Evolution)"
    paper = "Lin et al., ICLR 2024, https://arxiv.org/abs/2305.15560"
    claim_of_paper = (
        "The claim holds: each round is a Gaussian histogram of one vote per image, and the rounds are composed."
    )
    version = 2
    guarantee = "dp"
    takes_findings = True
    releases = ("images", "labels", "soft_labels")
    settings_type = EvolveSettings
    settings: EvolveSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"rounds": 3, "pool": 3000},
        "paper": {"rounds": 10, "kept": 0.0, "lookahead": 8, "mixing": 0.0, "threshold": 2.0, "teacher_share": 0.0},
    }
    smallest: ClassVar[Mapping[str, Any]] = {"rounds": 2, "candidates": 6, "pool": 60}
    forms = (
        AuditForm(form="votes and classifier", settings=smallest, runs=300),
        AuditForm(form="three votes each", settings={**smallest, "votes": 3, "lookahead": 2, "teacher_share": 0.0}),
        AuditForm(form="principal directions", settings={**smallest, "generator": "eigen", "teacher_share": 0.0}),
        *(  # where their weights are on this machine
            [AuditForm(form="pretrained features", settings={**smallest, **_SMALL_PRETRAINED}, runs=200)]
            if is_installed(PRETRAINED)
            else []
        ),
    )

    @property
    def requires_public(self) -> bool:
        """Only where the settings name public images."""
        return self.settings.generator == "public"

    def plan(self, facts: PublicFacts, budget: Budget) -> EvolvePlan:
        """Share the budget between the classifier and the rounds, which all have the same noise."""
        config = self.settings
        share = config.teacher_share
        if facts.findings and not share:
            raise InputError(
                "teacher_share=0 needs one class for each image: without a classifier nothing tells an image's other "
                "findings. Give it a share, or pass --findings-as classes."
            )

        def all_rounds(noise: float) -> Event:
            return Event(label="votes", noise_multiplier=noise, count=config.rounds)

        parts = [Part(event=all_rounds, share=1 - share)]
        draft = draft_teacher(facts, budget) if share else None
        if draft is not None:
            parts.insert(0, Part(event=draft.event, share=share))
        shared = share_budget(budget, parts)
        rounds = tuple(
            replace(shared[-1], label=f"votes of round {number}", count=1) for number in range(1, config.rounds + 1)
        )
        noise = rounds[0].noise_multiplier
        teacher = None if draft is None else draft.at(shared[0].noise_multiplier)
        votes_of_a_class = facts.units / kind_count(facts) * math.sqrt(config.votes)
        candidates = candidate_count(votes_of_a_class, noise) if config.candidates == "auto" else config.candidates
        if config.votes > candidates:
            raise InputError(
                f"Expected votes of at most {candidates}, the candidates of a class, got {config.votes}. Set both."
            )
        space, why = self._space(facts)
        threshold = _NOISE_EXPLAINS if config.threshold == "auto" else config.threshold
        release_degree = config.release_degree
        if release_degree == "auto":
            release_degree = config.last_degree if teacher is None else 1.0
        return EvolvePlan(
            budget=budget,
            events=(*(() if teacher is None else (teacher.event,)), *rounds),
            facts={
                "candidates of a class": candidates,
                "votes for a candidate, on average": votes_of_a_class / candidates,
                "noise on them": noise,
            },
            settings=config,
            decided=self._decisions(candidates, threshold, release_degree)
            | ({"features": Decision(value=space, why=why)} if config.features == "auto" else {}),
            teacher=teacher,
            rounds=rounds,
            space=space,
            candidates=candidates,
            threshold=threshold,
            release_degree=release_degree,
        )

    def _space(self, facts: PublicFacts) -> tuple[FeatureSpace, str]:
        """Where votes are cast, and why: by public facts alone, as for teachers."""
        if self.settings.features == "pretrained":
            require_installed(PRETRAINED)
        if self.settings.features != "auto":
            return self.settings.features, "set"
        known = facts.shape[2] == _COLOUR  # grey pictures, however large, are told apart by wavelets
        found, why = choose_features(facts)
        return ("pretrained" if known and found != "wavelets" else "wavelets"), why

    def _decisions(self, candidates: int, threshold: float, release_degree: float) -> dict[str, Decision]:
        decided = {
            "candidates": Decision(
                value=candidates, why="so many still get more votes than there is noise, if each is liked alike"
            ),
            "threshold": Decision(value=threshold, why="fewer votes are likely to be noise"),
            "release_degree": Decision(
                value=release_degree,
                why="a classifier sees what variations became, and without one they must stay near",
            ),
        }
        return {name: found for name, found in decided.items() if getattr(self.settings, name) == "auto"}


def kind_count(facts: PublicFacts) -> int:
    """How many populations evolve: one for each class; of findings, one for each and one for images without any."""
    return facts.classes + (1 if facts.findings else 0)


def candidate_count(votes_of_a_class: float, noise: float) -> int:
    """How many candidates a class can have: as many as get twice the noise in votes, on average."""
    return max(_FEWEST_CANDIDATES, min(_MOST_CANDIDATES, int(votes_of_a_class / (_VOTES_OVER_NOISE * noise))))
