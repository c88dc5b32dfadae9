"""The public side of the training: a generator, what critics see of its images, and where their answers move it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import VeilsetError
from veilset.core.randomness import derive_seed
from veilset.methods.base import Context
from veilset.methods.sanitized_gan.config import SanitizedGanSettings, answer_shape
from veilset.methods.sanitized_gan.critic_view import CriticView
from veilset.methods.sanitized_gan.critics import CodeCritic, CriticTraining
from veilset.methods.shared.critics import build_critic
from veilset.methods.shared.fitted_generator import FittedGenerator
from veilset.methods.shared.gan import GeneratorTraining, too_alike
from veilset.models.generators.conditional import build_generator
from veilset.privacy.mechanisms.shard_critics import Query
from veilset.privacy.vault import PublicFacts


class Rounds:
    """Fixes what critics see of an image, and what generator and critics start as; then asks and follows.

    Nothing here reads data: it follows from settings, public facts and a seed, so a federation's server and its sites
    make the same one.
    """

    def __init__(self, settings: SanitizedGanSettings, facts: PublicFacts, context: Context) -> None:
        self.settings, (size, _, channels) = settings, facts.shape
        self.critic_view = CriticView(settings, facts.shape, seed=context.seed, device=context.device)
        self.shape = answer_shape(settings, facts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(context.seed, "shard critics"))
            critic = (
                CodeCritic(self.shape[1], facts.classes, settings.hidden)
                if settings.critic == "code"
                else build_critic("dcgan", size=size, channels=channels, classes=facts.classes, width=16, norm="none")
            )
        self.critic = CriticTraining(
            critic=critic,
            shape=self.shape[1:],
            learning_rate=settings.critic_rate,
            penalty=settings.penalty,
        )
        generator = build_generator(
            settings.generator,
            size=size,
            channels=channels,
            classes=facts.classes,
            latent_size=settings.latent_size,
            width=settings.width,
            seed=context.seed,
        )
        self.training = GeneratorTraining(
            generator,
            learning_rate=settings.learning_rate,
            ema_decay=settings.ema_decay,
            seed=context.seed,
            device=context.device,
            bernoulli=settings.latent == "bernoulli",
        )
        self._seen: Tensor | None = None

    def query(self, *, warm: bool) -> Query:
        """Generated batches for the critics to learn against, more of them before the first answer, and points."""
        count = self.settings.critic_batch
        updates = self.settings.critic_updates + (0 if warm else self.settings.warmup)
        with torch.no_grad():
            images, labels = self.training.draw(updates * count, "for the critics")
            fakes = self.critic_view.points(images)
        images, point_labels = self.training.draw(self.shape[0], "to be scored")
        self._seen = self.critic_view.points(images)
        query = {
            "fakes": fakes.view(updates, count, *fakes.shape[1:]),
            "fake_labels": labels.view(updates, count),
            "points": self._seen.detach(),
            "labels": point_labels,
        }
        return {name: value.cpu() for name, value in query.items()}

    def follow(self, answer: Tensor, asked: int, teacher: nn.Module | None = None) -> None:
        """Move the generator along the noised sum of the clipped answers of so many critics.

        A private classifier, where there is one, adds what it misses of the classes that were asked for.
        """
        if self._seen is None:
            raise VeilsetError("An answer needs a query first.")
        direction = (answer / (asked * self.settings.clip_norm)).to(self._seen)
        self.training.descend(self._missed(teacher) + self._too_alike() - (self._seen * direction).sum())
        self._seen = None

    def finish(
        self, facts: PublicFacts, teacher: nn.Module | None = None, found: tuple[str, ...] = ()
    ) -> FittedGenerator:
        """The trained generator, and who labels its images; `found` is said of the training."""
        return FittedGenerator(
            generator=self.training.finish(),
            teacher=teacher,
            facts=facts,
            device=self.training.device,
            bernoulli=self.training.bernoulli,
            variation=self.settings.variation,
            labelling=self.settings.labelling,
            image_noise=self.settings.image_noise,
            found=found,
        )

    def _too_alike(self) -> Tensor:
        """A push on two images of one class that hardly differ; it reads generated images alone."""
        least = self.settings.least_difference
        if not least:
            return torch.zeros((), device=self.training.device)
        images, _ = self.training.draw(self.settings.teacher_images, "to be told apart")
        return too_alike(images, self.training.classes, least)

    def _missed(self, teacher: nn.Module | None) -> Tensor:
        if teacher is None or not self.settings.teacher_weight:
            return torch.zeros((), device=self.training.device)
        images, labels = self.training.draw(self.settings.teacher_images, "to be classified")
        return self.settings.teacher_weight * functional.cross_entropy(teacher(images), labels)
