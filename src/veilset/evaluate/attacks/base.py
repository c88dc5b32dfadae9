"""What an attack is: a name, what it needs, and a function from what the attacker has to a score for each candidate.

Privacy: attacks read private records without noise. Their results are for the data holder and never go into a
release.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.measures import Scores
from veilset.evaluate.attacks.splitting import Candidates, Split
from veilset.training.classifier import predict

if TYPE_CHECKING:
    from veilset.evaluate.attacks.learned import Evidence
    from veilset.evaluate.attacks.shadows import Shadows

Need = Literal["model", "shadow models", "images only", "generator"]
ShadowTrainer = Callable[[Images, Labels, int], nn.Module]
"""Makes a network as the target was made, from these images and labels and a seed."""

LogProbabilities = NDArray[np.float64]  # (N, classes)


@dataclass(frozen=True, kw_only=True)
class AttackConfig:
    """How much is attacked and how hard. None of it touches what is attacked.

    Args:
        records: members, and as many nonmembers; half of them known to the attacker. None is all there are.
        shadow_records: the same for attacks with shadow models, each of which trains on about as many images.
        shadows: number of shadow models.
        generator_records: the same for the search in a generator's latent space.
        seed: of the split, the shadows and the attack networks.
    """

    records: int | None = 10_000
    shadow_records: int = 2_000
    shadows: int = 8
    generator_records: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("records", "shadow_records", "generator_records"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"Expected {name} of at least 1, got {value}.")
        if self.shadows < 2:
            raise InputError(
                f"Expected at least 2 shadow models, one with and one without a record, got {self.shadows}."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What is attacked. A part that is None is not there, and attacks that need it are left out.

    Args:
        description: what it is, in plain words.
        classes: number of classes.
        network: floats in [0, 1] of shape (batch, C, H, W) to logits.
        released: published images (N, H, W, C).
        generator: a published network from latents and classes to images, with a `latent_size`.
        train_shadow: makes another network of the same kind.
    """

    description: str
    classes: int
    network: nn.Module | None = None
    released: Images | None = None
    generator: nn.Module | None = None
    train_shadow: ShadowTrainer | None = None

    def lacks(self, need: Need) -> str | None:
        """Why an attack with this need cannot run; None where it can."""
        if need in ("model", "shadow models") and self.network is None:
            return "there is no network to attack"
        if need == "shadow models" and self.train_shadow is None:
            return "nothing says how to train shadow models"
        if need == "images only" and self.released is None:
            return "there are no released images"
        if need == "generator" and self.generator is None:
            return "the release has no generator that can be rebuilt"
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What the attacker has. Costly parts are computed once, when the first attack asks for them."""

    target: Target
    split: Split
    config: AttackConfig = field(default_factory=AttackConfig)
    progress: Progress = SILENT

    @property
    def network(self) -> nn.Module:
        """The attacked network."""
        if self.target.network is None:
            raise InputError("Expected a target with a network, got one without.")
        return self.target.network

    @property
    def released(self) -> Images:
        """The published images."""
        if self.target.released is None:
            raise InputError("Expected a target with released images, got one without.")
        return self.target.released

    @cached_property
    def known(self) -> LogProbabilities:
        """The network's answers on the known candidates."""
        return log_probabilities(self.network, self.split.known.images)

    @cached_property
    def attacked(self) -> LogProbabilities:
        """The network's answers on the attacked candidates."""
        return log_probabilities(self.network, self.split.attacked.images)

    @cached_property
    def gradients(self) -> "tuple[Evidence, Evidence]":
        """Gradients and activations on the known and on the attacked candidates."""
        from veilset.evaluate.attacks.whitebox import gradients_of

        return gradients_of(self)

    @cached_property
    def shadows(self) -> "Shadows":
        """The shadow models' answers on the candidates that they are for."""
        from veilset.evaluate.attacks.shadows import train_shadows

        return train_shadows(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """The scores of an attack, higher for "member".

    Args:
        candidates: the attacked records that were scored.
        scores: one for each of them.
        threshold: above it the attacker says "member"; fixed without the attacked records' membership.
        details: other numbers that the attack gives.
        pictures: images (N, H, W, C) with the row of a grid in which each stands.
    """

    candidates: Candidates
    scores: Scores
    threshold: float
    details: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, tuple[Images, Labels]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way to tell members from nonmembers."""

    name: str
    title: str
    needs: Need
    run: Callable[[Setting], Outcome]
    paper: str


def log_probabilities(network: nn.Module, images: Images) -> LogProbabilities:
    """Log-softmax in double precision: probabilities near 1 must not become equal."""
    logits = predict(network, images).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    answers: LogProbabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return answers
