"""DP-MERF: one noisy mean embedding for each class, and a generator trained to match it.

Harder, Adamczewski, Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-Preserving Data Generation" (AISTATS 2021). The private images are read once or twice, in full sums; everything
after that is post-processing, so the generator may train as long as it likes.

What we changed: the kernel sits on scattering maps instead of pixels (models/features/embeddings.py), or, for images in
colour, class means are those of what a pretrained network sees, and of its squares (models/features/perceptual.py, as
in DP-MEPF, Harder et al., TMLR 2023); with a second sum, of the codes' second moments, a linear classifier follows from
the release in closed form and labels the samples; the mean of the generator's images is kept over steps, because that
of one small batch is noisier than what is left to match. The preset `paper` does without all of it.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 1 for each sum (the clip norm), also with several
findings per image (methods/shared/findings.py); event one Gaussian for each sum, un-subsampled; assumes that the
features are fixed by published weights, public pictures and a seed, which `fit` shows.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.base import Context, Fitted, ReleasedModel, Samples
from veilset.methods.merf.classifier import ClassMeans, LinearClassifier, solve_classifier, solve_findings
from veilset.methods.merf.config import CODE_PART, COUNT_PART, FEATURES_PART, PRETRAINED, MerfPlan
from veilset.methods.merf.generator import train_generator
from veilset.methods.shared.class_counts import drowned_classes
from veilset.methods.shared.findings import as_aims, as_labels, in_all_blocks, shares_of_findings, sums_of_kinds
from veilset.models.features import build_features
from veilset.models.features.embeddings import Embedding, ImageEmbedding, shrunk, working_side
from veilset.models.features.perceptual import PerceptualEmbedding
from veilset.models.generators.conditional import ConditionalGenerator, description_of
from veilset.privacy.rows import BATCH
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts

_AT_ONCE = 500
_LONG_ROWS = 100  # small batches of long rows stay in the processor's cache


def fit(plan: MerfPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Sum the features of the private images, then train the generator on the noisy sums."""
    facts, device = session.facts, context.device
    # 1. Fix the features from public pictures and the seed.
    embedding = _embedding(plan, facts, public, context)

    # 2. Sum them over the private images of each class, with noise.
    def class_row(images: Tensor, labels: Tensor) -> Tensor:
        code, features = embedding(as_floats(images, device))
        count = torch.full_like(code[:, :1], COUNT_PART)
        rows = torch.cat([CODE_PART * code, FEATURES_PART * embedding.centred(features), count], dim=1).cpu()
        return in_all_blocks(rows, labels) if facts.findings else rows  # the session places rows by class

    by_class = not facts.findings
    sums = session.gaussian_sum(
        class_row, plan.class_sums, clip_norm=1.0, by_class=by_class, batch=BATCH if by_class else _LONG_ROWS
    )
    sums = sums_of_kinds(sums, facts.classes) if facts.findings else sums
    means = ClassMeans.from_sums(sums, embedding.code_size, facts.units, findings=facts.findings)
    means = replace(means, features=embedding.restored(means.features.to(device)).cpu())
    shares = torch.full_like(means.shares, 1 / len(means.shares)) if plan.even else means.shares

    # 3. Sum the second moments of the codes and solve for a linear classifier.
    classifier: LinearClassifier | None = None
    if plan.moments is not None:
        upper = torch.triu_indices(embedding.code_size, embedding.code_size)
        # The matrix u u' has norm |u|^2 = 1; of its two equal halves one is summed, so that one counts twice.
        weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2))

        def moment_row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
            code = embedding.code(as_floats(images, device)).cpu()
            return code[:, upper[0]] * code[:, upper[1]] * weight

        released = session.gaussian_sum(moment_row, plan.moments, clip_norm=1.0, batch=_LONG_ROWS)
        half = torch.zeros(embedding.code_size, embedding.code_size, dtype=torch.float64)
        half[upper[0], upper[1]] = released / weight / facts.units
        solve = solve_findings if facts.findings else solve_classifier
        classifier = solve(means, half + half.triu(1).T, plan.moments.noise_multiplier / facts.units, shares)

    # 4. Train the generator. Nothing from here on sees the session.
    generator = train_generator(plan, facts, means, embedding, classifier, context)
    return FittedMerf(
        generator=generator,
        embedding=embedding,
        classifier=classifier,
        shares=shares,
        likely=shares_of_findings(shares) if facts.findings else None,
        drowned=drowned_classes(
            sums[:, -1] / COUNT_PART, plan.class_sums.noise_multiplier / COUNT_PART, facts, plan.budget
        ),
    )


@dataclass(frozen=True, kw_only=True)
class FittedMerf(Fitted):
    """The generator, how often each class or kind is drawn, and the classifier that labels what is drawn.

    Of findings, `likely` (F,) is how likely each is where nothing is known of an image; None for classes.
    """

    generator: ConditionalGenerator
    embedding: Embedding
    classifier: LinearClassifier | None
    shares: Tensor  # (classes,), adding up to 1
    likely: Tensor | None
    drowned: tuple[str, ...]

    def sample(self, count: int, seed: int = 0) -> Samples:
        """5. Draw images; the classifier, where there is one, labels what it sees on them."""
        generator = self.generator
        device = generator.class_vectors.device
        coins = numpy_generator(seed, "merf classes")
        drawn = torch.from_numpy(coins.choice(len(self.shares), size=count, p=self.shares.numpy()))
        asked = drawn if self.likely is None else as_aims(drawn, generator.classes)
        latents = torch.randn(count, generator.latent_size, generator=torch_generator(seed, "merf samples"))
        images, soft = [], []
        with torch.no_grad():
            for start in range(0, count, _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                pixels = generator(latents[part].to(device), asked[part].to(device))
                images.append(as_bytes(pixels))
                if self.classifier is not None:
                    code = self.embedding.code((pixels * 255).round() / 255)
                    soft.append(self.classifier.probabilities(code).cpu())
        pictures = torch.cat(images).numpy()
        if self.likely is not None:
            found = torch.cat(soft) if soft else torch.where(asked == 0, self.likely.float(), (asked > 0).float())
            return Samples(images=pictures, labels=as_labels(found), soft_labels=found.numpy())
        if not soft:
            return Samples(images=pictures, labels=drawn.numpy().astype(np.int64))
        soft_labels = torch.cat(soft).numpy()
        return Samples(images=pictures, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def warnings(self) -> list[str]:
        """Classes that noise hides."""
        return list(self.drowned)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it."""
        weights = self.generator.state_dict()
        return {"generator": ReleasedModel(weights=weights, description=description_of(self.generator))}


def _embedding(plan: MerfPlan, facts: PublicFacts, public: Public | None, context: Context) -> Embedding:
    config, (size, _, channels) = plan.settings, facts.shape
    side = size if plan.form == "pretrained" else working_side(size)
    pictures = drawn_patterns(config.pictures, side, channels, torch_generator(context.seed, "merf pictures"))
    if public is not None:
        if tuple(public.shape) != tuple(facts.shape):
            raise InputError(f"Expected public images of {facts.shape}, got {public.shape}. Pass --size.")
        order = numpy_generator(context.seed, "merf public").permutation(len(public.labels))
        rows = np.sort(order[: config.pictures]).astype(np.int64)
        photographs = shrunk(as_floats(torch.from_numpy(public.read(rows))), side)
        # A network of photographs sees little in drawn patterns: where there are photographs enough, they stand alone.
        enough = plan.form == "pretrained" and len(photographs) > config.code_size
        pictures = photographs if enough else torch.cat([pictures, photographs])
    if plan.form == "pretrained":
        features = build_features(PRETRAINED, facts.shape, side=config.side).to(context.device)
        return PerceptualEmbedding(features, pictures.to(context.device), code_size=config.code_size)
    embedding = ImageEmbedding(
        plan.form,
        pictures,
        code_size=config.code_size,
        random_features=config.random_features,
        generator=torch_generator(context.seed, "merf features"),
        kernel=config.kernel,
    )
    return embedding.to(context.device)
