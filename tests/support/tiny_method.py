"""The smallest method that does everything a method does: several sums, a checkpointed loop, a generator, samples."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from veilset.core.settings import Settings, setting
from veilset.methods.base import Context, Fitted, Method, MethodPlan, ReleasedModel, Samples
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts


class TinySettings(Settings):
    sums: int = setting(3, "How often the classes are summed.", least=1)


class Tiny(Method):
    """Class means of the pixels, `sums` times over; samples are the average of them."""

    name = "tiny"
    title = "Noisy class means"
    paper = "none"
    claim_of_paper = "There is no paper."
    guarantee = "dp"
    releases = ("images", "labels", "generator")
    settings_type = TinySettings
    settings: TinySettings
    presets: ClassVar = {"default": {}, "fast": {"sums": 1}}
    published_reason = "It is published without noise."

    def plan(self, facts: PublicFacts, budget: Budget) -> MethodPlan:
        def events(noise: float) -> list[Event]:
            return [Event(label=f"class sums {i}", noise_multiplier=noise) for i in range(self.settings.sums)]

        if self.as_published:
            return MethodPlan(budget=budget, events=(), settings=self.settings, as_published=True)
        noise = calibrate(budget, events)
        return MethodPlan(
            budget=budget, events=tuple(events(noise)), settings=self.settings, facts={"noise per pixel": noise}
        )

    @classmethod
    def fit(cls, plan: MethodPlan, session: Session, public: Public | None, context: Context) -> Fitted:
        facts = session.facts
        if plan.as_published:
            records = session.records_without_guarantee()
            images = records.read(np.arange(len(records.labels)))
            means = [images[records.labels == label].mean(axis=0) for label in range(facts.classes)]
            return FittedTiny(means=torch.from_numpy(np.stack(means)).float() / 255)
        total: Any = 0
        for event in plan.own:
            total = total + session.gaussian_sum(
                lambda images, labels: images.flatten(1) / 255, event, clip_norm=4.0, by_class=True
            )
        each = facts.units / facts.classes * len(plan.own)
        return FittedTiny(means=(total / each).float().reshape(facts.classes, *facts.shape))


@dataclass(frozen=True, kw_only=True)
class FittedTiny(Fitted):
    means: torch.Tensor

    def sample(self, count: int, seed: int = 0) -> Samples:
        labels = np.arange(count) % len(self.means)
        images = (self.means[torch.from_numpy(labels)].clamp(0, 1) * 255).round().to(torch.uint8)
        return Samples(images=images.numpy(), labels=labels)

    def models(self) -> dict[str, ReleasedModel]:
        return {"generator": ReleasedModel(weights={"means": self.means}, description={"kind": "class means"})}
