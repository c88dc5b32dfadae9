"""A student of a teacher and a few labelled images (thesis, equation 4.7). All of it is post-processing."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import torch_generator
from veilset.training.augment import MILD, augment

_BATCH = 128


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """How the student learns.

    Args:
        augmented: let training on the images, while they are matched and for the student, see changed copies.
        copies: how many changed copies the teacher labels for the student, where it sees such.
        temperature: of the soft labels in the student's loss.
        alpha: weight of the soft labels there; the rest is for the hard ones.
        student_updates: training steps of the student.
        student_rate: its learning rate.
    """

    augmented: bool = True
    copies: int = 8000
    temperature: float = 2.0
    alpha: float = 0.9
    student_updates: int = 400
    student_rate: float = 0.004

    def __post_init__(self) -> None:
        for name in ("copies", "student_updates"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not 0 <= self.alpha <= 1:
            raise InputError(f"Expected alpha in [0, 1], got {self.alpha}.")
        for name in ("temperature", "student_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")


def train_student(
    student: nn.Module,
    teacher: nn.Module,
    images: Tensor,
    labels: Tensor,
    config: StudentConfig,
    *,
    seed: int,
    progress: Progress = SILENT,
) -> nn.Module:
    """Train `student` in place on images (n, C, H, W) in [0, 1], on whose device all of it happens."""
    coins = torch_generator(seed, "student", str(images.device))
    if config.augmented:
        rows = torch.arange(config.copies, device=images.device) % len(images)
        images, labels = augment(images[rows], MILD, coins), labels[rows]
    with torch.no_grad():
        known = torch.cat([teacher(part) for part in torch.split(images, 500)])
    soft = (known / config.temperature).softmax(dim=1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=config.student_rate, weight_decay=0.02)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.student_updates)
    with progress.task("training the student", config.student_updates) as task:
        for _ in range(config.student_updates):
            rows = torch.randint(len(images), (_BATCH,), generator=coins, device=images.device)
            logits = student(images[rows])
            knowledge = functional.cross_entropy(logits / config.temperature, soft[rows]) * config.temperature**2
            loss = config.alpha * knowledge + (1 - config.alpha) * functional.cross_entropy(logits, labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            task.advance()
    return student.eval()
