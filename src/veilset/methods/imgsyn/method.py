"""DP-ImgSyn: public images, aligned with private ones by a private teacher, and labelled by it.

Soufleri, Ravikumar, Roy, "DP-ImgSyn: Dataset Alignment for Obfuscated, Differentially Private Image Synthesis" (TMLR
2024). What we changed: the statistic of all layers is one clipped vector with one noise (the paper charges twenty
layers as one); the teacher is a linear head on scattering features unless a network is named; maps keep their position;
public images come in many variations. The preset `paper` does without the last three.

Privacy: unit as in the vault; relation add/remove-one; sensitivity the clip norm of each sum; events the teacher's
Poisson-sampled Gaussians, one Gaussian for the statistic (none without alignment) and, for `start=merf`, merf's;
assumes that rows depend on their own image alone, which the session tries. docs/imgsyn.md has the argument.
"""

import math

import torch
from torch import Tensor

from veilset.data.tensors import as_floats
from veilset.methods import METHODS
from veilset.methods.base import Context, Fitted
from veilset.methods.imgsyn.config import ImgsynPlan
from veilset.methods.imgsyn.sampling import AlignedImages
from veilset.methods.imgsyn.starting_points import StartingPoints
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.methods.shared.class_counts import sensible_counts
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.fitting import train_teacher

# By class, a row and its count of one are clipped as one vector; the count is this share of the row's bound.
_COUNT_SHARE = 0.25
_AT_ONCE = 100


def fit(plan: ImgsynPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Section 4.1: the teacher and the statistic. Everything after them is post-processing."""
    facts = session.facts
    # 0. Starting images: public ones, or those of a DP generator of the same vault.
    look_alikes = None if plan.start is None else METHODS.get("merf").fit(plan.start, session, public, context)
    starts = StartingPoints(
        settings=plan.settings, facts=facts, public=public, look_alikes=look_alikes, context=context
    )

    # 1. The teacher, by DP-SGD.
    teacher = train_teacher(session, plan.teacher, public, context)

    # 2. One noisy sum of the moments of all layers.
    moments = LayerMoments(teacher, plan.settings.statistics, starts.pictures()) if plan.settings.aligns else None
    target = None if moments is None else _noisy_statistic(plan, session, moments, context)
    return AlignedImages(
        plan=plan, facts=facts, teacher=teacher, moments=moments, target=target, starts=starts, context=context
    )


def _noisy_statistic(plan: ImgsynPlan, session: Session, moments: LayerMoments, context: Context) -> Tensor | None:
    """The mean row of the private images, (1, width), or one for each class; None where nothing is moved towards it."""
    if plan.statistic is None:
        return None
    by_class, bound = plan.settings.by_class, moments.clip_norm

    def row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 (the session places rows by class)
        rows = moments.observe(as_floats(images, context.device))[1].cpu()
        return torch.cat([rows, torch.full_like(rows[:, :1], _COUNT_SHARE * bound)], dim=1) if by_class else rows

    released = session.gaussian_sum(
        row,
        plan.statistic,
        clip_norm=bound * math.hypot(1, _COUNT_SHARE) if by_class else bound,
        by_class=by_class,
        batch=_AT_ONCE,
    )
    facts = session.facts
    means = class_means(released, _COUNT_SHARE * bound, facts) if by_class else released[None] / facts.units
    return means.float().to(context.device)


def class_means(sums: Tensor, count_of_one: float, facts: PublicFacts) -> Tensor:
    """Mean rows from noisy sums (classes, width + 1) whose last column counts; the public total keeps it sensible."""
    return sums[:, :-1] / sensible_counts(sums[:, -1] / count_of_one, facts.units)[:, None]
