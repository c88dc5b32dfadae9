"""The loop of data-free distillation (DPDFD, Algorithm 1): generator, guide, student. All of it is post-processing.

Three stages, counted by one step number, so that a run can be taken up where it stopped:

1. the generator alone is drawn to the class statistics, where there are any;
2. generator and student in turn, as in the paper: the guide (a teacher) says what it sees on generated images, the
   student follows, and the generator is trained against the student;
3. the student alone, on a bank of images of the finished generator, some of which stray on purpose (`variety`).
"""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import VeilsetError
from veilset.core.files import write_whole
from veilset.core.progress import Progress
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images
from veilset.methods.shared.class_statistics import ClassStatistics, MeanMatching
from veilset.methods.shared.data_free_config import FEWEST_IMAGES_OF_A_CLASS, DataFreeConfig
from veilset.methods.shared.distillation import (
    WithFeatures,
    activation_loss,
    balance_loss,
    bounded_rows,
    disagreement,
    one_hot_loss,
    output_gradient,
    student_loss,
)
from veilset.methods.shared.off_distribution import varied_images
from veilset.methods.shared.shard_teachers import Queries
from veilset.models import build_network
from veilset.models.descriptions import described
from veilset.models.features.embeddings import ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator, description_of
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import MILD, augment
from veilset.training.settings import TrainingConfig, WeightAverage, make_optimizer

_AT_ONCE = 500
_CHECKPOINT = "data-free-training.pt"
_CHECKPOINT_EVERY = 100
_QUERIES = "data-free-queries.npy"


class DataFreeTraining:
    """The state of the loop between steps. `guide` must be set before the second stage.

    The embedding is needed for statistics and for `queries`; without both it may be None.
    """

    def __init__(
        self,
        config: DataFreeConfig,
        facts: PublicFacts,
        embedding: ImageEmbedding | None,
        statistics: ClassStatistics | None,
        seed: int,
        device: str,
    ) -> None:
        self.config, self.facts, self.embedding, self.seed, self.device = config, facts, embedding, seed, device
        self.guide: nn.Module | None = None
        size, _, channels = facts.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "data-free generator"))
            self.generator = ConditionalGenerator(size, channels, facts.classes, config.latent_size, config.width)
        self.generator.to(device)
        self.student = build_network(config.student, shape=facts.shape, classes=facts.classes, seed=seed).to(device)
        self.student.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a third quicker on a CPU
        self._watched = WithFeatures(self.student)
        self._generator_optimizer = torch.optim.Adam(
            self.generator.parameters(), lr=config.learning_rate, betas=(0.5, 0.99)
        )
        self._student_optimizer = make_optimizer(self.student, TrainingConfig())
        self._generator_average = WeightAverage(self.generator, decay=0.98)
        self._student_average = WeightAverage(self.student, decay=0.99)
        self.matching = None if statistics is None else MeanMatching(statistics.means.to(device), config.memory)
        even = np.full(facts.classes, 1 / facts.classes)
        self.shares = even if statistics is None else _as_shares(statistics.shares)
        self._bank_images = torch.zeros(config.bank, channels, size, size, dtype=torch.uint8)
        self._bank_answers = torch.zeros(config.bank, facts.classes)
        self._banked = 0
        self.step = 0
        self.student_step = 0

    @property
    def total_steps(self) -> int:
        """Steps of all three stages."""
        return self.config.warmup_steps + self.config.steps + self.config.settle_steps

    def run(self, make_guide: Callable[[], nn.Module], workspace: Path | None, progress: Progress) -> None:
        """All stages, from where a workspace says that an earlier run stopped; `make_guide` is called after the first.

        It is called in a resumed run, too, and must then give the guide of the earlier part.
        """
        place = None if workspace is None else workspace / _CHECKPOINT
        if place is not None and place.exists():
            self.load(place)
        with progress.task("distilling", self.total_steps) as task:
            task.advance(self.step)
            while self.step < self.total_steps:
                if self.guide is None and self.step >= self.config.warmup_steps:
                    self.guide = make_guide()
                self.advance()
                task.advance()
                if place is not None and self.step % _CHECKPOINT_EVERY == 0:
                    self.save(place)
        if self.guide is None:
            self.guide = make_guide()
        self.finish()

    def advance(self) -> None:
        """The next step of whichever stage it is in."""
        config, coins = self.config, torch_generator(self.seed, f"data-free step {self.step}")
        made = config.warmup_steps + config.steps
        if self.step < made:
            self._generator_step(coins, alone=self.step < config.warmup_steps)
        if self.step == made:
            self._restock()
        if self.step >= config.warmup_steps:
            for _ in range(config.student_steps if self.step < made else 1):
                self._student_step(coins)
        self.step += 1

    def draw(self, classes: Tensor, coins: torch.Generator) -> Tensor:
        """8-bit images (b, C, H, W) of these classes."""
        latents = torch.randn(len(classes), self.config.latent_size, generator=coins)
        with torch.no_grad():
            pixels: Tensor = self.generator(latents.to(self.device), classes.to(self.device))
        return (pixels * 255).round().to(torch.uint8)

    def sample(self, count: int, seed: int) -> tuple[Images, NDArray[np.float32]]:
        """`count` 8-bit images (b, H, W, C), classes by their shares, and the guide's soft labels of them as stored."""
        drawn = numpy_generator(seed, "data-free classes").choice(len(self.shares), size=count, p=self.shares)
        coins = torch_generator(seed, "data-free samples")
        images, soft = [], []
        for part in torch.split(torch.from_numpy(drawn), _AT_ONCE):
            pixels, answers = self._labelled(part, coins)
            images.append(pixels.permute(0, 2, 3, 1))
            soft.append(answers.softmax(dim=1).cpu())
        return torch.cat(images).numpy(), torch.cat(soft).numpy()

    def described(self) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        """Weights of generator and student, and what rebuilds them."""
        made = description_of(self.generator)
        learned = described(
            "classifier", name=self.config.student, shape=list(self.facts.shape), classes=self.facts.classes
        )
        return {"generator": (self.generator.state_dict(), made), "student": (self.student.state_dict(), learned)}

    @torch.no_grad()
    def queries(self, count: int, workspace: Path | None) -> Queries:
        """Codes of `count` images of the generator as it is, to ask shard teachers about.

        They are kept in the workspace: the answers that a resumed run finds there belong to these and to no others.
        """
        assert self.embedding is not None
        place = None if workspace is None else workspace / _QUERIES
        classes = torch.arange(count) % self.facts.classes
        if place is not None and place.exists():
            return Queries(codes=torch.from_numpy(np.load(place, allow_pickle=False)), asked_for=classes)
        coins = torch_generator(self.seed, "data-free queries")
        parts = [
            self.embedding.code(self.draw(part, coins).float() / 255).cpu() for part in torch.split(classes, _AT_ONCE)
        ]
        codes = torch.cat(parts)
        if place is not None:
            content = io.BytesIO()
            np.save(content, codes.numpy(), allow_pickle=False)
            write_whole(place, content.getvalue())
        return Queries(codes=codes, asked_for=classes)

    def finish(self) -> None:
        """Take the student's averaged weights, and let nothing move any more."""
        self.student.load_state_dict(self._student_average.state)
        for network in (self.student, self.generator):
            network.eval().requires_grad_(False)

    def _generator_step(self, coins: torch.Generator, *, alone: bool) -> None:
        """Lines 2, 3, 13 and 14 of Algorithm 1."""
        config = self.config
        together = min(self.facts.classes, config.batch // FEWEST_IMAGES_OF_A_CLASS)
        classes = torch.randperm(self.facts.classes, generator=coins)[:together].to(self.device)
        labels = classes.repeat_interleave(config.batch // together)
        latents = torch.randn(len(labels), config.latent_size, generator=coins).to(self.device)
        images = self.generator(latents, labels)
        loss = images.new_zeros(())
        if self.matching is not None and config.statistics_weight:
            assert self.embedding is not None
            loss = loss + config.statistics_weight * self.matching.loss(self.embedding(images)[1], classes)
        if not alone:
            loss = loss + self._guided_loss(images, labels)
        share = self.step / (config.warmup_steps + config.steps)
        for group in self._generator_optimizer.param_groups:
            group["lr"] = (
                config.learning_rate * min(1.0, (self.step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * share))
            )
        parameters = list(self.generator.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        self._generator_optimizer.step()
        self._generator_average.update(self.generator, self.step)

    def _guided_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What teacher and student say of the images, each term by its weight; the answers go to the bank."""
        config = self.config
        assert self.guide is not None
        self.student.eval()
        seen_through = bool(config.teacher_weight or config.disagreement_weight)
        with torch.set_grad_enabled(seen_through):
            answers = self.guide(images)
        self._remember((images.detach() * 255).round().to(torch.uint8), answers.detach())
        loss: Tensor = config.teacher_weight * functional.cross_entropy(answers, labels)
        weights = (config.disagreement_weight, config.one_hot_weight, config.balance_weight, config.activation_weight)
        if any(weights):
            outputs, features = self._watched(images)
            terms = (
                -disagreement(outputs, answers),
                one_hot_loss(outputs),
                balance_loss(outputs),
                activation_loss(features),
            )
            loss = loss + sum(weight * term for weight, term in zip(weights, terms, strict=True) if weight)
        return loss

    def _student_step(self, coins: torch.Generator) -> None:
        """Lines 5 to 12 of Algorithm 1, on images of the bank; there is no line 9, for nothing here is private."""
        config = self.config
        chosen = torch.randint(min(self._banked, config.bank), (config.student_batch,), generator=coins)
        images = augment(self._bank_images[chosen].float() / 255, MILD, coins).to(self.device)
        self.student.train()
        outputs = self.student(images.contiguous(memory_format=torch.channels_last))
        gradient = output_gradient(
            outputs,
            self._bank_answers[chosen].to(self.device),
            other_weight=config.other_weight,
            temperature=config.temperature,
        )
        loss = student_loss(outputs, bounded_rows(gradient, config.output_bound, config.bounding))
        settled = max(0, self.step - config.warmup_steps - config.steps) / config.settle_steps
        for group in self._student_optimizer.param_groups:
            group["lr"] = config.student_learning_rate * min(1.0, (self.student_step + 1) / 50) * (1 - settled)
        self._student_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._student_optimizer.step()
        self._student_average.update(self.student, self.student_step)
        self.student_step += 1

    def _remember(self, images: Tensor, answers: Tensor) -> None:
        """Put answered images in the place of the oldest."""
        places = torch.arange(self._banked, self._banked + len(images)) % self.config.bank
        self._bank_images[places] = images.cpu()
        self._bank_answers[places] = answers.float().cpu()
        self._banked += len(images)

    def _restock(self) -> None:
        """Fill the bank with images of the finished generator, whose averaged weights are what is released."""
        if self.guide is None:
            raise VeilsetError("The loop has no teacher to ask. Set its guide first.")
        self.generator.load_state_dict(self._generator_average.state)
        coins = torch_generator(self.seed, "data-free bank")
        shares = torch.from_numpy(self.shares)
        classes = torch.multinomial(shares, self.config.bank, replacement=True, generator=coins)
        for part in torch.split(classes, _AT_ONCE):
            self._remember(*self._labelled(part, coins))

    @torch.no_grad()
    def _labelled(self, classes: Tensor, coins: torch.Generator) -> tuple[Tensor, Tensor]:
        """8-bit images (b, C, H, W) with the variety of the settings, and the guide's answers to just those."""
        assert self.guide is not None
        pixels = varied_images(self.generator, classes, self.config.variety, coins, self.device)
        stored = (pixels * 255).round().to(torch.uint8)
        return stored, self.guide(stored.to(self.device).float() / 255)

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all. It holds nothing but post-processed releases."""
        content = io.BytesIO()
        torch.save(self._state(), content)
        write_whole(path, content.getvalue())

    def load(self, path: Path) -> None:
        """Take up a saved state."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name in ("generator", "student", "_generator_optimizer", "_student_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self._generator_average.state, self._student_average.state = state["averages"]
        self._bank_images, self._bank_answers = (part.cpu() for part in state["bank"])
        self._banked, self.step, self.student_step = state["counts"]
        if self.matching is not None:
            self.matching.remembered, self.matching.steps = state["matching"]

    def _state(self) -> dict[str, Any]:
        names = ("generator", "student", "_generator_optimizer", "_student_optimizer")
        state: dict[str, Any] = {name: getattr(self, name).state_dict() for name in names}
        state["averages"] = (self._generator_average.state, self._student_average.state)
        state["bank"] = (self._bank_images, self._bank_answers)
        state["counts"] = (self._banked, self.step, self.student_step)
        state["matching"] = None if self.matching is None else (self.matching.remembered, self.matching.steps)
        return state


def _as_shares(shares: Tensor) -> np.ndarray:
    exact = shares.double().cpu().numpy()
    return np.asarray(exact / exact.sum())
