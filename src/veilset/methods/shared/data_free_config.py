"""Settings of data-free distillation (dfd and pate), which all are public. Torch-free."""

from collections.abc import Mapping
from typing import Any, Literal

from veilset.core.errors import InputError
from veilset.core.settings import RATE, Settings, setting

Bounding = Literal["clip", "normalise"]
StudentLoss = Literal["distance", "cross_entropy"]

FEWEST_IMAGES_OF_A_CLASS = 8
"""A class' mean of fewer images would be mostly chance."""

STATISTICS = "class statistics"
"""What the event of the class statistics is called."""

FAST: Mapping[str, Any] = {
    "warmup_steps": 60, "steps": 40, "settle_steps": 200, "batch": 100, "bank": 2000, "random_features": 512,
    "pictures": 600,
}  # fmt: skip
"""The preset `fast`: seconds on small data."""

SMALLEST: Mapping[str, Any] = {
    "warmup_steps": 2, "steps": 2, "settle_steps": 2, "random_features": 64, "pictures": 40, "batch": 16,
    "student_batch": 16, "bank": 32,
}  # fmt: skip
"""Sizes that make any preset with statistics run in seconds."""

AUDITED: Mapping[str, Any] = {**SMALLEST, "warmup_steps": 1, "steps": 1, "settle_steps": 1}
"""Sizes for an audit, which runs a method many times."""


class DataFreeSettings(Settings):
    """Public settings of the loop, and of the statistics that its generator matches."""

    statistics_share: float = setting(
        0.2, "Share of the privacy spent on class statistics; 0 leaves them out.", least=0, below=1
    )
    random_features: int = setting(2048, "Random features of the statistics.", least=4, multiple_of=4)
    pictures: int = setting(3000, "Drawn pictures that fix the features.", least=10)
    warmup_steps: int = setting(500, "Generator steps on the statistics alone.", least=0)
    steps: int = setting(100, "Steps in which generator and student take turns.", least=1)
    student_steps: int = setting(2, "Student steps for each generator step.", least=1)
    settle_steps: int = setting(1200, "Student steps on the finished generator's images.", least=0)
    batch: int = setting(200, "Generated images of a step.", least=FEWEST_IMAGES_OF_A_CLASS)
    student_batch: int = setting(128, "Images of a student step.", least=1)
    bank: int = setting(
        20_000, "Answered images that the student is kept in mind of; 0 is those of the step at hand alone.", least=0
    )
    augmented: bool = setting(True, "Let the student see changed copies of answered images.")
    off_distribution: float = setting(
        0.6, "Share of the images that stray on purpose, in the last bank and in the release.", least=0, most=1
    )
    drawn_share: float = setting(
        0.0,
        "Share of drawn patterns in the last bank and in the release: no generator has to learn them.",
        least=0,
        most=1,
    )
    learning_rate: float = setting(0.002, "Of the generator, falling to 0 as half a cosine.", **RATE)
    student_learning_rate: float = setting(0.003, "Of the student, falling to 0 while it settles.", **RATE)
    latent_size: int = setting(64, "Length of the generator's latent vector.", least=1)
    width: int = setting(64, "Of the generator.", least=1)
    student: str = setting("convnet", "Network of the student.")
    memory: float = setting(
        0.9, "How much of the mean of earlier steps' images a generator step keeps.", least=0, below=1
    )
    bounding: Bounding = setting("clip", "Of the gradient of the student's outputs, row by row.")
    output_bound: float = setting(1.0, "Length to which that gradient is bounded.", above=0)
    temperature: float = setting(1.0, "Of distillation.", above=0)
    other_weight: float = setting(
        1.0, "Of the classes that the teacher did not pick, in decoupled distillation.", least=0
    )
    student_loss: StudentLoss = setting(
        "distance",
        "Between the student's outputs and those shifted against the bounded gradient: half the squared distance, or "
        "the paper's cross-entropy.",
    )
    statistics_weight: float = setting(1.0, "Of the class means, in the generator's loss.", least=0)
    teacher_weight: float = setting(0.003, "Of the teacher's cross-entropy to the class that was asked for.", least=0)
    disagreement_weight: float = setting(0.001, "Of images on which student and teacher disagree.", least=0)
    student_weight: float = setting(
        0.0, "Of the student's own loss in the generator's (line 14 of the paper's Algorithm 1).", least=0
    )
    one_hot_weight: float = setting(0.0, "Of the paper's first term.", least=0)
    balance_weight: float = setting(0.0, "Of the paper's second term, the information entropy.", least=0)
    activation_weight: float = setting(0.0, "Of the paper's third term.", least=0)

    def check(self) -> None:
        """Statistics are paid for where they are used; a batch has room in the bank."""
        super().check()
        if self.statistics_share == 0 and (self.warmup_steps or self.statistics_weight):
            raise InputError("Without statistics there is nothing to match: set warmup_steps=0, statistics_weight=0.")
        if self.bank and self.bank < self.batch:
            raise InputError(f"Expected bank >= batch, or 0, got {self.bank} and {self.batch}.")
        if self.settle_steps and not self.bank:
            raise InputError("A student without a bank has nothing to settle on: set settle_steps=0.")
