"""DP-MERF: one noisy mean embedding for each class, and a generator trained to match it.

Harder, Adamczewski, Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-Preserving Data Generation" (AISTATS 2021). The private images are read once or twice, in full sums; everything
after that is post-processing, so the generator may train as long as it likes.

What we changed: the kernel sits on scattering maps instead of pixels (models/features/embeddings.py); with a second
sum, of the codes' second moments, a linear classifier follows from the release in closed form and labels the samples;
the mean of the generator's images is kept over steps, because that of one small batch is noisier than what is left to
match. The preset `paper` does without all three.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 for each sum (the clip norm); event one Gaussian
for each sum, un-subsampled; assumes that the features are fixed by public pictures and a seed, which `fit` shows.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.models.features.embeddings import FeatureForm, ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.training.settings import WeightAverage

_CLASS_SUMS = "class embeddings"
_MOMENTS = "second moments of the codes"

# Lengths of a record's parts in the class sums: its code, its random features, its count of one. Together 1.
_CODE_PART, _FEATURES_PART, _COUNT_PART = (part / math.sqrt(0.9) for part in (0.5, 0.8, 0.1))

# Directions in which the noisy covariance is below this share of the noise's largest eigenvalue are noise.
_EIGENVALUE_FLOOR = 0.35

_FEWEST_IMAGES_OF_A_CLASS = 8
_CHECKPOINT = "merf-generator.pt"
_CHECKPOINT_EVERY = 100
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class MerfConfig(Config):
    """Public settings of DP-MERF.

    Args:
        features: what the kernel sits on, "scattering" or "pixels".
        random_features: random Fourier features, a multiple of 4.
        code_size: length of the code whose second moments make the classifier.
        moment_share: share of the privacy spent on second moments; 0 leaves them and the classifier out.
        pictures: drawn pictures that fix scales and projections, beside at most as many public images.
        steps: generator steps.
        batch: generated images of a step.
        learning_rate: of the generator, falling to 0 as half a cosine.
        latent_size: length of the generator's latent vector.
        width: of the generator.
        memory: how much of the mean of earlier steps' images a step keeps; 0 is the plain batch mean.
        classifier_weight: weight of the classifier's loss on generated images.
    """

    features: FeatureForm = "scattering"
    random_features: int = 2048
    code_size: int = 256
    moment_share: float = 0.36
    pictures: int = 3000
    steps: int = 1200
    batch: int = 200
    learning_rate: float = 0.002
    latent_size: int = 64
    width: int = 64
    memory: float = 0.9
    classifier_weight: float = 0.003

    def __post_init__(self) -> None:
        if self.features not in get_args(FeatureForm):
            raise InputError(f"Expected features scattering or pixels, got {self.features!r}.")
        if self.random_features < 4 or self.random_features % 4:
            raise InputError(f"Expected random_features to be a multiple of 4, got {self.random_features}.")
        if not 0 <= self.moment_share < 1 or not 0 <= self.memory < 1:
            raise InputError(f"Expected moment_share and memory in [0, 1), got {self.moment_share} and {self.memory}.")
        if not 2 <= self.code_size < self.pictures:
            raise InputError(f"Expected 2 <= code_size < pictures={self.pictures}, got {self.code_size}.")
        if self.steps < 1 or self.batch < _FEWEST_IMAGES_OF_A_CLASS or not self.learning_rate > 0:
            raise InputError(
                f"Expected steps >= 1, batch >= {_FEWEST_IMAGES_OF_A_CLASS} and learning_rate > 0, "
                f"got {self.steps}, {self.batch} and {self.learning_rate}."
            )
        if self.classifier_weight < 0 or (self.classifier_weight > 0 and self.moment_share == 0):
            raise InputError(
                f"Expected classifier_weight >= 0, and 0 where moment_share is 0, got {self.classifier_weight}."
            )


class Merf(Method):
    """DP-MERF on scattering features."""

    name = "merf"
    title = "Mean embeddings with random features (DP-MERF)"
    paper = "Harder, Adamczewski, Park, AISTATS 2021, https://arxiv.org/abs/2002.11603"
    claim_of_paper = "The claim holds: one Gaussian release of mean embeddings, and nothing is read after it."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    config_type = MerfConfig
    config: MerfConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 150, "random_features": 1024, "code_size": 128, "pictures": 1000},
        "paper": {"features": "pixels", "moment_share": 0.0, "classifier_weight": 0.0, "memory": 0.0},
    }

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """One Gaussian for the class sums and, with a share for moments, one for those."""
        height, width, _ = facts.shape
        if height != width or not 16 <= height <= 64:
            raise InputError(f"Expected square images of 16 to 64 pixels, got {height}x{width}. Pass --size 32.")
        share = self.config.moment_share

        def events(noise: float) -> list[Event]:
            # Two full Gaussian sums of noise s/sqrt(p) and s/sqrt(1-p) cost exactly what one of noise s costs.
            first = Event(label=_CLASS_SUMS, noise_multiplier=noise / math.sqrt(1 - share))
            return [first, Event(label=_MOMENTS, noise_multiplier=noise / math.sqrt(share))] if share else [first]

        spent = events(calibrate(budget, events))
        of_a_mean = spent[0].noise_multiplier / _FEATURES_PART / (facts.units / facts.classes)
        length = of_a_mean * math.sqrt(self.config.random_features)
        return Plan(
            budget=budget, events=tuple(spent), facts={"length of the noise on a class mean of length < 1": length}
        )

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Sum the features of the private images, then train the generator on the noisy sums."""
        facts, noise = session.facts, session.planned(_CLASS_SUMS).noise_multiplier
        # 1. Fix the features from public pictures and the seed.
        embedding = self._embedding(facts, public, context)

        # 2. Sum them over the private images of each class, with noise.
        def class_row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 (the session places rows by class)
            code, features = embedding(_as_floats(images, context.device))
            count = torch.full_like(code[:, :1], _COUNT_PART)
            return torch.cat([_CODE_PART * code, _FEATURES_PART * features, count], dim=1).cpu()

        sums = session.gaussian_sum(class_row, label=_CLASS_SUMS, clip_norm=1.0, noise_multiplier=noise, by_class=True)
        means = ClassMeans.from_sums(sums, embedding.code_size, facts.units)

        # 3. Sum the second moments of the codes and solve for a linear classifier.
        classifier: LinearClassifier | None = None
        if self.config.moment_share:
            noise = session.planned(_MOMENTS).noise_multiplier
            upper = torch.triu_indices(embedding.code_size, embedding.code_size)
            # The matrix u u' has norm |u|^2 = 1; of its two equal halves one is summed, so that one counts twice.
            weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2))

            def moment_row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
                code = embedding.code(_as_floats(images, context.device)).cpu()
                return code[:, upper[0]] * code[:, upper[1]] * weight

            # Rows are long here, and small batches of them stay in the processor's cache.
            released = session.gaussian_sum(
                moment_row, label=_MOMENTS, clip_norm=1.0, noise_multiplier=noise, batch=100
            )
            half = torch.zeros(embedding.code_size, embedding.code_size, dtype=torch.float64)
            half[upper[0], upper[1]] = released / weight / facts.units
            classifier = solve_classifier(means, half + half.triu(1).T, noise / facts.units)

        # 4. Train the generator. Nothing from here on sees the session.
        self._embedding_map, self._classifier, self._shares = embedding, classifier, means.shares
        self._generator = self._train(facts, means, context)

    def sample(self, count: int, seed: int = 0) -> Samples:
        """5. Draw images; the classifier, where there is one, labels what it sees on them."""
        if not hasattr(self, "_generator"):
            raise self.not_fitted()
        generator = self._generator
        device = generator.class_vectors.device
        drawn = numpy_generator(seed, "merf classes").choice(generator.classes, size=count, p=self._shares.numpy())
        latents = torch.randn(count, generator.latent_size, generator=torch_generator(seed, "merf samples"))
        images, soft = [], []
        with torch.no_grad():
            for start in range(0, count, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                pixels = generator(latents[part].to(device), torch.from_numpy(drawn[part]).to(device))
                pixels = (pixels * 255).round()
                images.append(pixels.to(torch.uint8).permute(0, 2, 3, 1).cpu())
                if self._classifier is not None:
                    code = self._embedding_map.code(pixels / 255)
                    soft.append(self._classifier.logits(code).softmax(dim=1).cpu())
        pictures = torch.cat(images).numpy()
        if not soft:
            return Samples(images=pictures, labels=drawn.astype(np.int64))
        soft_labels = torch.cat(soft).numpy()
        return Samples(images=pictures, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it."""
        if not hasattr(self, "_generator"):
            raise self.not_fitted()
        names = ("size", "channels", "classes", "latent_size", "width")
        description = {"kind": "veilset.models.generators.conditional:ConditionalGenerator"}
        description |= {name: getattr(self._generator, name) for name in names}
        return {"generator": ReleasedModel(weights=self._generator.state_dict(), description=description)}

    def _embedding(self, facts: PublicFacts, public: Records | None, context: Context) -> ImageEmbedding:
        size, _, channels = facts.shape
        pictures = drawn_patterns(self.config.pictures, size, channels, torch_generator(context.seed, "merf pictures"))
        if public is not None:
            if tuple(public.shape) != tuple(facts.shape):
                raise InputError(f"Expected public images of {facts.shape}, got {public.shape}. Pass --size.")
            order = numpy_generator(context.seed, "merf public").permutation(len(public.labels))
            rows = np.sort(order[: self.config.pictures]).astype(np.int64)
            pictures = torch.cat([pictures, _as_floats(torch.from_numpy(public.read(rows)), "cpu")])
        embedding = ImageEmbedding(
            self.config.features,
            pictures,
            code_size=self.config.code_size,
            random_features=self.config.random_features,
            generator=torch_generator(context.seed, "merf features"),
        )
        return embedding.to(context.device)

    def _train(self, facts: PublicFacts, means: "ClassMeans", context: Context) -> ConditionalGenerator:
        config, device = self.config, context.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(context.seed, "merf generator"))
            generator = ConditionalGenerator(
                facts.shape[0], facts.shape[2], facts.classes, config.latent_size, config.width
            ).to(device)
        training = GeneratorTraining(generator, means.features.float().to(device), config)
        place = None if context.workspace is None else context.workspace / _CHECKPOINT
        if place is not None and place.exists():
            training.load(place, device)
        together = min(facts.classes, config.batch // _FEWEST_IMAGES_OF_A_CLASS)
        each = config.batch // together
        with context.progress.task("training the generator", config.steps) as task:
            task.advance(training.step)
            while training.step < config.steps:
                coins = torch_generator(context.seed, f"merf step {training.step}")
                classes = torch.randperm(facts.classes, generator=coins)[:together].to(device)
                latents = torch.randn(together * each, config.latent_size, generator=coins).to(device)
                training.advance(classes, latents, self._embedding_map, self._classifier)
                task.advance()
                if place is not None and training.step % _CHECKPOINT_EVERY == 0:
                    training.save(place)
        generator.load_state_dict(training.average.state)
        return generator.eval().requires_grad_(False)


class GeneratorTraining:
    """The state of generator training between steps; it can be saved and taken up again."""

    def __init__(self, generator: ConditionalGenerator, target: Tensor, config: MerfConfig) -> None:
        self.generator, self.target, self.config = generator, target, config
        self.optimizer = torch.optim.Adam(generator.parameters(), lr=config.learning_rate, betas=(0.5, 0.99))
        self.average = WeightAverage(generator, decay=0.98)
        self.remembered = torch.zeros_like(target)
        self.step = 0

    def advance(
        self, classes: Tensor, latents: Tensor, embedding: ImageEmbedding, classifier: "LinearClassifier | None"
    ) -> None:
        """One step: as many images of each class as there are latents for it, their mean drawn to the target."""
        config, step = self.config, self.step
        labels = classes.repeat_interleave(len(latents) // len(classes))
        code, features = embedding(self.generator(latents, labels))
        # The mean of this batch alone is noisier than what is left to match, so earlier steps' images are kept in;
        # the division gives the batch's own images the weight that they would have alone.
        keep = min(config.memory, step / (step + 3))
        batch_mean = features.reshape(len(classes), -1, features.shape[1]).mean(dim=1)
        mean = keep * self.remembered[classes] + (1 - keep) * batch_mean
        loss = (mean - self.target[classes]).square().sum(dim=1).mean() / (1 - keep)
        if classifier is not None and config.classifier_weight:
            loss = loss + config.classifier_weight * functional.cross_entropy(classifier.logits(code), labels)
        self.remembered[classes] = mean.detach()
        fall = 0.5 + 0.5 * math.cos(math.pi * step / config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / 20) * fall
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.average.update(self.generator, step)
        self.step += 1

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all. It holds nothing but post-processed releases."""
        state = {
            "generator": self.generator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state,
            "remembered": self.remembered,
            "step": self.step,
        }
        content = io.BytesIO()
        torch.save(state, content)
        write_whole(path, content.getvalue())

    def load(self, path: Path, device: str) -> None:
        """Take up a saved state."""
        state = torch.load(path, map_location=device, weights_only=True)
        self.generator.load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average.state = state["average"]
        self.remembered, self.step = state["remembered"], state["step"]


@dataclass(frozen=True, kw_only=True)
class ClassMeans:
    """What the noisy sums say about each class, in float64."""

    codes: Tensor  # (classes, code_size)
    features: Tensor  # (classes, random_features)
    shares: Tensor  # (classes,), adding up to 1

    @classmethod
    def from_sums(cls, sums: Tensor, code_size: int, units: int) -> "ClassMeans":
        """Divide the noisy sums by the noisy counts, which the public number of units keeps within reason."""
        codes, features, counts = sums[:, :code_size], sums[:, code_size:-1], sums[:, -1] / _COUNT_PART
        counts = counts.clamp(min=0.1 * units / len(sums))
        counts = counts * (units / counts.sum())
        return cls(
            codes=codes / _CODE_PART / counts[:, None],
            features=features / _FEATURES_PART / counts[:, None],
            shares=counts / units,
        )


@dataclass(frozen=True, kw_only=True)
class LinearClassifier:
    """Class logits as a linear function of the code."""

    weight: Tensor  # (code_size, classes)
    bias: Tensor  # (classes,)

    def logits(self, code: Tensor) -> Tensor:
        """(batch, classes)."""
        return code @ self.weight.to(code) + self.bias.to(code)


def solve_classifier(means: ClassMeans, moments: Tensor, noise: float) -> LinearClassifier:
    """Linear discriminant analysis from noisy class means and noisy second moments; post-processing.

    Args:
        means: of the codes.
        moments: mean of u u' over all records, (code_size, code_size).
        noise: standard deviation of the noise on a diagonal entry; off the diagonal it is 1/sqrt(2) of that.
    """
    within = moments - (means.codes.T * means.shares) @ means.codes
    # Eigenvalues of a symmetric noise matrix reach 2 sqrt(d) times the noise of an entry (Wigner).
    edge = 2 * math.sqrt(len(within) / 2) * noise
    values, vectors = torch.linalg.eigh(within)
    inverse = (vectors / values.clamp(min=max(_EIGENVALUE_FLOOR * edge, 1e-5))) @ vectors.T
    weight = inverse @ means.codes.T
    bias = means.shares.log() - 0.5 * (means.codes.T * weight).sum(dim=0)
    return LinearClassifier(weight=weight, bias=bias)


def _as_floats(images: Tensor, device: str) -> Tensor:
    """(batch, H, W, C) bytes as (batch, C, H, W) floats in [0, 1]."""
    return images.to(device).permute(0, 3, 1, 2).float() / 255
