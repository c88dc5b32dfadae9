"""Settings of DPAF. All of them are public."""

from dataclasses import dataclass
from typing import Literal, get_args

from veilset.core.errors import InputError
from veilset.core.ranges import RATES, require_range
from veilset.methods.dpaf.conv1 import Conv1
from veilset.methods.dpaf.critic import Layout
from veilset.privacy.rows import require_clip_norm

Seen = Literal["aggregate", "samples"]
Pretrained = Literal["nothing", "critic", "both"]


@dataclass(frozen=True, kw_only=True)
class AggregatedConfig:
    """Public settings of dpaf.

    Args:
        layout: Cx-Cy-Cz, the layers of conv1, conv2* and conv3*; x for none.
        conv1: "wavelets", "public", "frozen" or "classifier".
        conv1_share: of the privacy, for a private conv1.
        conv1_steps, conv1_batch, conv1_clip_norm, conv1_learning_rate: of its DP-SGD.
        conv1_width: maps of a trained conv1.
        conv2_share: of the privacy, for conv2*; the aggregate gets what the other shares leave.
        width: maps of conv2*, the paper's m.
        steps: aggregates.
        batch: units of an aggregate on average, as far as there are so many.
        mu: aggregates for each step of conv2*, which reads mu batches at once.
        n_critic: aggregates for each generator step.
        clip_norm: of one unit's gradient of conv2*.
        keep_fraction: of that gradient's coordinates, the largest, before clipping; the paper's .9 writes every
            gradient out, which takes ten times longer.
        memory: aggregates whose noise is averaged.
        generator_sees: its images through the critic as an "aggregate", or as single "samples" (the paper).
        tanh: instead of leaky ReLU.
        critic_learning_rate: of SGD for conv3* and FC*.
        top_steps: their steps for each aggregate; they are free.
        top_decay: of their weights; the linear maps of the classes forget within `top_steps` steps.
        conv2_learning_rate: of Adam for conv2*.
        generator_learning_rate: of Adam, falling to 0 as half a cosine.
        generated_batch: images of a generator step.
        replay: generator steps whose images stay in the generated aggregate.
        ema_decay: of the generator's weights.
        teacher_share: of the privacy, for a classifier that labels the release; 0 leaves it out.
        teacher_weight: of its cross-entropy to the class that was asked for.
        teacher_images: images of a generator step that it looks at.
        least_difference: of two generated images of one class, pixels in [0, 1]; less is pushed apart, against
            collapse. 0 leaves it out, as in the paper.
        pretrained: on public images before the private ones: the "critic", "both" networks, or "nothing".
        pretraining_steps: turns of that; they cost nothing.
        latent_size: length of the generator's latent vector.
    """

    layout: str = "C1-C1-x"
    conv1: Conv1 = "wavelets"
    conv1_share: float = 0.2
    conv1_steps: int = 200
    conv1_batch: int = 1024
    conv1_clip_norm: float = 1.0
    conv1_learning_rate: float = 0.5
    conv1_width: int = 16
    conv2_share: float = 0.1
    width: int = 32
    steps: int = 300
    batch: int = 2048
    mu: int = 8
    n_critic: int = 1
    clip_norm: float = 1.0
    keep_fraction: float = 1.0
    memory: int = 20
    generator_sees: Seen = "aggregate"
    tanh: bool = False
    critic_learning_rate: float = 0.3
    top_steps: int = 20
    top_decay: float = 0.15
    conv2_learning_rate: float = 0.002
    generator_learning_rate: float = 0.002
    generated_batch: int = 100
    replay: int = 5
    ema_decay: float = 0.98
    teacher_share: float = 0.3
    teacher_weight: float = 0.01
    teacher_images: int = 30
    least_difference: float = 0.3
    pretrained: Pretrained = "nothing"
    pretraining_steps: int = 100
    latent_size: int = 64

    def __post_init__(self) -> None:
        Layout.parse(self.layout)
        for name, known in (("conv1", Conv1), ("generator_sees", Seen), ("pretrained", Pretrained)):
            if getattr(self, name) not in get_args(known):
                raise InputError(f"Expected {name} to be one of {', '.join(get_args(known))}.")
        counts = ("conv1_steps", "conv1_batch", "conv1_width", "width", "steps", "batch", "mu", "n_critic", "top_steps")
        for name in (
            *counts,
            "memory",
            "generated_batch",
            "replay",
            "teacher_images",
            "latent_size",
            "pretraining_steps",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of at least 1, got {getattr(self, name)}.")
        for name in ("conv1", "critic", "conv2", "generator"):
            require_range(f"{name}_learning_rate", getattr(self, f"{name}_learning_rate"), *RATES)
        if not self.least_difference >= 0:
            raise InputError(f"Expected least_difference >= 0, got {self.least_difference}.")
        if not self.top_decay > 0:
            raise InputError(f"Expected top_decay > 0, got {self.top_decay}.")
        if self.steps < self.mu:
            raise InputError(f"Expected steps of at least mu={self.mu}, got {self.steps}: conv2* would never move.")
        require_clip_norm(self.clip_norm, "conv2*")
        require_clip_norm(self.conv1_clip_norm, "conv1")
        require_range("keep_fraction", self.keep_fraction, 1e-6, 1)
        if not (self.conv2_share > 0 and self.teacher_share >= 0 and self.conv1_share > 0):
            raise InputError("Expected conv1_share > 0, conv2_share > 0 and teacher_share >= 0.")
        if self.aggregate_share <= 0:
            raise InputError("Expected shares of conv1, conv2* and teacher that leave something for the aggregate.")

    @property
    def private_conv1(self) -> bool:
        """Whether conv1 is trained on private images."""
        return self.conv1 in ("frozen", "classifier")

    @property
    def aggregate_share(self) -> float:
        """What the other shares leave."""
        return 1 - self.conv2_share - self.teacher_share - (self.conv1_share if self.private_conv1 else 0.0)
