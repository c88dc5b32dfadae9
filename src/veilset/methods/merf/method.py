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

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.base import Context, Fitted, ReleasedModel, Samples
from veilset.methods.merf.classifier import ClassMeans, LinearClassifier, solve_classifier
from veilset.methods.merf.config import CODE_PART, COUNT_PART, FEATURES_PART, MerfPlan, MerfSettings
from veilset.methods.merf.generator import train_generator
from veilset.models.features.embeddings import ImageEmbedding
from veilset.models.generators.conditional import ConditionalGenerator, description_of
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts

_AT_ONCE = 500


def fit(plan: MerfPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Sum the features of the private images, then train the generator on the noisy sums."""
    facts, device = session.facts, context.device
    # 1. Fix the features from public pictures and the seed.
    embedding = _embedding(plan.settings, facts, public, context)

    # 2. Sum them over the private images of each class, with noise.
    def class_row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 (the session places rows by class)
        code, features = embedding(as_floats(images, device))
        count = torch.full_like(code[:, :1], COUNT_PART)
        return torch.cat([CODE_PART * code, FEATURES_PART * features, count], dim=1).cpu()

    sums = session.gaussian_sum(class_row, plan.class_sums, clip_norm=1.0, by_class=True)
    means = ClassMeans.from_sums(sums, embedding.code_size, facts.units)

    # 3. Sum the second moments of the codes and solve for a linear classifier.
    classifier: LinearClassifier | None = None
    if plan.moments is not None:
        upper = torch.triu_indices(embedding.code_size, embedding.code_size)
        # The matrix u u' has norm |u|^2 = 1; of its two equal halves one is summed, so that one counts twice.
        weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2))

        def moment_row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
            code = embedding.code(as_floats(images, device)).cpu()
            return code[:, upper[0]] * code[:, upper[1]] * weight

        # Rows are long here, and small batches of them stay in the processor's cache.
        released = session.gaussian_sum(moment_row, plan.moments, clip_norm=1.0, batch=100)
        half = torch.zeros(embedding.code_size, embedding.code_size, dtype=torch.float64)
        half[upper[0], upper[1]] = released / weight / facts.units
        classifier = solve_classifier(means, half + half.triu(1).T, plan.moments.noise_multiplier / facts.units)

    # 4. Train the generator. Nothing from here on sees the session.
    generator = train_generator(plan.settings, facts, means, embedding, classifier, context)
    return FittedMerf(generator=generator, embedding=embedding, classifier=classifier, shares=means.shares)


@dataclass(frozen=True, kw_only=True)
class FittedMerf(Fitted):
    """The generator, how often each class is drawn, and the classifier that labels what is drawn."""

    generator: ConditionalGenerator
    embedding: ImageEmbedding
    classifier: LinearClassifier | None
    shares: Tensor  # (classes,), adding up to 1

    def sample(self, count: int, seed: int = 0) -> Samples:
        """5. Draw images; the classifier, where there is one, labels what it sees on them."""
        generator = self.generator
        device = generator.class_vectors.device
        drawn = numpy_generator(seed, "merf classes").choice(generator.classes, size=count, p=self.shares.numpy())
        latents = torch.randn(count, generator.latent_size, generator=torch_generator(seed, "merf samples"))
        images, soft = [], []
        with torch.no_grad():
            for start in range(0, count, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                pixels = generator(latents[part].to(device), torch.from_numpy(drawn[part]).to(device))
                images.append(as_bytes(pixels))
                if self.classifier is not None:
                    code = self.embedding.code((pixels * 255).round() / 255)
                    soft.append(self.classifier.logits(code).softmax(dim=1).cpu())
        pictures = torch.cat(images).numpy()
        if not soft:
            return Samples(images=pictures, labels=drawn.astype(np.int64))
        soft_labels = torch.cat(soft).numpy()
        return Samples(images=pictures, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it."""
        weights = self.generator.state_dict()
        return {"generator": ReleasedModel(weights=weights, description=description_of(self.generator))}


def _embedding(config: MerfSettings, facts: PublicFacts, public: Public | None, context: Context) -> ImageEmbedding:
    size, _, channels = facts.shape
    pictures = drawn_patterns(config.pictures, size, channels, torch_generator(context.seed, "merf pictures"))
    if public is not None:
        if tuple(public.shape) != tuple(facts.shape):
            raise InputError(f"Expected public images of {facts.shape}, got {public.shape}. Pass --size.")
        order = numpy_generator(context.seed, "merf public").permutation(len(public.labels))
        rows = np.sort(order[: config.pictures]).astype(np.int64)
        pictures = torch.cat([pictures, as_floats(torch.from_numpy(public.read(rows)))])
    embedding = ImageEmbedding(
        config.features,
        pictures,
        code_size=config.code_size,
        random_features=config.random_features,
        generator=torch_generator(context.seed, "merf features"),
    )
    return embedding.to(context.device)
