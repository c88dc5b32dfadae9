"""From public facts and a budget to a recipe and its event. Nothing here sees private data or its accuracy.

The rules were fitted on validation parts of MNIST, Fashion-MNIST and CIFAR-10 at once (docs/teachers.md), so that a
user has nothing to tune. One idea carries most of them. SGD adds up the noise of its steps: on features of length 1,
with clip norm C, learning rate r, momentum m, batch B, T steps and noise multiplier s, each logit ends with noise of
deviation about

    r C / (1 - m) * s sqrt(T) / B.

The best trials of every dataset and epsilon had it between 0.7 and 1.8, so it is set to 1. It fixes the
learning rate; how many steps that rate is split into hardly alters the noise, only the stability.
"""

import math

from veilset.core.errors import InputError
from veilset.dpsgd import sampling_rate_for
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import Kind, Recipe, TeacherConfig

# Of 50,000 units, this batch has 3 % (epsilon 1) to 14 % (epsilon 10) more noise than all, for a sixth of the work.
_LARGEST_BATCH = 8192
_LOGIT_NOISE = 1.0
# The gradient of a unit whose class is guessed wrongly is not shortened much, that of a sure one not lengthened.
_HEAD_CLIP_NORM = 0.3
# Steps (learning rate times clip norm) longer than this make the head swing instead of settle.
_LONGEST_STEP = 20.0
_HEAD_STEPS = (100, 600)
_DIRECTIONS = (200, 1000)
# Strength per class over weights per direction; fitted for two and for ten classes.
_STRENGTH_PER_WEIGHT = 0.1

_NETWORK_BATCH = 1024
_NETWORK_STEPS = 400
_NETWORK_CLIP_NORM = 1.0
_NETWORK_STEP_PER_UNIT = 0.2 / 1024


def plan_teacher(config: TeacherConfig, facts: PublicFacts, has_public: bool, budget: Budget) -> tuple[Recipe, Event]:
    """Decide what `config` leaves open, and say what training will cost.

    With `config.noise_multiplier` the noise is taken as given and nothing is calibrated, while batch and steps stay
    those of the budget: a method that shares a budget between events can search for the noise that fits them all.

    Privacy: unit and relation as in the vault; event `steps` Poisson-sampled Gaussians; decided from `facts` and the
    budget alone.
    """
    # The kind whose rules were fitted; it asks nothing of public images and trains in minutes on two cores.
    kind: Kind = "scattering" if config.kind == "auto" else config.kind
    if kind == "pretrained" and not has_public:
        raise InputError(
            "A pretrained teacher needs labelled public images. Pass --public, or teacher kind scattering."
        )
    head_only = kind == "scattering" or (kind == "pretrained" and config.trained == "head")
    strength = _strength(facts, budget)
    batch = config.batch or min(facts.units, _LARGEST_BATCH if head_only else _NETWORK_BATCH)
    steps = config.steps or (_head_steps(strength, config.momentum) if head_only else _NETWORK_STEPS)
    rate = sampling_rate_for(batch, facts.units)

    def event(noise: float) -> Event:
        return Event(label=config.label, noise_multiplier=noise, sampling_rate=rate, count=steps)

    noise = config.noise_multiplier or calibrate(budget, lambda noise: [event(noise)])
    clip_norm = config.clip_norm or (_HEAD_CLIP_NORM if head_only else _NETWORK_CLIP_NORM)
    step = _head_step(noise, batch, steps, config.momentum) if head_only else _NETWORK_STEP_PER_UNIT * batch
    recipe = Recipe(
        kind=kind,
        network=config.network,
        trained=config.trained,
        directions=config.directions or _directions(strength, facts.classes),
        clip_norm=clip_norm,
        learning_rate=config.learning_rate or step / clip_norm,
        momentum=config.momentum,
        average_from=config.average_from,
        pretraining_epochs=config.pretraining_epochs,
    )
    return recipe, event(noise)


def _strength(facts: PublicFacts, budget: Budget) -> float:
    """How many noise deviations the sum of all units of length 1 would be, if it were released once."""
    return facts.units / calibrate(budget, lambda noise: [Event(label="once", noise_multiplier=noise)])


def _head_steps(strength: float, momentum: float) -> int:
    """Enough that no step is too long: together they move a weight by about `strength` logits' noise."""
    least, most = _HEAD_STEPS
    wanted = _LOGIT_NOISE * strength * (1 - momentum) / _LONGEST_STEP
    return min(most, max(least, 50 * math.ceil(wanted / 50)))


def _head_step(noise: float, batch: int, steps: int, momentum: float) -> float:
    """Learning rate times clip norm that leaves each logit with the chosen noise."""
    return min(_LONGEST_STEP, _LOGIT_NOISE * (1 - momentum) * batch / (noise * math.sqrt(steps)))


def _directions(strength: float, classes: int) -> int:
    """Fewer directions where the noise is large: the last ones would carry more noise than news.

    A direction has a weight for each class, and each class has its share of the units only.
    """
    least, most = _DIRECTIONS
    return min(most, max(least, round(strength / classes / (_STRENGTH_PER_WEIGHT * classes))))
