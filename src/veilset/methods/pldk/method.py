"""pldk: a few images distilled from private data through noise, labelled softly by a private teacher, and a student.

Thesis, chapter 4: trajectory matching (Cazenavette et al., CVPR 2022),
then knowledge transfer. What we changed: experts and teacher are trained by DP-SGD, or images follow noisy class sums
(methods/pldk/condensation.py); none starts as a private one; all that follows is post-processing (docs/pldk.md).
`--as-published` has neither noise nor a guarantee.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity
`clip_norm` of a step, or 1 of a sum of class means; events Poisson-sampled Gaussians: `expert_steps` for each expert or
`networks` for condensation, and the teacher's; assumes what DP-SGD and condensation assume.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.core.records import Images, Labels, Records
from veilset.dpsgd import PrivateTraining, sampling_rate_for, train_private
from veilset.dpsgd.trainer import to_inputs
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.methods.pldk.condensation import Condensation, Kind, PlainSums, Sums
from veilset.methods.pldk.config import PldkConfig
from veilset.methods.pldk.student import train_student
from veilset.methods.pldk.trajectories import Matching, Trajectory, train_plain_expert
from veilset.methods.shared.fitted_generator import plan_labels, train_labels
from veilset.methods.shared.gan import even_labels
from veilset.methods.shared.image_health import soft_labels_of
from veilset.methods.shared.starting_images import rows_of_classes, starting_images
from veilset.models import build_network
from veilset.models.descriptions import described
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import Public, PublicFacts
from veilset.release.inputs import InputRelease, load_input, open_input, require_carried
from veilset.training.augment import MILD
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig

_EXPERT, _CONDENSATION = "expert", "condensation"
_TEACHER_IMAGES_SEEN = 100_000  # of the teacher as published
Plain = tuple[Images, Labels]


class Pldk(Method):
    """Distilled images, soft labels and a student."""

    name = "pldk"
    title = "Distilled data and knowledge (PLDK)"
    paper = "Thesis, chapter 4; trajectory matching: Cazenavette et al., CVPR 2022, https://arxiv.org/abs/2203.11932"
    claim_of_paper = (
        "The thesis claims no guarantee, and there is none: experts and teacher see the private images without "
        "noise, and the distilled images start as private ones."
    )
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "student")
    config_type = PldkConfig
    config: PldkConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {
            "expert_steps": 30, "expert_every": 5, "expert_batch": 256, "iterations": 10, "student_steps": 3,
            "student_updates": 60, "copies": 1000, "networks": 10, "network_batch": 500, "moves": 5,
        },
        "paper": {
            "matching": "trajectory", "images_per_class": 50, "experts": 3, "width": 32, "iterations": 2000,
            "student_steps": 20,
        },
    }  # fmt: skip
    published_reason = (
        "As published, experts and teacher are trained on the private images without noise; low membership-inference "
        "accuracy is evidence, not a guarantee."
    )

    def __init__(self, config: Config, *, as_published: bool = False) -> None:
        super().__init__(config, as_published=as_published)
        if self.config.start == "real" and not as_published:
            raise InputError(
                "Images that start as private ones stay private ones. Start from noise, drawn or public, or pass "
                "--as-published: such a release has no guarantee, and only the student leaves."
            )

    @property
    def matching(self) -> Literal["trajectory", "distribution", "gradient"]:
        """What images are led by in this form."""
        if self.config.matching == "auto":
            return "trajectory" if self.as_published else "distribution"
        return self.config.matching

    def requires_public(self) -> bool:
        """Only to start from public images by name."""
        return self.config.start == "public"

    def inputs(self) -> tuple[InputRelease, ...]:
        """The release to start from."""
        return (self._input,) if self.config.release else ()

    @cached_property
    def _input(self) -> InputRelease:
        return open_input(Path(self.config.release), is_of_others=self.config.release_is_of_others)

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """A run of DP-SGD for each expert, or the rounds of condensation, and the teacher's, within one budget."""
        if self.as_published:
            return Plan(budget=budget, events=())
        config = self.config
        rate = sampling_rate_for(min(config.expert_batch, facts.units), facts.units)

        def expert(number: int) -> Part:
            def event(noise: float) -> Event:
                label = f"{_EXPERT} {number + 1}"
                return Event(label=label, noise_multiplier=noise, sampling_rate=rate, count=config.expert_steps)

            return Part(event=event, share=(1 - config.teacher_share) / config.experts)

        def condensation(noise: float) -> Event:
            sampled = sampling_rate_for(min(config.network_batch, facts.units), facts.units)
            return Event(label=_CONDENSATION, noise_multiplier=noise, sampling_rate=sampled, count=config.networks)

        teacher = Part(event=lambda noise: plan_labels(facts, budget, noise)[1], share=config.teacher_share)
        parts = (
            [expert(number) for number in range(config.experts)]
            if self.matching == "trajectory"
            else [Part(event=condensation, share=1 - config.teacher_share)]
        )
        events = share_budget(budget, [teacher, *parts])
        images = config.images_per_class * facts.classes
        return Plan(budget=budget, events=tuple(events), facts={"distilled images": images})

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Train experts and teacher, distil images, label them, train the student."""
        config, facts = self.config, session.facts
        self._facts = facts
        labels = even_labels(config.images_per_class * facts.classes, facts.classes)
        hard = torch.from_numpy(labels)
        # 1. The only part that meets private images: a teacher, and experts or questions to networks.
        plain = self._plain_records(session) if self.as_published else None
        require_carried(self.inputs(), session.plan)
        start = self._start(labels, public, plain, context)
        teacher = train_labels(session, context) if plain is None else self._plain_teacher(plain, context)
        # 2. Images that lead a network along the experts' way, or that networks take for the private ones.
        if self.matching == "trajectory":
            experts = range(config.experts)
            trajectories = (
                [self._expert(session, number, context) for number in experts]
                if plain is None
                else [self._plain_expert(plain, number, context) for number in experts]
            )
            distilled = self._match(trajectories, start, hard, context)
        else:
            condensation = self._condensation(self.matching, start, hard, context)
            sums = self._sums(session) if plain is None else self._plain_sums(plain, context)
            distilled = condensation.run(sums, context.progress)
        stored = (distilled * 255).round()
        # 3. and 4. A student that sees nothing but these images and what the teacher says of them.
        self._student = train_student(
            self._network(derive_seed(context.seed, "student")).to(context.device),
            teacher,
            (stored / 255).to(context.device),
            hard.to(context.device),
            config,
            seed=context.seed,
            progress=context.progress,
        )
        # What began as private images stays behind; drawn patterns show what the student knows.
        kept = stored if config.start != "real" else (self._drawn(len(labels), context) * 255).round()
        knows = teacher if config.start != "real" else self._student
        images = kept.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        soft = soft_labels_of(knows, images, context.device)
        if config.start == "real":
            labels = soft.argmax(axis=1).astype(np.int64)
        self._samples = Samples(images=images, labels=labels, soft_labels=soft)

    def sample(self, count: int, seed: int = 0) -> Samples:
        """The distilled images, which are what they are: as many of each class as were asked for, at most all."""
        if not hasattr(self, "_samples"):
            raise self.not_fitted()
        order = torch.randperm(len(self._samples.labels), generator=torch_generator(seed, "pldk samples")).numpy()
        kept = np.sort(order[:count]) if count < len(order) else np.arange(len(order))
        assert self._samples.soft_labels is not None
        return Samples(
            images=self._samples.images[kept],
            labels=self._samples.labels[kept],
            soft_labels=self._samples.soft_labels[kept],
        )

    def default_samples(self, facts: PublicFacts) -> int:
        """All of them."""
        return self.config.images_per_class * facts.classes

    def models(self) -> dict[str, ReleasedModel]:
        """The student, with what rebuilds it."""
        if not hasattr(self, "_student"):
            raise self.not_fitted()
        description = described(
            "classifier",
            name=self.config.network,
            shape=list(self._facts.shape),
            classes=self._facts.classes,
            width=self.config.width,
        )
        return {"student": ReleasedModel(weights=self._student.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """That the images are not the distilled ones."""
        if self.config.start != "real":
            return []
        return [
            "The distilled images began as private ones and stayed behind. The images here are drawn patterns, "
            "labelled by the student: use the student."
        ]

    def _network(self, seed: int) -> nn.Module:
        facts, width = self._facts, self.config.width
        return build_network(self.config.network, shape=facts.shape, classes=facts.classes, width=width, seed=seed)

    def _trajectory(self, number: int, context: Context) -> Trajectory:
        place = None if context.workspace is None else context.workspace / f"pldk-expert-{number}.pt"
        return Trajectory(place)

    def _expert(self, session: Session, number: int, context: Context) -> Trajectory:
        """A DP-SGD run whose weights are kept on the way.

        Privacy: as `train_private`; event "expert N" of the plan.
        """
        event = session.planned(f"{_EXPERT} {number + 1}")
        trajectory, seed = self._trajectory(number, context), derive_seed(context.seed, f"expert {number}")
        network = self._network(seed).to(context.device)
        trajectory.add(0, network)

        def keep(step: int, model: nn.Module) -> None:
            if step % self.config.expert_every == 0:
                trajectory.add(step // self.config.expert_every, model)

        recipe = PrivateTraining(
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=event.count,
            clip_norm=self.config.clip_norm,
            learning_rate=self.config.expert_rate,
            label=event.label,
        )
        train_private(session, network, recipe, after_step=keep, seed=seed, progress=context.progress)
        return trajectory

    def _plain_records(self, session: Session) -> Plain:
        """The private images and labels themselves, for the form as published.

        Privacy: none.
        """
        records = session.records_without_guarantee()
        labels = np.array(records.labels)
        return records.read(np.arange(len(labels))), labels

    def _plain_teacher(self, plain: Plain, context: Context) -> nn.Module:
        teacher = self._network(derive_seed(context.seed, "teacher")).to(context.device)
        recipe = TrainingConfig(epochs=min(50, max(2, round(_TEACHER_IMAGES_SEEN / len(plain[1])))))
        return train_classifier(teacher, *plain, config=recipe, seed=context.seed, device=context.device)

    def _plain_expert(self, plain: Plain, number: int, context: Context) -> Trajectory:
        trajectory, seed = self._trajectory(number, context), derive_seed(context.seed, f"expert {number}")
        train_plain_expert(
            self._network(seed).to(context.device),
            trajectory,
            *map(torch.tensor, plain),
            steps=self.config.expert_steps,
            every=self.config.expert_every,
            rate=self.config.expert_rate / 4,
            augmentation=MILD if self.config.augmented else None,
            seed=seed,
        )
        return trajectory

    def _plain_sums(self, plain: Plain, context: Context) -> Sums:
        batch, count = self.config.network_batch, self.config.networks
        return PlainSums(*map(torch.tensor, plain), batch=batch, count=count, seed=context.seed)

    def _match(self, trajectories: list[Trajectory], start: Tensor, labels: Tensor, context: Context) -> Tensor:
        matching = Matching(
            self._network(context.seed),
            trajectories,
            start,
            labels,
            self.config,
            MILD if self.config.augmented else None,
            derive_seed(context.seed, "pldk matching"),
        )
        place = None if context.workspace is None else context.workspace / "pldk-images.pt"
        return matching.run(place, context.progress)

    def _condensation(self, kind: Kind, start: Tensor, labels: Tensor, context: Context) -> Condensation:
        return Condensation(
            kind,
            self._network,
            start,
            labels,
            self.config,
            batch=min(self.config.network_batch, self._facts.units),
            clip_norm=self.config.clip_norm,
            seed=derive_seed(context.seed, "pldk condensation"),
        )

    def _sums(self, session: Session) -> Sums:
        """The noisy sums of all rounds.

        Privacy: sensitivity as `class_rows` or `class_gradients` says; event "condensation" of the plan.
        """
        event = session.planned(_CONDENSATION)
        return session.gradient_steps(
            label=event.label,
            clip_norm=1.0 if self.matching == "distribution" else self.config.clip_norm,
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=event.count,
        )

    def _start(self, labels: Labels, public: Records | None, plain: Plain | None, context: Context) -> Tensor:
        """Images (n, C, H, W) in [0, 1] that nobody's privacy depends on; but for "real", which needs `plain`."""
        kind, shape = self.config.start, self._facts.shape
        if kind == "real":
            assert plain is not None
            return to_inputs(torch.from_numpy(plain[0][rows_of_classes(labels, plain[1])]))
        if kind == "release":
            other = load_input(self._input)
            if tuple(other.images.shape[1:]) != tuple(shape):
                raise InputError(f"Expected a release of images {shape}, got {other.images.shape[1:]}.")
            return to_inputs(torch.from_numpy(other.images[rows_of_classes(labels, other.labels)]))
        if kind == "auto":
            kind = "drawn" if public is None else "public"
        return starting_images(kind, shape, public, variation="none", blur=3, seed=context.seed)(0, len(labels))

    def _drawn(self, count: int, context: Context) -> Tensor:
        seed = derive_seed(context.seed, "pldk patterns")
        return starting_images("drawn", self._facts.shape, None, variation="none", blur=3, seed=seed)(0, count)
