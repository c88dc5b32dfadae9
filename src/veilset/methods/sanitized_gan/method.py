"""sanitized_gan: a Wasserstein GAN whose critics keep their gradients clean until they flow into the generator.

Thesis, chapter 3, after Chen, Orekondy, Fritz, "GS-WGAN" (NeurIPS 2020):
critics learn without noise and are never released; what flows from them into a generated image is clipped and noised.

What we changed, because the published accounts do not hold (docs/sanitized_gan.md): critics of disjoint shards, each
with an answer that is clipped whole, all rows of the batch together; no amplification by sampling, since every critic
sees its shard all the time; an explicit clip, since a gradient penalty bounds nothing. And what we added, because
honest noise is large: the critics may score fixed codes of the images, which have far fewer coordinates than pixels,
and there may be thousands of them.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 2 `clip_norm` of a critic's whole answer or of the
sum of all answers; events `steps` Gaussians (`scheme=together`), or one for each visit of a shard, shards in parallel
(`scheme=in_turn`); assumes codes fixed by drawn pictures, and nothing of the critics but the noisy sums
(privacy/mechanisms/shard_critics.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.methods.base import Config, Context
from veilset.methods.sanitized_gan.critic_view import Sight, seen_shape
from veilset.methods.sanitized_gan.critics import CodeCritic, CriticTraining
from veilset.methods.shared.adversarial import AdversarialMethod
from veilset.methods.shared.class_statistics import require_square
from veilset.methods.shared.critics import build_critic
from veilset.methods.shared.fitted_generator import FittedGenerator, plan_labels, train_labels
from veilset.methods.shared.gan import GeneratorTraining
from veilset.models.generators.conditional import build_generator
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.shard_critics import Critics, Query
from veilset.privacy.mechanisms.shard_rows import ShardRows
from veilset.privacy.session import Session
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import Public, PublicFacts

_ANSWERS = "critics"
_CHECKPOINT_EVERY = 10
_FEWEST_UNITS_PER_CRITIC = 5
_FEWEST_POINTS = 8
# Noise on a coordinate of an answer, in sizes of that coordinate, past which little is left to follow.
_DROWNED = 20.0


@dataclass(frozen=True, kw_only=True)
class SanitizedGanConfig(Config):
    """Public settings.

    Args:
        scheme: "together": all critics answer at every step and their mean is noised; "in_turn": one after the other.
        critic: "code": a small critic on fixed codes of the images, noised there; "image": a convolutional critic,
            noised at the pixels, as in the thesis.
        critics: number of shards; 0 is the rule: one for every five units, at most `most_critics`; in turn also at most
            as many as there are steps, so that each is visited.
        most_critics: of the rule.
        steps: noised answers, each of which moves the generator once.
        points: generated images of an answer; 0 is the rule: two of each class, at least eight.
        clip_norm: of a whole answer; answers are usually longer, so that all count alike.
        critic_updates: updates of a critic before each answer.
        warmup: updates of a critic before its first.
        critic_batch: generated rows of an update; each is set against a private one of its class.
        critic_rate: learning rate of the critics.
        penalty: weight of the gradient penalty.
        hidden: units of the hidden layer of a code critic; 0 is a linear map for each class.
        code_size: coordinates of a code.
        brightness: length of the coarse picture that stands beside a code, which has length 1.
        pictures: drawn pictures that fix the codes.
        generator: network of the generator.
        latent: what the generator is fed: "gaussian" or "bernoulli" numbers.
        latent_size: how many.
        width: of the generator.
        learning_rate: of the generator.
        ema_decay: of the average of the generator's weights.
        teacher_share: share of the privacy for a classifier that labels the released images; 0 leaves the labels to the
            generator, as in the thesis. Not for a federation.
        teacher_weight: of that classifier's cross-entropy to the class asked for, while the generator learns.
        teacher_images: generated images of a step that it looks at.
        grain: largest strength of noise on released images, so that no student counts on their being smooth.
        published_noise: noise multiplier of `--as-published`, 1.02 or 0.07 in the thesis.
    """

    scheme: Literal["together", "in_turn"] = "together"
    critic: Literal["code", "image"] = "code"
    critics: int = 0
    most_critics: int = 2500
    steps: int = 100
    points: int = 0
    clip_norm: float = 0.01
    critic_updates: int = 5
    warmup: int = 50
    critic_batch: int = 16
    critic_rate: float = 3e-3
    penalty: float = 10.0
    hidden: int = 0
    code_size: int = 64
    brightness: float = 1.0
    pictures: int = 2000
    generator: Literal["modulated", "smooth", "dcgan", "resnet"] = "modulated"
    latent: Literal["gaussian", "bernoulli"] = "gaussian"
    latent_size: int = 64
    width: int = 64
    learning_rate: float = 2e-3
    ema_decay: float = 0.95
    teacher_share: float = 0.0
    teacher_weight: float = 0.3
    teacher_images: int = 30
    grain: float = 0.0
    published_noise: float = 1.02

    def __post_init__(self) -> None:
        for name in ("steps", "critic_updates", "critic_batch", "latent_size", "teacher_images"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        for name in ("clip_norm", "critic_rate", "learning_rate", "published_noise"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")
        if self.critics < 0 or self.critics == 1 or self.points < 0:
            raise InputError(
                f"Expected critics 0 (the rule) or at least 2 and points >= 0, got {self.critics} and {self.points}."
            )
        if min(self.warmup, self.penalty, self.hidden, self.teacher_weight) < 0 or not 0 <= self.ema_decay < 1:
            raise InputError(
                "Expected warmup, penalty, hidden and teacher_weight >= 0 and ema_decay in [0, 1), got "
                f"{self.warmup}, {self.penalty}, {self.hidden}, {self.teacher_weight} and {self.ema_decay}."
            )
        if not 0 <= self.teacher_share < 1 or not 0 <= self.grain < 1:
            raise InputError(f"Expected teacher_share and grain in [0, 1), got {self.teacher_share}, {self.grain}.")
        if not 2 <= self.code_size < self.pictures:
            raise InputError(
                f"Expected 2 <= code_size < pictures, got {self.code_size} and {self.pictures}. Lower code_size."
            )


class SanitizedGan(AdversarialMethod):
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
    config_type = SanitizedGanConfig
    config: SanitizedGanConfig
    _noise = 0.0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "labelled": {"teacher_share": 0.3},
        # For a few thousand units: fewer noised coordinates, images no finer than those, critics that keep up.
        "few": {"generator": "smooth", "grain": 0.3, "code_size": 16, "critic_updates": 20, "learning_rate": 1e-3},
        "fast": {"steps": 30, "most_critics": 100, "warmup": 20, "pictures": 600, "code_size": 32},
        "paper": {
            "critic": "image", "most_critics": 100, "points": 32, "generator": "dcgan", "latent_size": 100,
            "learning_rate": 1e-4, "critic_rate": 1e-4, "steps": 2000, "critic_batch": 32, "width": 128,
        },
    }  # fmt: skip
    published_reason = (
        "The thesis trains one critic on all records: every step reads all of them, nothing is subsampled, and the "
        "gradient penalty bounds no gradient. Its noise multiplier of 1.02 over 2,000 steps of 32 images costs an "
        "epsilon of tens of thousands."
    )

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """As many Gaussians as steps, of the whole vault or of each shard; a classifier may have a share."""
        require_square(facts)
        if self.as_published:
            return Plan(budget=budget, events=())
        critics = self._critics(facts)
        visits = math.ceil(self.config.steps / critics)

        together = Event(label=_ANSWERS, noise_multiplier=1.0, count=self.config.steps)
        # One shard costs what all do, so the first is enough to find the noise.
        in_turn = Event(label=_ANSWERS, noise_multiplier=1.0, count=visits, partition=_ANSWERS, shard=0)
        plans = {"together": self._priced(facts, budget, together), "in_turn": self._priced(facts, budget, in_turn)}
        *teacher, answers = plans[self.config.scheme]
        if answers.shard is None:
            chosen = [*teacher, answers]
        else:
            chosen = [*teacher, *(replace(answers, shard=shard) for shard in range(critics))]
        of_together, of_in_turn = (plans[scheme][-1].noise_multiplier for scheme in ("together", "in_turn"))
        return Plan(
            budget=budget,
            events=tuple(chosen),
            facts={
                "critics": critics,
                "noise on a coordinate of the mean answer, together, in clip norms": 2 * of_together / critics,
                "noise on a coordinate of an answer, in turn, in clip norms": 2 * of_in_turn,
                "a coordinate of an answer, in clip norms": 1 / math.sqrt(math.prod(answer_shape(self.config, facts))),
            },
        )

    def fit(self, session: Session, public: Public | None, context: Context) -> None:  # noqa: ARG002
        """Let the critics learn and answer, and the generator follow their noised answers."""
        rounds = self.begin(session.facts, context)
        if self.as_published:
            self._fit_as_published(session, rounds, context)
            return
        rounds.teacher = train_labels(session, context) if self.config.teacher_share else None
        critics = self.open_critics(session, context)
        state = critics.kept()
        if state is not None:
            rounds.training.load(state)
        asked = critics.critics if critics.together else 1
        self._noise = 2 * critics.events[0].noise_multiplier / asked * math.sqrt(math.prod(rounds.shape))
        cold = 1 if critics.together else critics.critics  # visits until every critic has made its first
        with context.progress.task("training the generator", critics.steps_left) as task:
            while critics.steps_left:
                query = rounds.query(warm=cold <= 0)
                rounds.follow(critics.step(query), asked)
                cold -= 1
                task.advance()
                if rounds.training.step % _CHECKPOINT_EVERY == 0:
                    critics.keep(rounds.training.state())
        self.adopt(rounds, session.facts)

    def warnings(self) -> list[str]:
        """What images show, and that there was little but noise to follow, which images may hide."""
        drowned = (
            f"The noise on the critics' answers is {self._noise:.0f} times the answers: the generator can hardly have "
            "learnt from them. Take scheme=together, more critics, fewer points or a larger epsilon."
        )
        return [*super().warnings(), *([drowned] if self._noise > _DROWNED else [])]

    def begin(self, facts: PublicFacts, context: Context) -> "Rounds":
        """1. Fix what critics see of an image, and what generator and critics start as. Reads no data."""
        return Rounds(self.config, facts, context)

    def open_critics(self, session: Session, context: Context) -> Critics:
        """The critics of a session's vault, for all visits of its plan."""
        rounds = self.begin(session.facts, context)
        return session.critics(
            rounds.critic,
            rounds.sight.rows,
            label=_ANSWERS,
            critics=self._critics(session.facts),
            shape=rounds.shape,
            clip_norm=self.config.clip_norm,
        )

    def adopt(self, rounds: "Rounds", facts: PublicFacts) -> None:
        """4. Take the trained generator."""
        self._fitted = FittedGenerator(
            generator=rounds.training.finish(),
            teacher=rounds.teacher,
            facts=facts,
            device=rounds.training.device,
            bernoulli=self.config.latent == "bernoulli",
            grain=self.config.grain,
        )

    def _priced(self, facts: PublicFacts, budget: Budget, answers: Event) -> list[Event]:
        """The classifier's event, where it has a share, and that of the answers, with the noise that they need."""
        share = self.config.teacher_share
        parts = [Part(event=lambda noise: replace(answers, noise_multiplier=noise), share=1 - share)]
        if share:
            parts.insert(0, Part(event=lambda noise: plan_labels(facts, budget, noise)[1], share=share))
        return share_budget(budget, parts)

    def _critics(self, facts: PublicFacts) -> int:
        most = facts.units // _FEWEST_UNITS_PER_CRITIC
        wanted = min(self.config.most_critics, self.config.steps if self.config.scheme == "in_turn" else most)
        critics = self.config.critics or max(2, min(most, wanted))
        if critics > most:
            raise InputError(
                f"Expected 2 to {most} critics for {facts.units} {facts.unit}s (at least {_FEWEST_UNITS_PER_CRITIC} "
                f"for each), got {critics}. Set critics, or take a method without shards."
            )
        return critics

    def _fit_as_published(self, session: Session, rounds: "Rounds", context: Context) -> None:
        """One critic on all records, rows clipped one by one, noise as in the thesis. No guarantee."""
        config, critic, records = self.config, rounds.critic, session.records_without_guarantee()
        labels = torch.tensor(records.labels)
        images = torch.tensor(records.read(np.arange(len(labels))))
        rows = torch.cat([rounds.sight.rows(part, part) for part in torch.split(images, 500)])
        everything = ShardRows.of([(rows, labels)], classes=session.facts.classes, width=rows.shape[1])
        state, whole = critic.start(), slice(0, 1)
        coins, pairs = (torch_generator(context.seed, f"published {kind}") for kind in ("noise", "pairs"))
        with context.progress.task("training the generator", config.steps) as task:
            for step in range(config.steps):
                query = rounds.query(warm=step > 0)
                for fakes, classes in zip(query["fakes"], query["fake_labels"], strict=True):
                    drawn = torch.rand(2, 1, len(classes), generator=pairs)
                    real, known = everything.drawn(whole, classes, drawn[0])
                    state = critic.learn(state, real[0], known[0], drawn[1, 0], fakes, classes)
                answer = critic.answer(state, everything.held(whole)[0], query)
                lengths = answer.flatten(1).norm(dim=1).clamp(min=1.0).view(-1, *(1 for _ in critic.shape))
                noise = config.published_noise * torch.randn(answer.shape, generator=coins)
                rounds.follow((answer / lengths + noise).detach(), len(answer))
                task.advance()
        self.adopt(rounds, session.facts)


class Rounds:
    """The public side of the training: a generator, and what critics see of its images."""

    def __init__(self, config: SanitizedGanConfig, facts: PublicFacts, context: Context) -> None:
        self.config, (size, _, channels) = config, facts.shape
        self.sight = Sight(
            facts.shape,
            code_size=_codes(config),
            brightness=config.brightness,
            pictures=config.pictures,
            seed=context.seed,
            device=context.device,
        )
        self.shape = answer_shape(config, facts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(context.seed, "shard critics"))
            critic = (
                CodeCritic(self.shape[1], facts.classes, config.hidden)
                if config.critic == "code"
                else build_critic("dcgan", size=size, channels=channels, classes=facts.classes, width=16, norm="none")
            )
        self.critic = CriticTraining(
            critic=critic,
            shape=self.shape[1:],
            learning_rate=config.critic_rate,
            penalty=config.penalty,
        )
        generator = build_generator(
            config.generator,
            size=size,
            channels=channels,
            classes=facts.classes,
            latent_size=config.latent_size,
            width=config.width,
            seed=context.seed,
        )
        self.training = GeneratorTraining(
            generator,
            learning_rate=config.learning_rate,
            ema_decay=config.ema_decay,
            seed=context.seed,
            device=context.device,
            bernoulli=config.latent == "bernoulli",
        )
        self.teacher: nn.Module | None = None
        self._seen: Tensor | None = None

    def query(self, *, warm: bool) -> Query:
        """2. Generated batches for the critics to learn against, more of them before the first answer, and points."""
        count, updates = self.config.critic_batch, self.config.critic_updates + (0 if warm else self.config.warmup)
        with torch.no_grad():
            images, labels = self.training.draw(updates * count, "for the critics")
            fakes = self.sight.points(images)
        images, point_labels = self.training.draw(self.shape[0], "to be scored")
        self._seen = self.sight.points(images)
        query = {
            "fakes": fakes.view(updates, count, *fakes.shape[1:]),
            "fake_labels": labels.view(updates, count),
            "points": self._seen.detach(),
            "labels": point_labels,
        }
        return {name: value.cpu() for name, value in query.items()}

    def follow(self, answer: Tensor, asked: int) -> None:
        """3. Move the generator along the noised sum of the clipped answers of so many critics."""
        if self._seen is None:
            raise VeilsetError("An answer needs a query first.")
        direction = (answer / (asked * self.config.clip_norm)).to(self._seen)
        self.training.descend(self._classified() - (self._seen * direction).sum())
        self._seen = None

    def _classified(self) -> Tensor:
        """What the private classifier, where there is one, misses of the classes that were asked for."""
        if self.teacher is None or not self.config.teacher_weight:
            return torch.zeros((), device=self.training.device)
        images, labels = self.training.draw(self.config.teacher_images, "to be classified")
        return self.config.teacher_weight * functional.cross_entropy(self.teacher(images), labels)


def answer_shape(config: SanitizedGanConfig, facts: PublicFacts) -> tuple[int, ...]:
    """Points, and the coordinates of each of them."""
    return config.points or max(_FEWEST_POINTS, 2 * facts.classes), *seen_shape(facts.shape, _codes(config))


def _codes(config: SanitizedGanConfig) -> int:
    return config.code_size if config.critic == "code" else 0
