"""What dfd and PATE share: a noisy sum of class statistics to start from, and a generator and a student to release."""

from abc import ABC
from collections.abc import Mapping
from typing import Any

import numpy as np

from veilset.methods.base import Context, Method, ReleasedModel, Samples
from veilset.methods.shared.class_statistics import public_embedding, read_statistics
from veilset.methods.shared.data_free import DataFreeTraining
from veilset.methods.shared.data_free_config import DataFreeConfig
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.session import Session

STATISTICS = "class statistics"

FAST: Mapping[str, Any] = {
    "warmup_steps": 60, "steps": 40, "settle_steps": 200, "batch": 100, "bank": 2000, "random_features": 512,
    "pictures": 600,
}  # fmt: skip
"""The preset `fast`: seconds on small data."""


class DistilledMethod(Method, ABC):
    """A method whose `fit` leaves a finished `DataFreeTraining`."""

    _training: DataFreeTraining

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw images; their soft labels are what the guide sees on the 8-bit images."""
        images, soft_labels = self._fitted().sample(count, seed)
        return Samples(images=images, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator and the student, with what rebuilds them."""
        return {
            name: ReleasedModel(weights=weights, description=description)
            for name, (weights, description) in self._fitted().described().items()
        }

    def _fitted(self) -> DataFreeTraining:
        if not hasattr(self, "_training"):
            raise self.not_fitted()
        return self._training


def begin_training(session: Session, config: DataFreeConfig, context: Context) -> DataFreeTraining:
    """The loop before its first step, with the class statistics read where they have a share.

    Privacy: as `read_statistics`, which spends the event `STATISTICS`; without a share nothing is read.
    """
    embedding, statistics = None, None
    if config.statistics_share:
        embedding = public_embedding(
            session.facts, random_features=config.random_features, pictures=config.pictures, seed=context.seed
        ).to(context.device)
        statistics = read_statistics(session, embedding, label=STATISTICS, device=context.device)
    return DataFreeTraining(config, session.facts, embedding, statistics, context.seed, context.device)


def noise_alone(budget: Budget) -> float:
    """The noise multiplier of a single release that spends the whole budget."""
    return calibrate(budget, lambda noise: [Event(label=STATISTICS, noise_multiplier=noise)])
