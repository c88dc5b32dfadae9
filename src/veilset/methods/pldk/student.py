"""A student of a teacher and a few labelled images (thesis, equation 4.7). All of it is post-processing."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import torch_generator
from veilset.methods.pldk.config import PldkSettings, StudentSettings
from veilset.models import build_network
from veilset.privacy.vault import PublicFacts
from veilset.training.augment import MILD, augment

_BATCH = 128


def student_form(settings: PldkSettings, facts: PublicFacts) -> dict[str, Any]:
    """What builds the student, and rebuilds it from a release: the experts' network, or one of its own."""
    form: dict[str, Any] = {"name": settings.student, "shape": list(facts.shape), "classes": facts.classes}
    if settings.student == "auto":
        form |= {"name": settings.network, "width": settings.width}
    return form


def build_student(settings: PldkSettings, facts: PublicFacts, seed: int) -> nn.Module:
    """The untrained student."""
    form = student_form(settings, facts)
    return build_network(form.pop("name"), **form | {"shape": facts.shape}, seed=seed)


def train_student(
    student: nn.Module,
    teacher: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: StudentSettings,
    *,
    seed: int,
    progress: Progress = SILENT,
) -> nn.Module:
    """Train `student` in place on images (n, C, H, W) in [0, 1], on whose device all of it happens."""
    coins = torch_generator(seed, "student", str(images.device))
    if settings.augmented:
        rows = torch.arange(settings.copies, device=images.device) % len(images)
        images, labels = augment(images[rows], MILD, coins), labels[rows]
    with torch.no_grad():
        known = torch.cat([teacher(part) for part in torch.split(images, 500)])
    soft = (known / settings.temperature).softmax(dim=1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=settings.student_rate, weight_decay=0.02)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.student_updates)
    with progress.task("training the student", settings.student_updates) as task:
        for _ in range(settings.student_updates):
            rows = torch.randint(len(images), (_BATCH,), generator=coins, device=images.device)
            logits = student(images[rows])
            from_teacher = functional.cross_entropy(logits / settings.temperature, soft[rows]) * settings.temperature**2
            loss = settings.alpha * from_teacher + (1 - settings.alpha) * functional.cross_entropy(logits, labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            task.advance()
    return student.eval()
