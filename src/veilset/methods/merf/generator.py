"""The generator of DP-MERF in training: its images' mean features are drawn to the noisy ones. Post-processing."""

import io
import math
from pathlib import Path

import torch
from torch import Tensor

from veilset.core.files import write_whole
from veilset.core.randomness import derive_seed, torch_generator
from veilset.methods.base import Context
from veilset.methods.merf.classifier import ClassMeans, LinearClassifier
from veilset.methods.merf.config import FEWEST_IMAGES_OF_A_CLASS, MerfPlan, MerfSettings
from veilset.methods.shared.findings import as_aims
from veilset.models.features.embeddings import Embedding
from veilset.models.generators.conditional import ConditionalGenerator
from veilset.privacy.vault import PublicFacts
from veilset.training.settings import WeightAverage

_CHECKPOINT = "merf-generator.pt"
_CHECKPOINT_EVERY = 100
_ADVERSARY_RATE, _MOST_ODDS = 0.01, math.log(4)  # noise differs everywhere, so no feature may take all


def train_generator(
    plan: MerfPlan,
    facts: PublicFacts,
    means: ClassMeans,
    embedding: Embedding,
    classifier: LinearClassifier | None,
    context: Context,
) -> ConditionalGenerator:
    """Train a generator to match the class means, from where an earlier part of this run stopped."""
    config, device = plan.settings, context.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(context.seed, "merf generator"))
        generator = ConditionalGenerator(
            facts.shape[0], facts.shape[2], facts.classes, config.latent_size, config.width
        ).to(device)
    training = GeneratorTraining(generator, means.features.float().to(device), config, findings=facts.findings)
    place = context.kept(_CHECKPOINT)
    if place is not None and place.exists():
        training.load(place, device)
    kinds = len(means.features)
    together = min(kinds, plan.batch // FEWEST_IMAGES_OF_A_CLASS)
    each = plan.batch // together
    with context.progress.task("training the generator", config.steps) as task:
        task.advance(training.step)
        while training.step < config.steps:
            coins = torch_generator(context.seed, f"merf step {training.step}")
            classes = torch.randperm(kinds, generator=coins)[:together].to(device)
            latents = torch.randn(together * each, config.latent_size, generator=coins).to(device)
            training.advance(classes, latents, embedding, classifier)
            task.advance()
            if place is not None and training.step % _CHECKPOINT_EVERY == 0:
                training.save(place)
    generator.load_state_dict(training.average.state)
    return generator.eval().requires_grad_(False)


class GeneratorTraining:
    """The state of generator training between steps; it can be saved and taken up again."""

    def __init__(
        self, generator: ConditionalGenerator, target: Tensor, config: MerfSettings, *, findings: bool = False
    ) -> None:
        self.generator, self.target, self.config, self.findings = generator, target, config, findings
        self.optimizer = torch.optim.Adam(generator.parameters(), lr=config.learning_rate, betas=(0.5, 0.99))
        self.average = WeightAverage(generator, decay=0.98)
        self.remembered = torch.zeros_like(target)
        self.odds = torch.zeros_like(target[0])  # logarithms of what each feature counts
        self.step = 0

    def advance(
        self, classes: Tensor, latents: Tensor, embedding: Embedding, classifier: LinearClassifier | None
    ) -> None:
        """One step: as many images of each class or kind as it has latents, their mean drawn to the target."""
        config, step = self.config, self.step
        labels = classes.repeat_interleave(len(latents) // len(classes))
        asked = as_aims(labels, self.generator.classes) if self.findings else labels
        code, features = embedding(self.generator(latents, asked))
        # The mean of this batch alone is noisier than what is left to match, so earlier steps' images are kept in;
        # the division gives the batch's own images the weight that they would have alone.
        keep = min(config.memory, step / (step + 3))
        batch_mean = features.reshape(len(classes), -1, features.shape[1]).mean(dim=1)
        mean = keep * self.remembered[classes] + (1 - keep) * batch_mean
        gaps = (mean - self.target[classes]).square()
        if config.weighting == "adversarial":
            gaps = gaps * self._weights(gaps.detach().mean(dim=0))
        loss = gaps.sum(dim=1).mean() / (1 - keep)
        if classifier is not None and config.classifier_weight:
            loss = loss + config.classifier_weight * classifier.loss(code, labels)
        self.remembered[classes] = mean.detach()
        fall = 0.5 + 0.5 * math.cos(math.pi * step / config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / 20) * fall
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.average.update(self.generator, step)
        self.step += 1

    def _weights(self, gaps: Tensor) -> Tensor:
        """What each feature (d,) counts, 1 on average; those where generated images differ more than usual gain.

        That is the other player of PEARL (Liew, Takahashi and Ueno, ICLR 2022), on features that are released already.
        It reads generated images and noisy means alone. PEARL moves the law of its frequencies; here each has a weight.
        """
        self.odds += _ADVERSARY_RATE * (gaps / gaps.mean().clamp_min(1e-12) - 1)
        self.odds.clamp_(-_MOST_ODDS, _MOST_ODDS)
        return self.odds.softmax(dim=0) * len(self.odds)

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all. It holds nothing but post-processed releases."""
        state = {
            "generator": self.generator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state,
            "remembered": self.remembered,
            "odds": self.odds,
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
        self.odds = state.get("odds", self.odds)  # older checkpoints have none
