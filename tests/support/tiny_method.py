"""The smallest method that does everything a method does: several sums, a checkpointed loop, a generator, samples."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from veilset.core.errors import InputError
from veilset.core.records import Records
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Config):
    sums: int = 3

    def __post_init__(self) -> None:
        if self.sums < 1:
            raise InputError(f"Expected sums >= 1, got {self.sums}.")


class Tiny(Method):
    """Class means of the pixels, `sums` times over; samples are the average of them."""

    name = "tiny"
    title = "Noisy class means"
    paper = "none"
    claim_of_paper = "There is no paper."
    guarantee = "dp"
    releases = ("images", "labels", "generator")
    config_type = TinyConfig
    config: TinyConfig
    presets: ClassVar = {"default": {}, "fast": {"sums": 1}}
    published_reason = "It is published without noise."

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        if self.as_published:
            return Plan(budget=budget, events=())

        def events(noise: float) -> list[Event]:
            return [Event(label=f"class sums {i}", noise_multiplier=noise) for i in range(self.config.sums)]

        noise = calibrate(budget, events)
        return Plan(budget=budget, events=tuple(events(noise)), facts={"noise per pixel": noise})

    def fit(self, session: Session, public: Records | None, context: Context) -> None:
        facts = session.facts
        if self.as_published:
            records = session.records_without_guarantee()
            images = records.read(np.arange(len(records.labels)))
            means = [images[records.labels == label].mean(axis=0) for label in range(facts.classes)]
            self.means = torch.from_numpy(np.stack(means)).float() / 255
            return
        total = 0
        for event in session.plan.events:
            total = total + session.gaussian_sum(
                lambda images, labels: images.flatten(1) / 255,
                label=event.label,
                clip_norm=4.0,
                noise_multiplier=event.noise_multiplier,
                by_class=True,
            )
        each = facts.units / facts.classes * self.config.sums
        self.means = (total / each).float().reshape(facts.classes, *facts.shape)

    def sample(self, count: int, seed: int = 0) -> Samples:
        if not hasattr(self, "means"):
            raise self.not_fitted()
        labels = np.arange(count) % len(self.means)
        images = (self.means[torch.from_numpy(labels)].clamp(0, 1) * 255).round().to(torch.uint8)
        return Samples(images=images.numpy(), labels=labels)

    def models(self) -> dict[str, ReleasedModel]:
        return {"generator": ReleasedModel(weights={"means": self.means}, description={"kind": "class means"})}
