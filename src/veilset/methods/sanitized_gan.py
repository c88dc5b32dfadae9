"""sanitized_gan: a Wasserstein GAN whose critics keep their gradients clean until they flow into the generator.

Thesis, chapter 3 (../shared/papers/sanitized-wgan-and-pldk.txt), after Chen, Orekondy, Fritz, "GS-WGAN" (NeurIPS 2020):
critics learn without noise and are never released; what flows from them into a generated image is clipped and noised.

What we changed, because the published accounts do not hold (docs/sanitized_gan.md): critics of disjoint shards, each
with an answer that is clipped whole, all rows of the batch together; no amplification by sampling, since every critic
sees its shard all the time; an explicit clip, since a gradient penalty bounds nothing. And what we added, because
honest noise is large: the critics may score fixed codes of the images, which have far fewer coordinates than pixels,
and there may be thousands of them.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 2 `clip_norm` of a critic's whole answer or of the
sum of all answers; events `steps` Gaussians (`scheme=together`), or one for each visit of a shard, shards in parallel
(`scheme=in_turn`); assumes codes fixed by drawn pictures, and nothing of the critics but the noisy sums
(privacy/critics.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.core.records import Records
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.models.critics import build_critic
from veilset.models.embeddings import ImageEmbedding
from veilset.models.generators import build_generator, description_of
from veilset.models.patterns import drawn_patterns
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.critics import Query
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms import Session
from veilset.privacy.vault import PublicFacts
from veilset.training.class_statistics import as_floats, require_square
from veilset.training.gan import GeneratorTraining, even_labels, sample_images
from veilset.training.gan_health import inspect, require_finite
from veilset.training.shard_critics import CodeCritic, CriticTraining

_ANSWERS = "critics"
_LOOKED_AT = 100  # images of each class that are inspected for collapse
_CHECKPOINT_EVERY = 10
_FEWEST_UNITS_PER_CRITIC = 5


@dataclass(frozen=True, kw_only=True)
class SanitizedGanConfig(Config):
    """Public settings.

    Args:
        scheme: "together": all critics answer at every step and their mean is noised; "in_turn": one after the other.
        critic: "code": a small critic on fixed codes of the images, noised there; "image": a convolutional critic,
            noised at the pixels, as in the thesis.
        critics: number of shards; 0 is the rule: one for every `units_per_critic` units.
        units_per_critic: of the rule.
        steps: noised answers, each of which moves the generator once.
        points: generated images of an answer.
        clip_norm: of a whole answer; answers are usually longer, so that all count alike.
        critic_updates: updates of a critic before each answer.
        warmup: updates of a critic before its first.
        critic_batch: private rows of an update.
        critic_rate: learning rate of the critics.
        penalty: weight of the gradient penalty.
        hidden: units of the hidden layer of a code critic; 0 is a linear map for each class.
        code_size: coordinates of a code.
        pictures: drawn pictures that fix the codes.
        generator: network of the generator.
        latent: what the generator is fed: "gaussian" or "bernoulli" numbers.
        latent_size: how many.
        width: of the generator.
        learning_rate: of the generator.
        ema_decay: of the average of the generator's weights.
        published_noise: noise multiplier of `--as-published`, 1.02 or 0.07 in the thesis.
    """

    scheme: Literal["together", "in_turn"] = "together"
    critic: Literal["code", "image"] = "code"
    critics: int = 0
    units_per_critic: int = 24
    steps: int = 200
    points: int = 20
    clip_norm: float = 0.01
    critic_updates: int = 5
    warmup: int = 50
    critic_batch: int = 16
    critic_rate: float = 3e-3
    penalty: float = 10.0
    hidden: int = 0
    code_size: int = 64
    pictures: int = 2000
    generator: Literal["modulated", "dcgan", "resnet"] = "modulated"
    latent: Literal["gaussian", "bernoulli"] = "gaussian"
    latent_size: int = 64
    width: int = 64
    learning_rate: float = 2e-3
    ema_decay: float = 0.95
    published_noise: float = 1.02

    def __post_init__(self) -> None:
        least_one = ("units_per_critic", "steps", "points", "critic_updates", "critic_batch", "latent_size")
        for name in least_one:
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        for name in ("clip_norm", "critic_rate", "learning_rate", "published_noise"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")
        if self.critics < 0 or self.critics == 1:
            raise InputError(f"Expected critics 0 (the rule) or at least 2, got {self.critics}.")
        if min(self.warmup, self.penalty, self.hidden) < 0 or not 0 <= self.ema_decay < 1:
            raise InputError(
                f"Expected warmup, penalty and hidden >= 0 and ema_decay in [0, 1), got {self.warmup}, {self.penalty}, "
                f"{self.hidden} and {self.ema_decay}."
            )
        if not 2 <= self.code_size < self.pictures:
            raise InputError(
                f"Expected 2 <= code_size < pictures, got {self.code_size} and {self.pictures}. Lower code_size."
            )


class SanitizedGan(Method):
    """A Wasserstein GAN with critics on disjoint shards, of which only noised gradients leave."""

    name = "sanitized_gan"
    title = "Sanitized Wasserstein GAN"
    paper = "Chen, Orekondy, Fritz, NeurIPS 2020, https://arxiv.org/abs/2006.08265, and the thesis that follows it"
    guarantee = "dp"
    releases = ("images", "labels", "generator")
    config_type = SanitizedGanConfig
    config: SanitizedGanConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 30, "units_per_critic": 60, "warmup": 20, "pictures": 600, "code_size": 32},
        "paper": {
            "critic": "image", "units_per_critic": 600, "points": 32, "generator": "dcgan", "latent_size": 100,
            "learning_rate": 1e-4, "critic_rate": 1e-4, "steps": 2000, "critic_batch": 32, "width": 128,
        },
    }  # fmt: skip
    published_reason = (
        "The thesis trains one critic on all records: every step reads all of them, nothing is subsampled, and the "
        "gradient penalty bounds no gradient. Its noise multiplier of 1.02 over 2,000 steps of 32 images costs an "
        "epsilon of tens of thousands."
    )

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """As many Gaussians as steps, of the whole vault or of each shard."""
        require_square(facts)
        if self.as_published:
            return Plan(budget=budget, events=())
        critics = self._critics(facts)
        visits = math.ceil(self.config.steps / critics)

        def together(noise: float) -> list[Event]:
            return [Event(label=_ANSWERS, noise_multiplier=noise, count=self.config.steps)]

        def in_turn(noise: float) -> list[Event]:
            return [
                Event(label=_ANSWERS, noise_multiplier=noise, count=visits, partition=_ANSWERS, shard=shard)
                for shard in range(critics)
            ]

        noise_together = calibrate(budget, together)
        # One shard costs what all do, so one is enough to find the noise.
        noise_in_turn = calibrate(budget, lambda noise: in_turn(noise)[:1])
        chosen = together(noise_together) if self.config.scheme == "together" else in_turn(noise_in_turn)
        return Plan(
            budget=budget,
            events=tuple(chosen),
            facts={
                "critics": critics,
                "noise on a coordinate of the mean answer, together, in clip norms": 2 * noise_together / critics,
                "noise on a coordinate of an answer, in turn, in clip norms": 2 * noise_in_turn,
                "a coordinate of an answer, in clip norms": 1 / math.sqrt(self.config.points * self._width(facts)),
            },
        )

    def fit(self, session: Session, public: Records | None, context: Context) -> None:  # noqa: ARG002
        """Let the critics learn and answer, and the generator follow their noised answers."""
        facts, config = session.facts, self.config
        training = self._generator_training(facts, context)
        # 1. Fix what the critics see of an image, and what each of them starts as.
        sight = _Sight.of(config, facts, context.seed, context.device)
        critic = self._critic_training(facts, context.seed)
        if self.as_published:
            self._fit_as_published(session, training, sight, critic, context)
            return
        critics = session.critics(
            critic.start(),
            critic.advance,
            sight.rows,
            label=_ANSWERS,
            critics=self._critics(facts),
            shape=(config.points, *critic.shape),
            clip_norm=config.clip_norm,
        )
        state = critics.kept()
        if state is not None:
            training.load(state)
        asked = critics.critics if critics.together else 1
        cold = 1 if critics.together else critics.critics  # visits until every critic has made its first
        with context.progress.task("training the generator", critics.steps_left) as task:
            while critics.steps_left:
                # 2. Generate batches for the critics to learn against, and the points that they are asked about.
                updates = config.critic_updates + (config.warmup if cold > 0 else 0)
                query, seen = self._query(training, sight, updates)
                cold -= 1
                # 3. Move the generator along the noised mean of the clipped answers.
                answer = critics.step(query) / (asked * config.clip_norm)
                training.descend(-(seen * answer.to(seen)).sum())
                task.advance()
                if critics.lease_used_up and training.step % _CHECKPOINT_EVERY == 0:
                    critics.keep(training.state())
        self._finish(training, facts)

    def sample(self, count: int, seed: int = 0) -> Samples:
        """4. Draw images of every class alike often."""
        if not hasattr(self, "_generator"):
            raise self.not_fitted()
        labels = even_labels(count, self._generator.classes)
        images = sample_images(self._generator, labels, seed, bernoulli=self.config.latent == "bernoulli")
        return Samples(images=images, labels=labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it."""
        if not hasattr(self, "_generator"):
            raise self.not_fitted()
        description = description_of(self._generator) | {"latent": self.config.latent}
        return {"generator": ReleasedModel(weights=self._generator.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """Classes that collapsed or look alike."""
        return self._warnings

    def _critics(self, facts: PublicFacts) -> int:
        critics = self.config.critics or max(2, facts.units // self.config.units_per_critic)
        most = facts.units // _FEWEST_UNITS_PER_CRITIC
        if critics > most:
            raise InputError(
                f"Expected 2 to {most} critics for {facts.units} {facts.unit}s (at least {_FEWEST_UNITS_PER_CRITIC} "
                f"for each), got {critics}. Set critics, or take a method without shards."
            )
        return critics

    def _width(self, facts: PublicFacts) -> int:
        """Coordinates of one row of an answer."""
        return self.config.code_size if self.config.critic == "code" else math.prod(facts.shape)

    def _generator_training(self, facts: PublicFacts, context: Context) -> GeneratorTraining:
        config = self.config
        generator = build_generator(
            config.generator,
            size=facts.shape[0],
            channels=facts.shape[2],
            classes=facts.classes,
            latent_size=config.latent_size,
            width=config.width,
            seed=context.seed,
        )
        return GeneratorTraining(
            generator,
            learning_rate=config.learning_rate,
            ema_decay=config.ema_decay,
            seed=context.seed,
            device=context.device,
            bernoulli=config.latent == "bernoulli",
        )

    def _critic_training(self, facts: PublicFacts, seed: int) -> CriticTraining:
        config, (size, _, channels) = self.config, facts.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "shard critics"))
            critic = (
                CodeCritic(config.code_size, facts.classes, config.hidden)
                if config.critic == "code"
                else build_critic("dcgan", size=size, channels=channels, classes=facts.classes, width=16, norm="none")
            )
        return CriticTraining(
            critic=critic,
            shape=(config.code_size,) if config.critic == "code" else (channels, size, size),
            batch=config.critic_batch,
            learning_rate=config.critic_rate,
            penalty=config.penalty,
        )

    def _query(self, training: GeneratorTraining, sight: "_Sight", updates: int) -> tuple[Query, Tensor]:
        """Generated batches for so many updates, points to be scored, and those points as the generator's own."""
        count = self.config.critic_batch
        with torch.no_grad():
            images, labels = training.draw(updates * count, "for the critics")
            fakes = sight.points(images)
        images, point_labels = training.draw(self.config.points, "to be scored")
        seen = sight.points(images)
        query = {
            "fakes": fakes.view(updates, count, *fakes.shape[1:]),
            "fake_labels": labels.view(updates, count),
            "points": seen.detach(),
            "labels": point_labels,
        }
        return {name: value.cpu() for name, value in query.items()}, seen

    def _finish(self, training: GeneratorTraining, facts: PublicFacts) -> None:
        self._generator = training.finish()
        require_finite(self._generator, "the generator")
        labels = even_labels(_LOOKED_AT * facts.classes, facts.classes)
        images = sample_images(self._generator, labels, 0, bernoulli=self.config.latent == "bernoulli")
        self._warnings = inspect(images, labels, facts.classes).warnings(facts.class_names)

    def _fit_as_published(
        self, session: Session, training: GeneratorTraining, sight: "_Sight", critic: CriticTraining, context: Context
    ) -> None:
        """One critic on all records, rows clipped one by one, noise as in the thesis. No guarantee."""
        config, records = self.config, session.records_without_guarantee()
        labels = torch.from_numpy(records.labels)
        images = torch.from_numpy(records.read(torch.arange(len(labels)).numpy()))
        rows = torch.cat([sight.rows(part, part) for part in torch.split(images, 500)])
        state, count = critic.start(), torch.tensor(len(rows))
        coins = torch_generator(context.seed, "published noise")
        with context.progress.task("training the generator", config.steps) as task:
            for step in range(config.steps):
                query, seen = self._query(training, sight, config.critic_updates + (0 if step else config.warmup))
                state, answer = critic.advance(state, rows, labels, count, query)
                scale = answer.flatten(1).norm(dim=1).clamp(min=1.0).view(-1, *(1 for _ in critic.shape))
                noisy = answer / scale + config.published_noise * torch.randn(answer.shape, generator=coins)
                training.descend(-(seen * noisy.detach().to(seen)).sum() / config.points)
                task.advance()
        self._finish(training, session.facts)


class _Sight:
    """What critics see of an image: its fixed code, or the image itself."""

    def __init__(self, embedding: ImageEmbedding | None, device: str) -> None:
        self.embedding, self.device = embedding, device

    @classmethod
    def of(cls, config: SanitizedGanConfig, facts: PublicFacts, seed: int, device: str) -> "_Sight":
        """Fixed by drawn pictures and the seed."""
        if config.critic == "image":
            return cls(None, device)
        size, _, channels = facts.shape
        embedding = ImageEmbedding(
            "scattering",
            drawn_patterns(config.pictures, size, channels, torch_generator(seed, "embedding pictures")),
            code_size=config.code_size,
            random_features=4,
            generator=torch_generator(seed, "embedding"),
        )
        return cls(embedding.to(device), device)

    def points(self, images: Tensor) -> Tensor:
        """Of images in [0, 1], (b, C, H, W); gradients flow to them."""
        return images if self.embedding is None else self.embedding.code(images)

    def rows(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Of 8-bit images (b, H, W, C): one flat row each, from that image alone."""
        return self.points(as_floats(images, self.device)).flatten(1).cpu()
