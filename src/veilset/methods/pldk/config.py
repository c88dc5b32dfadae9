"""PLDK: settings, plan and what the method is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from veilset.core.errors import InputError
from veilset.core.settings import CLIP_NORM, RATE, Auto, Settings, setting
from veilset.methods.base import AuditForm, Decision, Method, MethodPlan
from veilset.methods.shared.facts import require_square
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, sampling_rate_for
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.release.inputs import InputRelease, open_input
from veilset.teachers.config import KindOrAuto, TeacherPlan, TeacherSettings
from veilset.teachers.planning import draft_teacher

CondensationKind = Literal["distribution", "gradient"]
Lead = Literal["trajectory", "distribution", "gradient", "kernel"]


STUDENT_CHANGES: Mapping[str, float] = {
    "shift": 0.1, "rotation": 12.0, "scale": 0.12, "shear": 0.12, "erase": 0.0, "contrast": 0.3, "brightness": 0.1,
    "noise": 0.1,
}  # fmt: skip
"""What students of a few images should do to them: more than is usual, for they see each a thousand times."""

# Gradients of single images take about ten times as long as embeddings.
_GRADIENT_BATCH = 4096


class MatchingSettings(Settings):
    """How images are matched to trajectories."""

    iterations: int = setting(300, "Moves of the images; 0 leaves them as they start.", least=0)
    student_steps: int = setting(8, "N, training steps on the images that are looked through.", least=1)
    expert_points: int = setting(2, "M, how many kept points the expert is ahead.", least=1)
    latest_start: float = setting(
        0.5, "The last point from which a match may start, as a share of the trajectory.", least=0, most=1
    )
    match_batch: int = setting(50, "Images of one training step.", least=1)
    image_rate: float = setting(0.2, "Learning rate of the images.", **RATE)
    first_step: float = setting(
        0.02, "Learning rate of the training on the images, to begin with; it is learned.", **RATE
    )
    low_memory: bool = setting(False, "Compute each training step twice in the place of keeping it.")


class CondensationSettings(Settings):
    """How images are condensed."""

    networks: int = setting(20, "Rounds; each asks one network for one noisy sum.", least=1)
    network_batch: int | Auto = setting(
        "auto",
        "Units that a network sees on average, as far as there are so many; auto is all of them for class means, and "
        "4096 for class gradients, which take longer.",
        least=1,
    )
    moves: int = setting(100, "Of the images in each round.", least=1)
    condensing_rate: float = setting(0.1, "Learning rate of the images.", **RATE)
    restart: int = setting(
        10,
        "Rounds after which a network of gradient matching is drawn anew; until then it learns from the images.",
        least=1,
    )
    subspace: int = setting(
        0,
        "Of class means: the main directions of what each network sees in public images, or in drawn ones where there "
        "are none; the means are taken in these alone, which leaves less noise. 0 takes all of it.",
        least=0,
        most=500,
    )


class KernelSettings(Settings):
    """How images are matched to the moments of a kernel."""

    kernel_features: int = setting(128, "Length of the code that the kernel is the product of.", least=2, most=999)
    kernel_steps: int = setting(300, "Moves of the images, at condensing_rate; they cost nothing.", least=1)
    ridge: float = setting(0.1, "Added to the diagonal of the kernel of the images.", above=0)


class StudentSettings(Settings):
    """How the student learns."""

    augmented: bool = setting(
        True, "Let training on the images, while they are matched and for the student, see changed copies."
    )
    copies: int = setting(
        8000, "How many changed copies the teacher labels for the student, where it sees such.", least=1
    )
    label_temperature: float = setting(
        4.0,
        "Of the released soft labels. So few images must say much: at a high temperature a label also says how unlike "
        "the other classes are.",
        above=0,
    )
    temperature: float = setting(2.0, "Of the soft labels in the student's loss.", above=0)
    alpha: float = setting(0.9, "Weight of the soft labels there; the rest is for the hard ones.", least=0, most=1)
    student: str = setting("auto", "Its network; auto is that of the experts, in their width.")
    student_updates: int = setting(400, "Training steps of the student.", least=1)
    student_rate: float = setting(0.004, "Its learning rate.", **RATE)


class PldkSettings(MatchingSettings, CondensationSettings, KernelSettings, StudentSettings):
    """Public settings of PLDK."""

    matching: Literal["auto", "trajectory", "distribution", "gradient", "kernel"] = setting(
        "auto",
        "What images are led by: the trajectory of experts, class means (distribution) or class gradients of networks "
        "that are not trained on private images, or how well kernel ridge regression on them predicts (kernel). auto "
        "is the trajectory as published, and else class means, which noise and a small machine hurt least.",
    )
    images_per_class: int = setting(10, "How many images of each class are distilled.", least=1)
    experts: int = setting(1, "Trajectories to match; they share what the teacher leaves.", least=1)
    expert_steps: int = setting(200, "DP-SGD steps of an expert.", least=1)
    expert_every: int = setting(10, "Steps between the kept points of a trajectory.", least=1)
    expert_batch: int = setting(1024, "Units of a step on average, as far as there are so many.", least=1)
    expert_rate: float = setting(0.2, "Learning rate of an expert.", **RATE)
    expert_momentum: float = setting(
        0.0, "Of its SGD; a network on the images has none to follow with.", least=0, below=1
    )
    clip_norm: float = setting(1.0, "Of one unit's gradient.", **CLIP_NORM)
    network: str = setting("convnet", "Of experts and of what condensation asks.")
    width: int = setting(16, "Of that network.", least=1)
    teacher: KindOrAuto = setting("auto", "Kind of the teacher: head or network (docs/explanation/teachers.md).")
    teacher_network: str = setting("convnet", "Of the teacher, where it is a network, and as published.")
    teacher_share: float = setting(
        0.5, "Share of the privacy for the teacher that labels the images.", above=0, below=1
    )
    start: Literal["auto", "noise", "drawn", "public", "release", "condensed", "real"] = setting(
        "auto",
        "What the images start as: public images, noise, drawn patterns, images of another release, or auto: public "
        "where there are any, else drawn. condensed, for trajectories, lets class means lead them first, within one "
        "budget. real, private images, is for `--as-published` alone.",
    )
    release: str = setting(
        "", "Folder of that other release. It is verified, and what it cost is part of this run's budget."
    )
    pretraining: bool = setting(False, "Let the student learn from all images of the other release before these.")
    release_is_of_others: bool = setting(
        False,
        "Declare that it is of other people, so that it costs these nothing; the certificate says that you did.",
    )

    def check(self) -> None:
        """A folder goes with the start that needs one."""
        super().check()
        if (self.start == "release" or self.pretraining) != bool(self.release):
            raise InputError(
                "Expected a folder for release beside start=release or pretraining=true and nowhere else, got "
                f"start={self.start}, pretraining={str(self.pretraining).lower()} and release={self.release!r}."
            )
        if self.start == "condensed" and self.matching != "trajectory":
            raise InputError("start=condensed is for matching=trajectory: other images are condensed anyway.")
        if self.teacher == "pretrained":
            raise InputError("Expected teacher=auto, head or network, got pretrained.")
        if self.release_is_of_others and not self.release:
            raise InputError("Expected a release beside release_is_of_others=true. Leave it out.")


@dataclass(frozen=True, kw_only=True)
class PldkPlan(MethodPlan):
    """What images are led by, what teacher and lead spend (nothing as published), and the release to start from."""

    settings: PldkSettings
    matching: Lead
    teacher: TeacherPlan | None = None
    experts: tuple[Event, ...] = ()
    condensation: Event | None = None
    moments: Event | None = None
    network_batch: int = 0
    built_upon: InputRelease | None = None

    @property
    def condensing(self) -> CondensationKind | None:
        """What condensation asks for, where there is any."""
        if self.matching == "trajectory":
            return "distribution" if self.settings.start == "condensed" else None
        return None if self.matching == "kernel" else self.matching

    def certified(self) -> dict[str, Any]:
        """The settings, with the name of the other release and the SHA-256 of its certificate for its path."""
        other = self.built_upon
        known = {} if other is None else {"release": other.path.name, "release_sha256": other.certificate_sha256}
        return super().certified() | known | {"student_changes": STUDENT_CHANGES}


class Pldk(Method):
    """Distilled images, soft labels and a student."""

    name = "pldk"
    title = "Distilled data and knowledge (PLDK)"
    paper = "Thesis, chapter 4; trajectory matching: Cazenavette et al., CVPR 2022, https://arxiv.org/abs/2203.11932"
    claim_of_paper = (
        "The thesis claims no guarantee, and there is none: experts and teacher see the private images without "
        "noise, and the distilled images start as private ones."
    )
    version = 2
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "student")
    settings_type = PldkSettings
    settings: PldkSettings
    any_number_of_images = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {
            "expert_steps": 30, "expert_every": 5, "expert_batch": 256, "iterations": 10, "student_steps": 3,
            "student_updates": 60, "copies": 1000, "networks": 10, "network_batch": 500, "moves": 5,
        },
        "paper": {
            "matching": "trajectory", "images_per_class": 50, "experts": 3, "width": 32, "iterations": 2000,
            "student_steps": 40, "expert_points": 4, "teacher": "network", "augmented": True, "copies": 500,
        },
    }  # fmt: skip
    smallest: ClassVar[Mapping[str, Any]] = {
        "networks": 3, "moves": 1, "width": 4, "images_per_class": 20, "copies": 40, "student_updates": 2,
        "expert_steps": 6, "expert_every": 1, "iterations": 2, "student_steps": 2, "kernel_features": 16,
        "kernel_steps": 2,
    }  # fmt: skip
    _audited: ClassVar[Mapping[str, Any]] = {
        "width": 4, "images_per_class": 2, "student_updates": 1, "networks": 3, "moves": 1, "clip_norm": 0.01,
    }  # fmt: skip
    forms = (
        AuditForm(
            form="expert and teacher",
            settings={
                **_audited, "matching": "trajectory", "expert_steps": 4, "expert_every": 1, "iterations": 1,
                "student_steps": 1,
            },
            runs=300,
        ),
        AuditForm(
            form="class means of networks",
            settings={**_audited, "matching": "distribution", "network_batch": "auto"},
            runs=300,
        ),
        AuditForm(
            form="class means, then an expert",
            settings={
                **_audited, "matching": "trajectory", "start": "condensed", "network_batch": "auto", "expert_steps": 4,
                "expert_every": 1, "iterations": 1, "student_steps": 1,
            },
            runs=300,
        ),
        AuditForm(form="class gradients of networks", settings={**_audited, "matching": "gradient"}, runs=300),
        AuditForm(
            form="moments of a kernel",
            settings={**_audited, "matching": "kernel", "kernel_features": 8, "kernel_steps": 1},
            runs=300,
        ),
    )  # fmt: skip
    also_tried = (
        AuditForm(
            form="class means in a public subspace",
            settings={**_audited, "matching": "distribution", "network_batch": "auto", "subspace": 3},
        ),
    )
    published_reason = (
        "As published, experts and teacher are trained on the private images without noise; low membership-inference "
        "accuracy is evidence, not a guarantee."
    )

    def __init__(self, settings: Settings | None = None, *, as_published: bool = False) -> None:
        super().__init__(settings, as_published=as_published)
        if self.settings.start == "real" and not as_published:
            raise InputError(
                "Images that start as private ones stay private ones. Start from noise, drawn or public, or pass "
                "--as-published: such a release has no guarantee, and only the student leaves."
            )

    @property
    def requires_public(self) -> bool:
        """Only to start from public images by name."""
        return self.settings.start == "public"

    def inputs(self) -> tuple[InputRelease, ...]:
        """The release to start from."""
        return (self._input,) if self.settings.release else ()

    @cached_property
    def _input(self) -> InputRelease:
        """Verified once, so that what was verified is what is planned, paid for and used."""
        return open_input(Path(self.settings.release), is_of_others=self.settings.release_is_of_others)

    def plan(self, facts: PublicFacts, budget: Budget) -> PldkPlan:
        """A run of DP-SGD for each expert, or the rounds of condensation, and the teacher's, within one budget."""
        settings = self.settings
        matching, decided = self._matching()
        if matching == "kernel":
            require_square(facts)
        built_upon = self._input if settings.release else None
        if self.as_published:
            return PldkPlan(
                budget=budget, events=(), settings=settings, as_published=True, decided=decided, matching=matching,
                network_batch=self._network_batch(facts, matching), built_upon=built_upon,
            )  # fmt: skip
        asked = TeacherSettings(kind=settings.teacher, network=settings.teacher_network, bands=1)
        draft = draft_teacher(facts, budget, asked)
        follows_experts, left = matching == "trajectory", 1 - settings.teacher_share
        by_kernel = matching == "kernel"
        condenses = not (follows_experts or by_kernel) or settings.start == "condensed"
        network_batch = self._network_batch(facts, matching)
        if condenses and settings.network_batch == "auto":
            why = "all units, for the least noise" if network_batch == facts.units else "class gradients take long"
            decided["network_batch"] = Decision(value=network_batch, why=why)
        experts = [
            _sampled(f"expert {number + 1}", settings.expert_batch, settings.expert_steps, facts)
            for number in range(settings.experts if follows_experts else 0)
        ]
        condensing = [_sampled("condensation", network_batch, settings.networks, facts)] if condenses else []
        moments = [_kernel_moments] if by_kernel else []
        # Both leads get the same, and experts share theirs.
        kinds = [kind for kind in (condensing, experts, moments) if kind]
        parts = [Part(event=event, share=left / len(kinds) / len(kind)) for kind in kinds for event in kind]
        first, *others = share_budget(budget, [Part(event=draft.event, share=settings.teacher_share), *parts])
        return PldkPlan(
            budget=budget,
            events=(first, *others),
            facts={"distilled images": settings.images_per_class * facts.classes},
            settings=settings,
            decided=decided,
            matching=matching,
            teacher=draft.at(first.noise_multiplier),
            experts=() if by_kernel else tuple(others[len(condensing) :]),
            condensation=others[0] if condenses else None,
            moments=others[0] if by_kernel else None,
            network_batch=network_batch,
            built_upon=built_upon,
        )

    def default_samples(self, facts: PublicFacts) -> int:
        """All of them."""
        return self.settings.images_per_class * facts.classes

    def _network_batch(self, facts: PublicFacts, matching: Lead) -> int:
        """Units of one sum of condensation.

        A sum over all units has less noise for each of them than sums over samples that cost the same: amplification
        by sampling gives back less than the sample takes away.
        """
        wanted = self.settings.network_batch
        if wanted == "auto":
            wanted = _GRADIENT_BATCH if matching == "gradient" else facts.units
        return min(wanted, facts.units)

    def _matching(self) -> tuple[Lead, dict[str, Decision]]:
        """What images are led by in this form, and why, where a rule decides."""
        if self.settings.matching != "auto":
            return self.settings.matching, {}
        if self.as_published:
            return "trajectory", {"matching": Decision(value="trajectory", why="so it was published")}
        why = "noise and a small machine hurt class means least"
        return "distribution", {"matching": Decision(value="distribution", why=why)}


def _kernel_moments(noise: float) -> Event:
    """One sum over all units."""
    return Event(label="kernel moments", noise_multiplier=noise)


def _sampled(label: str, batch: int, steps: int, facts: PublicFacts) -> Callable[[float], Event]:
    """So many sums over Poisson samples of `batch` units, as far as there are so many, by their noise."""
    rate = sampling_rate_for(min(batch, facts.units), facts.units)
    return lambda noise: Event(label=label, noise_multiplier=noise, sampling_rate=rate, count=steps)
