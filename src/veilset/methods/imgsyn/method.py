"""DP-ImgSyn: public images, aligned with private ones by a private teacher, and labelled by it.

Soufleri, Ravikumar, Roy, "DP-ImgSyn: Dataset Alignment for Obfuscated, Differentially Private Image Synthesis" (TMLR
2024). What we changed: the statistic of all layers is one clipped vector with one noise (the paper charges twenty
layers as one); the teacher is a linear head on scattering features unless a network is named; maps keep their position;
public images come in many variations. The preset `paper` does without the last three.

Privacy: unit as in the vault; relation add/remove-one; sensitivity the clip norm of each sum; events the teacher's
Poisson-sampled Gaussians, one Gaussian for the statistic (none without alignment), one for the count where it is bought
and, for `start=merf` or `latent`, theirs; assumes that rows depend on their own image alone, which the session tries.
docs/methods/imgsyn.md has the argument, docs/how_to/findings.md that of counts and of several findings per image.
"""

import math

import torch
from torch import Tensor

from veilset.data.tensors import as_floats
from veilset.methods import METHODS
from veilset.methods.base import Context, Fitted
from veilset.methods.imgsyn.config import ImgsynPlan
from veilset.methods.imgsyn.sampling import AlignedImages
from veilset.methods.imgsyn.statistic import LayerMoments, public_pictures_of
from veilset.methods.shared.class_counts import sensible_counts
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.counts import noisy_counts
from veilset.teachers.fitting import train_teacher

# By class, a row and its count of one are clipped as one vector; the count is this share of the row's bound.
_COUNT_SHARE = 0.25
_AT_ONCE = 100


def fit(plan: ImgsynPlan, session: Session, public: Public | None, context: Context) -> Fitted:
    """Section 4.1: the teacher and the statistic. Everything after them is post-processing."""
    facts = session.facts
    # 0. Starting images: public ones, or those of a DP generator of the same vault.
    look_alikes = None
    if plan.start is not None:
        look_alikes = METHODS.get(plan.settings.start).fit(plan.start, session, public, context)

    # 1. A count of the classes, where one is bought, and the teacher, by DP-SGD.
    counts = None if plan.count is None else noisy_counts(session, plan.count)
    wants_even = plan.settings.balance == "even"
    teacher = train_teacher(session, plan.teacher, public, context, counts=counts if wants_even else None)

    # 2. One noisy sum of the moments of all layers.
    pictures = public_pictures_of(public, facts.shape, context)
    moments = LayerMoments(teacher, plan.settings.statistics, pictures) if plan.aligns else None
    target = None if moments is None else _noisy_statistic(plan, session, moments, context)
    return AlignedImages(
        plan=plan,
        facts=facts,
        teacher=teacher,
        counts=counts,
        moments=moments,
        target=target,
        public=public,
        look_alikes=look_alikes,
        context=context,
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
    """Mean rows from noisy sums (classes, width + 1) whose last column counts; the public total keeps it sensible.

    An image with several findings stands in several rows and is clipped as one vector, its counts of one with it. So
    the mean of a finding is a weighted one, in which images with many findings weigh less.
    """
    counts = sensible_counts(sums[:, -1] / count_of_one, facts.units, findings=facts.findings)
    return sums[:, :-1] / counts[:, None]
