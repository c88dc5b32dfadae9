"""sanitized_gan: settings, plan and what the method is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, Auto, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.facts import require_square
from veilset.methods.shared.generated_config import GeneratedSettings
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import TeacherPlan
from veilset.teachers.planning import TeacherDraft, draft_teacher

_ANSWERS = "critics"
_FEWEST_UNITS_PER_CRITIC = 5
_FEWEST_POINTS = 8
_LARGEST_SEEN = 64
_COARSE_SIDE = 14


# The thesis' sizes; it gives neither learning rates nor the generator's width.
_THESIS: Mapping[str, Any] = {
    "critic": "image", "most_critics": 100, "points": 32, "clip_norm": 1.0, "generator": "dcgan", "latent_size": 100,
    "learning_rate": 1e-4, "critic_rate": 1e-4, "steps": 2000, "critic_batch": 32, "width": 128,
}  # fmt: skip


class SanitizedGanSettings(GeneratedSettings):
    """Public settings of sanitized_gan."""

    scheme: Literal["together", "in_turn"] = setting(
        "together", "All critics answer at every step and their mean is noised, or one after the other does."
    )
    critic: Literal["code", "image"] = setting(
        "code",
        "A small critic on fixed codes of the images, noised there (code), or a convolutional critic, noised at the "
        "pixels, as in the thesis (image).",
    )
    critics: int | Auto = setting(
        "auto",
        "Number of shards. The rule: one for every five units, at most most_critics; in turn also at most as many as "
        "there are steps, so that each is visited.",
        least=2,
    )
    most_critics: int = setting(2500, "Of the rule for critics.", least=2)
    steps: int = setting(100, "Noised answers, each of which moves the generator once.", least=1)
    points: int | Auto = setting(
        "auto", "Generated images of an answer. The rule: two of each class, at least eight.", least=1
    )
    clip_norm: float = setting(
        0.01, "Of a whole answer; answers are usually longer, so that all count alike.", **CLIP_NORM
    )
    critic_updates: int = setting(5, "Updates of a critic before each answer.", least=1)
    warmup: int = setting(50, "Updates of a critic before its first.", least=0)
    critic_batch: int = setting(
        16, "Generated rows of an update; each is set against a private one of its class.", least=1
    )
    critic_rate: float = setting(3e-3, "Learning rate of the critics.", **RATE)
    penalty: float = setting(10.0, "Weight of the gradient penalty.", least=0)
    hidden: int = setting(0, "Units of the hidden layer of a code critic; 0 is a linear map for each class.", least=0)
    code_size: int = setting(64, "Coordinates of a code.", least=2)
    brightness: float = setting(
        1.0, "Length of the coarse picture that stands beside a code, which has length 1.", least=0
    )
    pictures: int = setting(2000, "Drawn pictures that fix the codes.", least=3)
    generator: Literal["modulated", "smooth", "dcgan", "resnet"] = setting("modulated", "Network of the generator.")
    latent: Literal["gaussian", "bernoulli"] = setting("gaussian", "Numbers that the generator is fed.")
    latent_size: int = setting(64, "How many.", least=1)
    width: int = setting(64, "Of the generator.", least=16, multiple_of=16)
    learning_rate: float = setting(2e-3, "Of the generator.", **RATE)
    ema_decay: float = setting(0.95, "Of the average of the generator's weights.", least=0, below=1)
    teacher_share: float = setting(
        0.0,
        "Share of the privacy for a classifier that labels the released images; 0 leaves the labels to the generator, "
        "as in the thesis.",
        least=0,
        below=1,
    )
    teacher_weight: float = setting(
        0.3,
        "Of that classifier's cross-entropy to the class asked for, while the generator learns.",
        least=0,
    )
    teacher_images: int = setting(30, "Generated images of a step that it looks at.", least=1)
    least_difference: float = setting(
        0.0,
        "Of two generated images of one class, pixels in [0, 1]; less is pushed apart, against collapse. 0 leaves it "
        "out.",
        least=0,
    )
    published_noise: float = setting(1.02, "Noise multiplier of --as-published, 1.02 or 0.07 in the thesis.", above=0)

    def check(self) -> None:
        """A code needs more pictures than it has numbers."""
        super().check()
        if self.code_size >= self.pictures:
            raise InputError(
                f"Expected code_size < pictures, got {self.code_size} and {self.pictures}. Lower code_size."
            )

    @property
    def codes(self) -> int:
        """Coordinates of the code that a critic sees; 0 where it sees the image itself."""
        return self.code_size if self.critic == "code" else 0


@dataclass(frozen=True, kw_only=True)
class SanitizedGanPlan(MethodPlan):
    """One event for the answers of all critics, or one for each critic, and the classifier where it has a share.

    Args:
        critics: number of shards.
        shape: of an answer: points, and the coordinates of each.
        answers: events; none `--as-published`.
        teacher: the classifier.
    """

    settings: SanitizedGanSettings
    critics: int
    shape: tuple[int, ...]
    answers: tuple[Event, ...]
    teacher: TeacherPlan | None


class SanitizedGan(Method):
    """A Wasserstein GAN with critics on disjoint shards, of which only noised gradients leave."""

    name = "sanitized_gan"
    title = "Sanitized Wasserstein GAN"
    paper = "Chen, Orekondy, Fritz, NeurIPS 2020, https://arxiv.org/abs/2006.08265, and the thesis that follows it"
    claim_of_paper = (
        "The claims do not hold: in the thesis one critic sees all records at every step, so nothing is "
        "subsampled, and in GS-WGAN a batch of one critic is counted as so many fresh draws."
    )
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    settings_type = SanitizedGanSettings
    settings: SanitizedGanSettings
    published_settings = _THESIS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "labelled": {"teacher_share": 0.3},
        # For a few thousand units: fewer noised coordinates, images no finer than those, critics that keep up.
        "few": {
            "generator": "smooth", "image_noise": 0.3, "code_size": 16, "critic_updates": 20, "learning_rate": 1e-3,
        },
        "fast": {"steps": 30, "most_critics": 100, "warmup": 20, "pictures": 600, "code_size": 32},
        "paper": _THESIS,
    }  # fmt: skip
    smallest: ClassVar[Mapping[str, Any]] = {
        "steps": 3, "critics": 4, "pictures": 40, "code_size": 8, "warmup": 1,
    }  # fmt: skip
    _audited: ClassVar[Mapping[str, Any]] = {
        "critics": 2, "steps": 4, "warmup": 2, "critic_updates": 2, "pictures": 40, "code_size": 8,
    }  # fmt: skip
    forms = (
        AuditForm(form="all critics together", settings=_audited, records=4),
        AuditForm(form="critics in turn", settings={**_audited, "scheme": "in_turn"}, records=4),
    )
    published_reason = (
        "The thesis trains one critic on all records: every step reads all of them, nothing is subsampled, and the "
        "gradient penalty bounds no gradient. Its noise multiplier of 1.02 over 2,000 steps of 32 images costs an "
        "epsilon of tens of thousands."
    )

    def plan(self, facts: PublicFacts, budget: Budget) -> SanitizedGanPlan:
        """As many Gaussians as steps, of the whole vault or of each shard; a classifier may have a share."""
        require_square(facts)
        config, shape = self.settings, answer_shape(self.settings, facts)
        if self.as_published:
            return SanitizedGanPlan(
                budget=budget,
                settings=config,
                as_published=True,
                events=(),
                critics=1,
                shape=shape,
                answers=(),
                teacher=None,
            )
        critics = self._critics(facts)
        draft = draft_teacher(facts, budget) if config.teacher_share else None
        together = Event(label=_ANSWERS, noise_multiplier=1.0, count=config.steps)
        # One shard costs what all do, so the first is enough to find the noise.
        visits = math.ceil(config.steps / critics)
        in_turn = Event(label=_ANSWERS, noise_multiplier=1.0, count=visits, partition=_ANSWERS, shard=0)
        priced = {"together": self._priced(budget, together, draft), "in_turn": self._priced(budget, in_turn, draft)}
        *labels, chosen = priced[config.scheme]
        answers = (chosen,) if chosen.shard is None else tuple(replace(chosen, shard=shard) for shard in range(critics))
        of_together, of_in_turn = (priced[scheme][-1].noise_multiplier for scheme in ("together", "in_turn"))
        return SanitizedGanPlan(
            budget=budget,
            settings=config,
            events=(*labels, *answers),
            facts={
                "critics": critics,
                "noise on a coordinate of the mean answer, together, in clip norms": 2 * of_together / critics,
                "noise on a coordinate of an answer, in turn, in clip norms": 2 * of_in_turn,
                "a coordinate of an answer, in clip norms": 1 / math.sqrt(math.prod(shape)),
            },
            decided=self._decisions(critics, shape[0], facts),
            critics=critics,
            shape=shape,
            answers=answers,
            teacher=None if draft is None else draft.at(labels[0].noise_multiplier),
        )

    def _priced(self, budget: Budget, answers: Event, draft: TeacherDraft | None) -> list[Event]:
        """The classifier's event, where it has a share, and that of the answers, with the noise that they need."""
        share = self.settings.teacher_share
        parts = [Part(event=lambda noise: replace(answers, noise_multiplier=noise), share=1 - share)]
        if draft is not None:
            parts.insert(0, Part(event=draft.event, share=share))
        return share_budget(budget, parts)

    def _critics(self, facts: PublicFacts) -> int:
        config, most = self.settings, facts.units // _FEWEST_UNITS_PER_CRITIC
        wanted = min(config.most_critics, config.steps if config.scheme == "in_turn" else most)
        critics = max(2, min(most, wanted)) if config.critics == "auto" else config.critics
        if critics > most:
            raise InputError(
                f"Expected 2 to {most} critics for {facts.units} {facts.unit}s (at least {_FEWEST_UNITS_PER_CRITIC} "
                f"for each), got {critics}. Set critics, or take a method without shards."
            )
        return critics

    def _decisions(self, critics: int, points: int, facts: PublicFacts) -> dict[str, Decision]:
        decided = {}
        if self.settings.critics == "auto":
            why = f"there are {facts.units} {facts.unit}s and most_critics is {self.settings.most_critics}"
            decided["critics"] = Decision(value=critics, why=why)
        if self.settings.points == "auto":
            decided["points"] = Decision(value=points, why=f"there are {facts.classes} classes")
        return decided


def answer_shape(settings: SanitizedGanSettings, facts: PublicFacts) -> tuple[int, ...]:
    """Points, and the coordinates of each of them: what critics see of an image."""
    points = max(_FEWEST_POINTS, 2 * facts.classes) if settings.points == "auto" else settings.points
    size, _, channels = facts.shape
    if not settings.codes:
        return points, channels, size, size
    side = seen_side(size)
    return points, settings.codes + channels * (side // shrinking(side)) ** 2


def seen_side(size: int) -> int:
    """The side at which critics of codes see images of `size` pixels: an answer has no more coordinates for larger."""
    return min(_LARGEST_SEEN, size)


def shrinking(size: int) -> int:
    """How many pixels of a side become one of the coarse picture."""
    return max(1, size // _COARSE_SIDE)
