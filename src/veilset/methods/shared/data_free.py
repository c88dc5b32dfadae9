"""The loop of data-free distillation (DPDFD, Algorithm 1), for dfd, pate and conversions. All of it is post-processing.

Three stages, counted by one step number, so that a run can be taken up where it stopped:

1. the generator alone is drawn to the class statistics, where there are any;
2. generator and student in turn, as in the paper: the guide (a teacher) says what it sees on generated images, the
   student follows, and the generator is trained against the student;
3. the student alone, on a bank of images of the finished generator, some of which stray on purpose.
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import VeilsetError
from veilset.core.files import write_whole
from veilset.core.randomness import derive_seed, torch_generator
from veilset.methods.base import Context
from veilset.methods.shared.answered_images import Bank, answered_images
from veilset.methods.shared.class_statistics import ClassStatistics, MeanMatching
from veilset.methods.shared.data_free_config import FEWEST_IMAGES_OF_A_CLASS, DataFreeSettings
from veilset.methods.shared.distillation import (
    WithFeatures,
    activation_loss,
    balance_loss,
    bounded_step,
    disagreement,
    one_hot_loss,
)
from veilset.methods.shared.distilled import Distilled
from veilset.models import build_network
from veilset.models.features.embeddings import ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import MILD, augment
from veilset.training.settings import TrainingConfig, WeightAverage, make_optimizer

_CHECKPOINT = "data-free-training.pt"
_CHECKPOINT_EVERY = 100


class DataFreeTraining:
    """The state of the loop between steps: `draw_to_statistics`, then `distil`.

    It begins where an earlier part of the run stopped, if the context keeps one. Statistics are those of the embedding;
    without them both may be left out.
    """

    def __init__(
        self,
        settings: DataFreeSettings,
        facts: PublicFacts,
        context: Context,
        embedding: ImageEmbedding | None = None,
        statistics: ClassStatistics | None = None,
    ) -> None:
        self.settings, self.facts, self.context, self.embedding = settings, facts, context, embedding
        seed, device = context.seed, context.device
        size, _, channels = facts.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "data-free generator"))
            self.generator = ConditionalGenerator(size, channels, facts.classes, settings.latent_size, settings.width)
        self.generator.to(device)
        self.student = build_network(settings.student, shape=facts.shape, classes=facts.classes, seed=seed).to(device)
        self.student.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third quicker on a CPU
        self._watched = WithFeatures(self.student)
        self._generator_optimizer = torch.optim.Adam(
            self.generator.parameters(), lr=settings.learning_rate, betas=(0.5, 0.99)
        )
        self._student_optimizer = make_optimizer(self.student, TrainingConfig())
        self._generator_average = WeightAverage(self.generator, decay=0.98)
        self._student_average = WeightAverage(self.student, decay=0.99)
        self._matching = None if statistics is None else MeanMatching(statistics.means.to(device), settings.memory)
        even = np.full(facts.classes, 1 / facts.classes)
        self.shares = even if statistics is None else _as_shares(statistics.shares)
        self.drowned = () if statistics is None else statistics.drowned
        self._bank = Bank(max(settings.bank, settings.batch), facts)
        self._guide: nn.Module | None = None
        self.step = 0
        self.student_step = 0
        place = context.kept(_CHECKPOINT)
        if place is not None and place.exists():
            self._load(place)

    def draw_to_statistics(self) -> None:
        """The first stage; without statistics it has no steps."""
        self._run("drawing the generator to the statistics", self.settings.warmup_steps)

    def distil(self, guide: nn.Module) -> Distilled:
        """The second and third stage: T rounds of Algorithm 1, then the student alone. Nothing moves after that."""
        self._guide = guide
        self._run("distilling", self._made + self.settings.settle_steps)
        self.generator.load_state_dict(self._generator_average.state)
        self.student.load_state_dict(self._student_average.state)
        for network in (self.student, self.generator):
            network.eval().requires_grad_(False)
        return Distilled(
            settings=self.settings,
            facts=self.facts,
            generator=self.generator,
            student=self.student,
            guide=guide,
            shares=self.shares,
            device=self.context.device,
            drowned=self.drowned,
        )

    def advance(self) -> None:
        """The next step of whichever stage it is in."""
        settings, coins = self.settings, torch_generator(self.context.seed, f"data-free step {self.step}")
        if self.step < self._made:
            self._generator_step(coins, alone=self.step < settings.warmup_steps)
        if self.step == self._made:
            self._restock()
        if self.step >= settings.warmup_steps:
            for _ in range(settings.student_steps if self.step < self._made else 1):
                self._student_step(coins)
        self.step += 1

    @property
    def _made(self) -> int:
        """The step at which the generator is finished."""
        return self.settings.warmup_steps + self.settings.steps

    def _run(self, name: str, until: int) -> None:
        if self.step >= until:
            return
        place = self.context.kept(_CHECKPOINT)
        with self.context.progress.task(name, until) as task:
            task.advance(self.step)
            while self.step < until:
                self.advance()
                task.advance()
                if place is not None and self.step % _CHECKPOINT_EVERY == 0:
                    self._save(place)

    def _generator_step(self, coins: torch.Generator, *, alone: bool) -> None:
        """Lines 2, 3, 13 and 14 of Algorithm 1."""
        settings = self.settings
        together = min(self.facts.classes, settings.batch // FEWEST_IMAGES_OF_A_CLASS)
        classes = torch.randperm(self.facts.classes, generator=coins)[:together].to(self.context.device)
        labels = classes.repeat_interleave(settings.batch // together)
        latents = torch.randn(len(labels), settings.latent_size, generator=coins).to(self.context.device)
        images = self.generator(latents, labels)
        loss = images.new_zeros(())
        if self._matching is not None and settings.statistics_weight:
            assert self.embedding is not None
            loss = loss + settings.statistics_weight * self._matching.loss(self.embedding(images)[1], classes)
        if not alone:
            loss = loss + self._guided_loss(images, labels)
        fall = 0.5 + 0.5 * math.cos(math.pi * (self.step / self._made))
        for group in self._generator_optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (self.step + 1) / 20) * fall
        parameters = list(self.generator.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self._generator_optimizer.step()
        self._generator_average.update(self.generator, self.step)

    def _guided_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What teacher and student say of the images, each term by its weight; the answers go to the bank."""
        settings = self.settings
        self.student.eval()
        seen_through = bool(settings.teacher_weight or settings.disagreement_weight)
        with torch.set_grad_enabled(seen_through):
            answers = self._asked()(images)
        self._bank.add((images.detach() * 255).round().to(torch.uint8), answers.detach())
        loss: Tensor = settings.teacher_weight * functional.cross_entropy(answers, labels)
        of_paper = (settings.one_hot_weight, settings.balance_weight, settings.activation_weight)
        weights = (settings.disagreement_weight, settings.student_weight, *of_paper)
        if any(weights):
            outputs, features = self._watched(images)
            terms = (
                -disagreement(outputs, answers),
                bounded_step(outputs, answers.detach(), settings),
                one_hot_loss(outputs),
                balance_loss(outputs),
                activation_loss(features),
            )
            loss = loss + sum(weight * term for weight, term in zip(weights, terms, strict=True) if weight)
        return loss

    def _student_step(self, coins: torch.Generator) -> None:
        """Lines 5 to 12 of Algorithm 1, on images of the bank; there is no line 9, for nothing here is private."""
        settings = self.settings
        images, answers = self._bank.draw(settings.student_batch, coins)
        if settings.augmented:
            images = augment(images, MILD, coins)
        self.student.train()
        outputs = self.student(images.to(self.context.device).contiguous(memory_format=torch.channels_last))
        loss = bounded_step(outputs, answers.to(self.context.device), settings)
        settled = max(0, self.step - self._made) / max(1, settings.settle_steps)
        for group in self._student_optimizer.param_groups:
            group["lr"] = settings.student_learning_rate * min(1.0, (self.student_step + 1) / 50) * (1 - settled)
        self._student_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._student_optimizer.step()
        self._student_average.update(self.student, self.student_step)
        self.student_step += 1

    def _restock(self) -> None:
        """Fill the bank with images of the finished generator, whose averaged weights are what is released."""
        self.generator.load_state_dict(self._generator_average.state)
        coins = torch_generator(self.context.seed, "data-free bank")
        shares = torch.from_numpy(self.shares)
        classes = torch.multinomial(shares, self.settings.bank, replacement=True, generator=coins)
        for images, answers in answered_images(
            self.generator, self._asked(), classes, self.settings, coins, self.context.device
        ):
            self._bank.add(images, answers)

    def _asked(self) -> nn.Module:
        if self._guide is None:
            raise VeilsetError("The loop has no teacher to ask. Call distil with one.")
        return self._guide

    def _save(self, path: Path) -> None:
        """Write the state, whole or not at all. It holds nothing but post-processed releases."""
        content = io.BytesIO()
        torch.save(self._state(), content)
        write_whole(path, content.getvalue())

    def _load(self, path: Path) -> None:
        """Take up a saved state."""
        state = torch.load(path, map_location=self.context.device, weights_only=True)
        for name in ("generator", "student", "_generator_optimizer", "_student_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self._generator_average.state, self._student_average.state = state["averages"]
        self._bank.images, self._bank.answers = (part.cpu() for part in state["bank"])
        self._bank.added, self.step, self.student_step = state["counts"]
        if self._matching is not None:
            self._matching.remembered, self._matching.steps = state["matching"]

    def _state(self) -> dict[str, Any]:
        names = ("generator", "student", "_generator_optimizer", "_student_optimizer")
        state: dict[str, Any] = {name: getattr(self, name).state_dict() for name in names}
        state["averages"] = (self._generator_average.state, self._student_average.state)
        state["bank"] = (self._bank.images, self._bank.answers)
        state["counts"] = (self._bank.added, self.step, self.student_step)
        state["matching"] = None if self._matching is None else (self._matching.remembered, self._matching.steps)
        return state


def _as_shares(shares: Tensor) -> NDArray[np.float64]:
    exact = shares.double().cpu().numpy()
    return np.asarray(exact / exact.sum())
