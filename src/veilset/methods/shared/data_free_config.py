"""Settings of data-free distillation. All of them are public."""

from dataclasses import dataclass
from typing import get_args

from veilset.core.errors import InputError
from veilset.methods.shared.distillation import Bounding

# A class' mean of fewer images would be mostly chance.
FEWEST_IMAGES_OF_A_CLASS = 8


@dataclass(frozen=True, kw_only=True)
class DataFreeConfig:
    """Public settings of the loop, and of the statistics that its generator matches.

    Args:
        statistics_share: share of the privacy spent on class statistics; 0 leaves them out.
        random_features: of the statistics, a multiple of 4.
        pictures: drawn pictures that fix the features.
        warmup_steps: generator steps on the statistics alone.
        steps: steps in which generator and student take turns.
        student_steps: student steps for each generator step.
        settle_steps: student steps on the finished generator's images.
        batch: generated images of a step.
        student_batch: images of a student step.
        bank: answered images that the student is kept in mind of.
        variety: share of the images that stray (methods/shared/off_distribution.py), in the last bank and in the
            release.
        learning_rate: of the generator, falling to 0 as half a cosine.
        student_learning_rate: of the student, falling to 0 while it settles.
        latent_size: length of the generator's latent vector.
        width: of the generator.
        student: network of the student.
        memory: how much of the mean of earlier steps' images a generator step keeps.
        bounding: of the gradient of the student's outputs, row by row: "clip" or "normalise".
        output_bound: its length.
        temperature: of distillation.
        other_weight: of the classes that the teacher did not pick, in decoupled distillation.
        statistics_weight: of the class means, in the generator's loss.
        teacher_weight: of the teacher's cross-entropy to the class that was asked for.
        disagreement_weight: of images on which student and teacher disagree.
        one_hot_weight: of the paper's first term.
        balance_weight: of its second, the information entropy.
        activation_weight: of its third.
    """

    statistics_share: float = 0.2
    random_features: int = 2048
    pictures: int = 3000
    warmup_steps: int = 500
    steps: int = 100
    student_steps: int = 2
    settle_steps: int = 1200
    batch: int = 200
    student_batch: int = 128
    bank: int = 20_000
    variety: float = 0.6
    learning_rate: float = 0.002
    student_learning_rate: float = 0.003
    latent_size: int = 64
    width: int = 64
    student: str = "convnet"
    memory: float = 0.9
    bounding: Bounding = "clip"
    output_bound: float = 1.0
    temperature: float = 1.0
    other_weight: float = 1.0
    statistics_weight: float = 1.0
    teacher_weight: float = 0.003
    disagreement_weight: float = 0.001
    one_hot_weight: float = 0.0
    balance_weight: float = 0.0
    activation_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.statistics_share < 1:
            raise InputError(f"Expected statistics_share in [0, 1), got {self.statistics_share}.")
        if self.statistics_share == 0 and (self.warmup_steps or self.statistics_weight):
            raise InputError("Without statistics there is nothing to match: set warmup_steps=0, statistics_weight=0.")
        if self.random_features < 4 or self.random_features % 4 or self.pictures < 10:
            raise InputError("Expected random_features to be a multiple of 4, and at least 10 pictures.")
        if self.bounding not in get_args(Bounding):
            raise InputError(f"Expected bounding clip or normalise, got {self.bounding!r}.")
        for name in ("steps", "student_steps", "settle_steps", "student_batch", "latent_size"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} of at least 1, got {getattr(self, name)}.")
        if self.batch < FEWEST_IMAGES_OF_A_CLASS or self.bank < self.batch or self.warmup_steps < 0:
            raise InputError(
                f"Expected batch >= {FEWEST_IMAGES_OF_A_CLASS}, bank >= batch and warmup_steps >= 0, "
                f"got {self.batch}, {self.bank} and {self.warmup_steps}."
            )
        for name in ("learning_rate", "student_learning_rate", "output_bound", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")
        if not 0 <= self.memory < 1 or not 0 <= self.variety <= 1:
            raise InputError(f"Expected memory in [0, 1) and variety in [0, 1], got {self.memory} and {self.variety}.")
        for name in ("statistics", "teacher", "disagreement", "one_hot", "balance", "activation", "other"):
            if getattr(self, f"{name}_weight") < 0:
                raise InputError(f"Expected {name}_weight >= 0, got {getattr(self, f'{name}_weight')}.")
