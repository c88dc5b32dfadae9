"""sanitized_gan: a Wasserstein GAN whose critics keep their gradients clean until they flow into the generator.

Thesis, chapter 3, after Chen, Orekondy, Fritz, "GS-WGAN" (NeurIPS 2020):
critics learn without noise and are never released; what flows from them into a generated image is clipped and noised.

What we changed, because the published accounts do not hold (docs/methods/sanitized_gan.md): critics of disjoint shards,
each with an answer that is clipped whole, all rows of the batch together; no amplification by sampling, since every
critic sees its shard all the time; an explicit clip, since a gradient penalty bounds nothing. And what we added,
because honest noise is large: the critics may score fixed codes of the images, which have far fewer coordinates than
pixels, and there may be thousands of them.

Privacy: unit as in the vault; relation add/remove-one; sensitivity 2 `clip_norm` of a critic's whole answer or of the
sum of all answers; events `steps` Gaussians (`scheme=together`), or one for each visit of a shard, shards in parallel
(`scheme=in_turn`); assumes codes fixed by drawn pictures, and nothing of the critics but the noisy sums
(privacy/mechanisms/shard_critics.py).
"""

import math

from veilset.dpsgd.trainer import each_step, resume
from veilset.methods.base import Context, Fitted
from veilset.methods.sanitized_gan.as_published import train_as_published
from veilset.methods.sanitized_gan.config import SanitizedGanPlan
from veilset.methods.sanitized_gan.rounds import Rounds
from veilset.privacy.session import Critics, Session
from veilset.privacy.vault import Public
from veilset.teachers.fitting import train_teacher

_CHECKPOINT_EVERY = 10
# Noise on a coordinate of an answer, in sizes of that coordinate, past which little is left to follow.
_DROWNED = 20.0


def fit(plan: SanitizedGanPlan, session: Session, public: Public | None, context: Context) -> Fitted:  # noqa: ARG001
    """Let the critics learn and answer, and the generator follow their noised answers."""
    # 1. Fix what critics see of an image, and what generator and critics start as. Reads no data.
    rounds = Rounds(plan.settings, session.facts, context)
    if plan.as_published:
        train_as_published(rounds, session.records_without_guarantee(), session.facts.classes, context)
        return rounds.finish(session.facts)

    # 2. The classifier that labels the release, where it has a share, and the critics of the shards.
    teacher = None if plan.teacher is None else train_teacher(session, plan.teacher, None, context).network
    critics = open_critics(plan, session, rounds)
    critics.keep_every = _CHECKPOINT_EVERY
    resume(critics, rounds.training)

    # 3. At every step the critics whose turn it is learn against generated images and answer; the generator follows.
    # Critics begin anew in a resumed run, so the first visits of this run, not of the plan, warm them up.
    asked, cold = (plan.critics, 1) if critics.together else (1, plan.critics)
    for visit, _ in enumerate(each_step(critics, rounds.training, context.progress, "training the generator")):
        answer = critics.step(rounds.query(warm=visit >= cold))
        rounds.follow(answer, asked, teacher)

    # 4. The trained generator. Nothing from here on sees the session.
    noise = 2 * plan.answers[0].noise_multiplier / asked * math.sqrt(math.prod(plan.shape))
    drowned = (
        f"The noise on the critics' answers is {noise:.0f} times the answers: the generator can hardly have "
        "learnt from them. Take scheme=together, more critics, fewer points or a larger epsilon."
    )
    return rounds.finish(session.facts, teacher, (drowned,) if noise > _DROWNED else ())


def open_critics(plan: SanitizedGanPlan, session: Session, rounds: Rounds) -> Critics:
    """The critics of a session's vault, for all visits of its plan.

    Privacy: as `Critics`; events `plan.answers`.
    """
    return session.critics(
        rounds.critic,
        rounds.critic_view.rows,
        plan.answers,
        critics=plan.critics,
        shape=plan.shape,
        clip_norm=plan.settings.clip_norm,
    )
