"""DPAF: settings, plan and what the method is."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.dpaf.layout import Layout, coarse_count, feature_bound, layout_for
from veilset.methods.shared.facts import require_square
from veilset.methods.shared.generated_config import GeneratedSettings
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, sampling_rate_for
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import TeacherPlan
from veilset.teachers.planning import draft_teacher

# The paper's critic and generator for images of up to 32 pixels; those of 64 have C2-C2-C1.
_PAPER: Mapping[str, Any] = {
    "layout": "C2-C1-x", "conv1": "classifier", "aggregate": "single", "class_maps": False, "memory": 1, "replay": 1,
    "keep_fraction": 0.9, "generator": "dcgan", "generator_width": 128, "generator_sees": "samples",
    "teacher_share": 0.0, "least_difference": 0.0,
}  # fmt: skip


class DpafSettings(GeneratedSettings):
    """Public settings of DPAF."""

    layout: str = setting(
        "auto",
        "Cx-Cy-Cz, the layers of conv1, conv2* and conv3*; x for none. auto is C1-C1-x, with one layer more in conv1 "
        "for each time that images are twice as large as 64 pixels, so that an aggregate stays as long.",
    )
    conv1: Literal["wavelets", "public", "frozen", "classifier"] = setting(
        "wavelets",
        "By formula (wavelets), trained on public images, or by DP-SGD: with the classifier's other layers frozen, or "
        "on all of the classifier.",
    )
    conv1_share: float = setting(0.2, "Share of the privacy for a private conv1.", above=0, below=1)
    conv1_steps: int = setting(200, "Of its DP-SGD.", least=1)
    conv1_batch: int = setting(1024, "Units of such a step on average, as far as there are so many.", least=1)
    conv1_clip_norm: float = setting(1.0, "Of one unit's gradient there.", **CLIP_NORM)
    conv1_learning_rate: float = setting(0.5, "Of its DP-SGD.", **RATE)
    conv1_width: int = setting(16, "Maps of a trained conv1.", least=1)
    conv2_share: float = setting(
        0.1, "Share of the privacy for conv2*; the aggregate gets what the other shares leave.", above=0, below=1
    )
    width: int = setting(32, "Maps of conv2*, the paper's m.", least=1)
    steps: int = setting(300, "Aggregates.", least=1)
    batch: int = setting(2048, "Units of an aggregate on average, as far as there are so many.", least=1)
    mu: int = setting(8, "Aggregates for each step of conv2*, which reads mu batches at once.", least=1)
    n_critic: int = setting(1, "Aggregates for each generator step.", least=1)
    clip_norm: float = setting(1.0, "Of one unit's gradient of conv2*.", **CLIP_NORM)
    keep_fraction: float = setting(
        1.0,
        "Of that gradient's coordinates (and conv1's), the largest, before clipping; the paper's .9 writes every "
        "gradient out, which takes ten times longer.",
        least=1e-6,
        most=1,
    )
    keep_signs: int = setting(
        0, "Of that gradient only the signs of so many coordinates, the largest (TOPAGG); 0 keeps numbers.", least=0
    )
    aggregate: Literal["by_class", "single"] = setting(
        "by_class", "A sum for each class, or one of all images, as in the paper."
    )
    label_at: Literal["conv2", "top"] = setting(
        "conv2", "Where the critic is told the class: at the first layer of conv2* or at FC*."
    )
    class_maps: bool = setting(
        True, "A linear map for each aggregate beside FC*, which the free layers learn quickly; the paper has none."
    )
    memory: int = setting(20, "Aggregates whose noise is averaged.", least=1)
    least_signal: float = setting(
        0.05,
        "Signal to noise, over the aggregates that are averaged, below which a plan is refused: even features that "
        "agree in all images of a class would drown. 0 refuses none.",
        least=0,
    )
    generator_sees: Literal["aggregate", "samples"] = setting(
        "aggregate", "Its images through the critic as an aggregate, or as single samples (the paper)."
    )
    brightness: float = setting(
        0.0,
        "Length of a coarse picture that stands beside an image's features, in lengths of those; they are standardised "
        "and see neither brightness nor contrast nor colour. 0 leaves it out, as in the paper.",
        least=0,
        most=10,
    )
    tanh: bool = setting(False, "Instead of leaky ReLU.")
    critic_learning_rate: float = setting(0.3, "Of SGD for conv3* and FC*.", **RATE)
    top_steps: int = setting(20, "Their steps for each aggregate; they are free.", least=1)
    top_decay: float = setting(
        0.15, "Of their weights; the linear maps of the classes forget within `top_steps` steps.", above=0
    )
    conv2_learning_rate: float = setting(0.002, "Of Adam for conv2*.", **RATE)
    generator_learning_rate: float = setting(0.002, "Of Adam, falling to 0 as half a cosine.", **RATE)
    generated_batch: int = setting(100, "Images of a generator step.", least=1)
    replay: int = setting(5, "Generator steps whose images stay in the generated aggregate.", least=1)
    ema_decay: float = setting(0.98, "Of the generator's weights.", least=0, most=1)
    teacher_share: float = setting(
        0.3, "Share of the privacy for a classifier that labels the release; 0 leaves it out.", least=0, below=1
    )
    teacher_weight: float = setting(0.01, "Of its cross-entropy to the class that was asked for.", least=0)
    teacher_images: int = setting(30, "Images of a generator step that it looks at.", least=1)
    least_difference: float = setting(
        0.3,
        "Of two generated images of one class, pixels in [0, 1]; less is pushed apart, against collapse. 0 leaves it "
        "out, as in the paper.",
        least=0,
    )
    pretrained: Literal["nothing", "critic", "both"] = setting(
        "nothing", "What is trained on public images before the private ones: the critic, or both networks."
    )
    pretraining_steps: int = setting(100, "Turns of that; they cost nothing.", least=1)
    generator: Literal["modulated", "smooth", "dcgan", "resnet"] = setting(
        "modulated", "Network of the generator; dcgan is the paper's."
    )
    generator_width: int = setting(64, "Maps of its first layers.", least=16, multiple_of=16)
    published_noise: float = setting(1.0, "Noise multiplier of --as-published, at all three places.", above=0)
    latent_size: int = setting(64, "Length of the generator's latent vector.", least=1)

    def check(self) -> None:
        """The layout can be read, conv2* moves at all, and the aggregate has a share."""
        super().check()
        if self.layout != "auto":
            Layout.parse(self.layout)
        if self.steps < self.mu:
            raise InputError(f"Expected steps of at least mu={self.mu}, got {self.steps}: conv2* would never move.")
        if self.aggregate_share <= 0:
            raise InputError("Expected shares of conv1, conv2* and teacher that leave something for the aggregate.")
        if self.keep_signs and self.keep_fraction < 1:
            raise InputError("keep_signs is a rule of its own. Set keep_fraction=1.")
        if self.aggregate == "single" and self.label_at == "top":
            raise InputError("A single aggregate has no class to be told at the top. Set label_at=conv2.")

    def blocks(self, classes: int) -> int:
        """How many sums an aggregate holds."""
        return classes if self.aggregate == "by_class" else 1

    @property
    def private_conv1(self) -> bool:
        """Whether conv1 is trained on private images."""
        return self.conv1 in ("frozen", "classifier")

    @property
    def aggregate_share(self) -> float:
        """What the other shares leave."""
        return 1 - self.conv2_share - self.teacher_share - (self.conv1_share if self.private_conv1 else 0.0)


@dataclass(frozen=True, kw_only=True)
class DpafPlan(MethodPlan):
    """The teacher's and conv1's events where there are any, those of the aggregate and of conv2*, and R."""

    settings: DpafSettings
    teacher: TeacherPlan | None
    conv1: Event | None
    aggregate: Event
    conv2: Event
    width: int  # of an image's features
    bound: float  # of their length, the paper's R


@dataclass(frozen=True, kw_only=True)
class DpafPublishedPlan(MethodPlan):
    """The form as published: it spends nothing, because it guarantees nothing."""

    settings: DpafSettings


class Dpaf(Method):
    """A GAN by aggregated features, in the form that holds."""

    name = "dpaf"
    title = "GAN by aggregated features (DPAF)"
    published_reason = (
        "DPAF as published trains conv1 beside layers without noise and conv2* through an aggregate without noise, so "
        "one record moves every clipped gradient: its Theorem 1 does not hold."
    )
    paper = "DPAF: Image Synthesis via Differentially Private Aggregation in Forward Phase, https://arxiv.org/abs/2304.12185"
    claim_of_paper = "The claim does not hold: layers without noise let one record move every clipped gradient."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    settings_type = DpafSettings
    settings: DpafSettings
    published_settings = _PAPER
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 40, "width": 16, "conv1_steps": 20},
        "paper": _PAPER,
    }
    smallest: ClassVar[Mapping[str, Any]] = {
        "layout": "C1-C1-x", "steps": 4, "mu": 2, "width": 4, "generated_batch": 8, "conv1_steps": 2,
    }  # fmt: skip
    _audited: ClassVar[Mapping[str, Any]] = {**smallest, "steps": 5, "width": 2, "teacher_share": 0.0}
    forms = (
        AuditForm(form="aggregate and conv2*", settings=_audited),
        AuditForm(form="with a private conv1", settings={**_audited, "conv1": "frozen"}, runs=300),
    )
    also_tried = (
        AuditForm(
            form="signs of gradients, and brightness",
            settings={**_audited, "conv1": "classifier", "keep_signs": 5, "brightness": 0.5},
        ),
    )

    @property
    def requires_public(self) -> bool:
        """A public conv1 and pre-training need images to train on."""
        return self.settings.conv1 == "public" or self.settings.pretrained != "nothing"

    def plan(self, facts: PublicFacts, budget: Budget) -> DpafPlan | DpafPublishedPlan:
        """A line for each part of the critic; the noise of each by its share."""
        require_square(facts)
        settings = self.settings
        if settings.layout == "auto":
            settings = settings.changed(layout=layout_for(facts.shape[0]))
        size, _, channels = facts.shape
        width = Layout.parse(settings.layout).feature_width(size, settings.width)
        bound = feature_bound(width, settings.brightness)
        width += coarse_count(size, channels) if settings.brightness else 0
        if self.as_published:
            return DpafPublishedPlan(budget=budget, events=(), settings=settings, as_published=True)
        draft = draft_teacher(facts, budget) if settings.teacher_share else None
        parts = []
        if draft is not None:
            parts.append(Part(event=draft.event, share=settings.teacher_share))
        if settings.private_conv1:
            conv1 = _sampled("conv1", settings.conv1_batch, settings.conv1_steps, facts)
            parts.append(Part(event=conv1, share=settings.conv1_share))
        aggregate = _sampled("aggregate", settings.batch, settings.steps, facts)
        conv2 = _sampled("conv2*", settings.mu * settings.batch, settings.steps // settings.mu, facts)
        parts.append(Part(event=aggregate, share=settings.aggregate_share))
        parts.append(Part(event=conv2, share=settings.conv2_share))
        events = share_budget(budget, parts)
        return DpafPlan(
            budget=budget,
            events=tuple(events),
            facts=self._shown(events[-2], width, bound, facts),
            settings=settings,
            decided={"layout": Decision(value=settings.layout, why=f"images have {facts.shape[0]} pixels")}
            if self.settings.layout == "auto"
            else {},
            teacher=None if draft is None else draft.at(events[0].noise_multiplier),
            conv1=events[-3] if settings.private_conv1 else None,
            aggregate=events[-2],
            conv2=events[-1],
            width=width,
            bound=bound,
        )

    def _shown(self, aggregate: Event, width: int, bound: float, facts: PublicFacts) -> dict[str, float | int | str]:
        """Public numbers of the aggregate; one that is all noise is refused."""
        settings = self.settings
        # Features that agree in all images of an even class, against the length of the noise on their sum.
        signal = aggregate.sampling_rate * facts.units / settings.blocks(facts.classes)
        signal /= aggregate.noise_multiplier * math.sqrt(width)
        averaged = signal * math.sqrt(settings.memory)
        if averaged < settings.least_signal:
            raise InputError(
                f"The aggregate would be all noise: its signal is at most {signal:.3g} of it, over {settings.memory} "
                f"aggregates {averaged:.3g}; expected at least {settings.least_signal:g}. Raise "
                f"epsilon, batch={settings.batch} or memory, or lower width={settings.width}."
            )
        return {
            "bound of an image's features, R": bound,
            "units of an aggregate, on average": round(aggregate.sampling_rate * facts.units),
            "signal to noise of an aggregate's sum, at most": signal,
            "the same over the aggregates that are averaged": averaged,
        }


def _sampled(label: str, batch: int, steps: int, facts: PublicFacts) -> Callable[[float], Event]:
    """So many sums over Poisson samples of `batch` units, as far as there are so many, by their noise."""
    rate = sampling_rate_for(min(batch, facts.units), facts.units)
    return lambda noise: Event(label=label, noise_multiplier=noise, sampling_rate=rate, count=steps)
