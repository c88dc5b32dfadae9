"""dpgan: settings, plan and what the method is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, Auto, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.choices import AdversarialLoss
from veilset.methods.shared.facts import require_square
from veilset.methods.shared.generated_config import GeneratedSettings
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, sampling_rate_for
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import TeacherPlan
from veilset.teachers.planning import draft_teacher

_LINEAR_RATE, _NETWORK_RATE = 100.0, 0.001
_WIDTHS = {"modulated": 64, "smooth": 64, "dcgan": 256, "resnet": 128}


class DpganSettings(GeneratedSettings):
    """Public settings of dpgan."""

    critic: Literal["kernel", "scattering", "dcgan", "resnet"] = setting(
        "kernel", "Linear maps on fixed features (kernel, scattering), or a whole network (dcgan, resnet)."
    )
    generator: Literal["modulated", "smooth", "dcgan", "resnet"] = setting("modulated", "Network of the generator.")
    loss: AdversarialLoss = setting("wasserstein", "Of both sides.")
    steps: int = setting(
        400, "Steps of the critic; private ones, but for a linear critic with the loss wasserstein.", least=1
    )
    batch: int = setting(8192, "Units of a private step on average, as far as there are so many.", least=1)
    clip_norm: float = setting(1.0, "Of one unit's gradient.", **CLIP_NORM)
    critic_learning_rate: float | Auto = setting("auto", "Of SGD for a linear critic, of Adam for a network.", **RATE)
    critic_memory: int = setting(
        1, "Steps after which a linear critic has forgotten; its weights decay accordingly. 0 is never.", least=0
    )
    real_memory: int = setting(
        100, "Steps over which the noisy gradients of the real half are averaged; 1 is no average.", least=1
    )
    critic_steps: int = setting(1, "Critic steps for each generator step, at first.", least=1)
    most_critic_steps: int = setting(1, "Where the balance may take that number.", least=1)
    penalty: float = setting(0.0, "Weight of the critic's squared gradient at generated images; for networks.", least=0)
    generated_batch: int = setting(100, "Images of a generator step.", least=1)
    replay: int = setting(10, "Generator steps whose images the critic keeps seeing.", least=1)
    generator_learning_rate: float = setting(0.002, "Of Adam, falling to 0 as half a cosine.", **RATE)
    ema_decay: float = setting(0.98, "Of the average of the generator's weights.", least=0, below=1)
    teacher_share: float = setting(
        0.3, "Share of the privacy spent on a classifier; 0 leaves it out.", least=0, below=1
    )
    teacher_weight: float = setting(0.01, "Of the classifier's cross-entropy to the class that was asked for.", least=0)
    teacher_images: int = setting(30, "Images of a generator step that the classifier looks at.", least=1)
    least_difference: float = setting(
        0.0,
        "Of two generated images of one class, pixels in [0, 1]; less is pushed apart, against collapse. 0 leaves it "
        "out.",
        least=0,
    )
    pretraining_steps: int = setting(0, "Steps on public images before the private ones; they cost nothing.", least=0)
    random_features: int = setting(2048, "Random Fourier features of the kernel.", least=4, multiple_of=4)
    pictures: int = setting(3000, "Drawn pictures that fix the kernel.", least=10)
    latent_size: int = setting(64, "Length of the generator's latent vector.", least=1)
    width: int | Auto = setting("auto", "Of the generator.", least=16, multiple_of=16)

    def check(self) -> None:
        """The balance needs room, and a penalty a network."""
        super().check()
        if self.critic_steps > self.most_critic_steps:
            raise InputError(
                f"Expected critic_steps <= most_critic_steps, got {self.critic_steps} and {self.most_critic_steps}."
            )
        if self.penalty and self.is_linear:
            raise InputError(
                "A linear critic is held by critic_memory; a penalty is for dcgan and resnet. Set penalty=0."
            )

    @property
    def is_linear(self) -> bool:
        """Whether the critic learns a linear map on fixed features."""
        return self.critic in ("kernel", "scattering")

    @property
    def asks_once(self) -> bool:
        """Whether the critic's gradient on real images is the same at every step, so that it is released once."""
        return self.is_linear and self.loss == "wasserstein"


@dataclass(frozen=True, kw_only=True)
class DpganPlan(MethodPlan):
    """The critic's steps and, where it has a share, the classifier; and what rules chose for the two networks."""

    settings: DpganSettings
    teacher: TeacherPlan | None
    critic: Event
    critic_learning_rate: float
    width: int


class Dpgan(Method):
    """A GAN with a DP-SGD critic and a free generator."""

    name = "dpgan"
    title = "GAN with a private critic"
    paper = (
        "Xie et al. 2018, https://arxiv.org/abs/1802.06739; Bie, Kamath, Zhang 2023, https://arxiv.org/abs/2302.02936"
    )
    claim_of_paper = (
        "DP-SGD on the critic holds, as in the paper of 2023. The accounting of the paper of 2018 is its own, and "
        "we do not rely on it."
    )
    version = 2
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "generator")
    settings_type = DpganSettings
    settings: DpganSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"steps": 60, "random_features": 512, "pictures": 600},
        "convolutional": {
            "critic": "dcgan", "batch": 1024, "clip_norm": 1.0, "critic_steps": 4, "most_critic_steps": 32,
        },
        "plain": {"teacher_share": 0.0, "teacher_weight": 0.0},
    }  # fmt: skip
    smallest: ClassVar[Mapping[str, Any]] = {
        "steps": 3, "random_features": 64, "pictures": 40, "generated_batch": 8,
    }  # fmt: skip
    forms = (
        AuditForm(
            form="linear critic and classifier",
            settings={"steps": 4, "random_features": 64, "pictures": 40, "generated_batch": 8},
        ),
        AuditForm(
            form="linear critic, hinge",
            settings={
                "loss": "hinge",
                "steps": 4,
                "random_features": 64,
                "pictures": 40,
                "generated_batch": 8,
                "teacher_share": 0.0,
            },
            runs=300,
        ),
        AuditForm(
            form="convolutional critic",
            settings={"critic": "dcgan", "steps": 4, "batch": 100, "teacher_share": 0.0, "generated_batch": 8},
            runs=300,
        ),
    )

    @property
    def requires_public(self) -> bool:
        """Pre-training needs images to train on."""
        return self.settings.pretraining_steps > 0

    def plan(self, facts: PublicFacts, budget: Budget) -> DpganPlan:
        """The critic's steps and the classifier's; one factor on the noise of both is calibrated to the budget."""
        require_square(facts)
        config = self.settings
        share = config.teacher_share
        rate = 1.0 if config.asks_once else sampling_rate_for(min(config.batch, facts.units), facts.units)
        count = 1 if config.asks_once else config.steps

        def critic_at(noise: float) -> Event:
            return Event(label="critic", noise_multiplier=noise, sampling_rate=rate, count=count)

        parts = [Part(event=critic_at, share=1 - share)]
        draft = draft_teacher(facts, budget) if share else None
        if draft is not None:
            parts.insert(0, Part(event=draft.event, share=share))
        events = share_budget(budget, parts)
        critic, decided = events[-1], self._decisions()
        return DpganPlan(
            budget=budget,
            settings=config,
            events=tuple(events),
            facts={
                "private steps of the critic": count,
                "units of a private step, on average": round(rate * facts.units),
                "noise of a private step over the clip norm, per coordinate of the mean": (
                    critic.noise_multiplier / (rate * facts.units)
                ),
                "generator steps, which cost nothing": config.steps // config.critic_steps,
            },
            decided={name: found for name, found in decided.items() if getattr(config, name) == "auto"},
            teacher=None if draft is None else draft.at(events[0].noise_multiplier),
            critic=critic,
            critic_learning_rate=decided["critic_learning_rate"].value,
            width=decided["width"].value,
        )

    def _decisions(self) -> dict[str, Decision]:
        """The settings that may be `auto`, with the rule's value where they are."""
        config = self.settings
        rate = _LINEAR_RATE if config.is_linear else _NETWORK_RATE
        width = _WIDTHS[config.generator]
        return {
            "critic_learning_rate": Decision(
                value=rate if config.critic_learning_rate == "auto" else config.critic_learning_rate,
                why="a linear critic learns by SGD" if config.is_linear else "a network learns by Adam",
            ),
            "width": Decision(
                value=width if config.width == "auto" else config.width, why=f"the generator is {config.generator}"
            ),
        }
