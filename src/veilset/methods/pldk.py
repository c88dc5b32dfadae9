"""pldk: a few images distilled from the trajectories of private experts, labelled softly by a private teacher.

Thesis, chapter 4 (../shared/papers/sanitized-wgan-and-pldk.txt): trajectory matching (Cazenavette et al., CVPR 2022),
then knowledge transfer to a student. What we changed: experts and teacher are trained by DP-SGD, and no image starts as
a private one; all that follows is post-processing (docs/pldk.md). `--as-published` trains both without noise,
and no guarantee.

Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one; sensitivity
`clip_norm` of a step; events `expert_steps` Poisson-sampled Gaussians for each expert, and the teacher's; assumes what
DP-SGD assumes (training/dpsgd).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, torch_generator
from veilset.core.records import Records
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.models import build_network
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms import Session
from veilset.privacy.sharing import Part, share_budget
from veilset.privacy.vault import PublicFacts
from veilset.release.format import load_release
from veilset.training.augment import MILD, augment
from veilset.training.dpsgd import PrivateTraining, sampling_rate_for, train_private
from veilset.training.gan import even_labels
from veilset.training.gan_health import soft_labels_of
from veilset.training.gan_release import plan_labels, train_labels
from veilset.training.plain import train_classifier
from veilset.training.starts import starting_images
from veilset.training.trajectories import Matching, MatchingConfig, Trajectory

_EXPERT = "expert"
Start = Literal["auto", "noise", "drawn", "public", "release"]


@dataclass(frozen=True, kw_only=True)
class PldkConfig(Config, MatchingConfig):
    """Public settings; those of the matching are in `MatchingConfig`.

    Args:
        images_per_class: how many images of each class are distilled.
        experts: trajectories to match, 1 to 3; they share what the teacher leaves.
        expert_steps: DP-SGD steps of an expert.
        expert_every: steps between the kept points of a trajectory.
        expert_batch: units of a step on average, as far as there are so many.
        expert_rate: learning rate of an expert.
        clip_norm: of one unit's gradient.
        network: of experts and student.
        width: of that network.
        teacher_share: share of the privacy for the teacher that labels the images.
        start: what the images start as: "public" images, "noise", "drawn" patterns, images of another "release", or
            "auto": public where there are any, else drawn. Never private images.
        release: folder of that other release.
        augmented: let training on the images, while they are matched and for the student, see changed copies.
        temperature: of the soft labels in the student's loss.
        alpha: weight of the soft labels there; the rest is for the hard ones.
        student_updates: training steps of the student.
        student_rate: its learning rate.
    """

    images_per_class: int = 10
    experts: int = 1
    expert_steps: int = 200
    expert_every: int = 10
    expert_batch: int = 1024
    expert_rate: float = 0.2
    clip_norm: float = 1.0
    network: str = "convnet"
    width: int = 16
    teacher_share: float = 0.5
    start: Start = "auto"
    release: str = ""
    augmented: bool = True
    temperature: float = 2.0
    alpha: float = 0.9
    student_updates: int = 600
    student_rate: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("images_per_class", "expert_steps", "expert_every", "expert_batch", "width", "student_updates"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not 1 <= self.experts <= 3:
            raise InputError(f"Expected 1 to 3 experts, got {self.experts}: each takes its part of the budget.")
        if self.start == "real":  # type: ignore[comparison-overlap]
            raise InputError("Images that start as private ones stay private ones. Start from noise, drawn or public.")
        if self.start not in get_args(Start) or (self.start == "release") != bool(self.release):
            raise InputError(f"Expected start to be one of {', '.join(get_args(Start))}, with release for the last.")
        if not 0 < self.teacher_share < 1 or not 0 <= self.alpha <= 1:
            raise InputError("Expected teacher_share between 0 and 1 and alpha in [0, 1].")
        for name in ("expert_rate", "clip_norm", "temperature", "student_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")


class Pldk(Method):
    """Distilled images, soft labels and a student."""

    name = "pldk"
    title = "Distilled data and knowledge (PLDK)"
    paper = "Thesis, chapter 4; trajectory matching: Cazenavette et al., CVPR 2022, https://arxiv.org/abs/2203.11932"
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "student")
    config_type = PldkConfig
    config: PldkConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {
            "expert_steps": 30, "expert_every": 5, "expert_batch": 256, "iterations": 10, "student_steps": 3,
            "student_updates": 60,
        },
        "paper": {"images_per_class": 50, "experts": 3, "width": 32, "iterations": 2000, "student_steps": 20},
    }  # fmt: skip
    published_reason = (
        "As published, experts and teacher are trained on the private images without noise; low membership-inference "
        "accuracy is evidence, not a guarantee."
    )

    def requires_public(self) -> bool:
        """Only to start from public images by name."""
        return self.config.start == "public"

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """A run of DP-SGD for each expert and the teacher's, within one budget."""
        if self.as_published:
            return Plan(budget=budget, events=())
        config = self.config
        rate = sampling_rate_for(min(config.expert_batch, facts.units), facts.units)

        def expert(number: int) -> Part:
            def event(noise: float) -> Event:
                label = f"{_EXPERT} {number + 1}"
                return Event(label=label, noise_multiplier=noise, sampling_rate=rate, count=config.expert_steps)

            return Part(event=event, share=(1 - config.teacher_share) / config.experts)

        teacher = Part(event=lambda noise: plan_labels(facts, budget, noise)[1], share=config.teacher_share)
        events = share_budget(budget, [teacher, *map(expert, range(config.experts))])
        images = config.images_per_class * facts.classes
        return Plan(budget=budget, events=tuple(events), facts={"distilled images": images})

    def fit(self, session: Session, public: Records | None, context: Context) -> None:
        """Train experts and teacher, distil images, label them, train the student."""
        facts = session.facts
        self._facts, self._device = facts, context.device
        # 1. Experts and teacher: the only part that meets private images.
        if self.as_published:
            trajectories, teacher = self._without_noise(session, context)
        else:
            teacher = train_labels(session, context)
            trajectories = [self._expert(session, number, context) for number in range(self.config.experts)]
        # 2. Images that lead a network along the experts' way.
        labels = even_labels(self.config.images_per_class * facts.classes, facts.classes)
        matching = Matching(
            self._network(context.seed),
            trajectories,
            self._start(len(labels), public, context),
            torch.from_numpy(labels),
            self.config,
            MILD if self.config.augmented else None,
            derive_seed(context.seed, "pldk matching"),
        )
        place = None if context.workspace is None else context.workspace / "pldk-images.pt"
        pixels = (matching.run(place, context.progress) * 255).round().to(torch.uint8)
        # 3. Soft labels of the images as they are stored.
        images = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self._samples = Samples(
            images=images, labels=labels, soft_labels=soft_labels_of(teacher, images, context.device)
        )
        # 4. A student that sees nothing else.
        self._student = self._train_student(context)

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
        description = {
            "kind": "veilset.models:build_network",
            "name": self.config.network,
            "shape": list(self._facts.shape),
            "classes": self._facts.classes,
            "width": self.config.width,
        }
        return {"student": ReleasedModel(weights=self._student.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """That another release was built upon, whose budget is not in this certificate."""
        if self.config.start != "release":
            return []
        return ["The images start from another release. If that was of the same data, the account has the total."]

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

    def _without_noise(self, session: Session, context: Context) -> tuple[list[Trajectory], nn.Module]:
        """Experts and teacher as published. No guarantee."""
        records = session.records_without_guarantee()
        images, labels = records.read(np.arange(len(records.labels))), np.array(records.labels)
        teacher = self._network(derive_seed(context.seed, "teacher")).to(context.device)
        train_classifier(teacher, images, labels, seed=context.seed, device=context.device)
        pixels = torch.tensor(images).permute(0, 3, 1, 2)
        targets, batch = torch.from_numpy(labels), min(256, len(labels))
        trajectories = []
        for number in range(self.config.experts):
            trajectory, seed = self._trajectory(number, context), derive_seed(context.seed, f"expert {number}")
            network, coins = self._network(seed).to(context.device), torch_generator(seed, "batches")
            optimizer = torch.optim.SGD(network.parameters(), lr=self.config.expert_rate / 4, momentum=0.9)
            trajectory.add(0, network)
            for step in range(1, self.config.expert_steps + 1):
                rows = torch.randint(len(targets), (batch,), generator=coins)
                seen = augment(pixels[rows].float() / 255, MILD, coins).to(context.device)
                loss = functional.cross_entropy(network(seen), targets[rows].to(context.device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if step % self.config.expert_every == 0:
                    trajectory.add(step // self.config.expert_every, network)
            trajectories.append(trajectory)
        return trajectories, teacher.eval()

    def _start(self, count: int, public: Records | None, context: Context) -> Tensor:
        """Images (count, C, H, W) in [0, 1] that nobody's privacy depends on."""
        kind, shape = self.config.start, self._facts.shape
        if kind == "release":
            return self._from_release(count)
        if kind == "auto":
            kind = "drawn" if public is None else "public"
        batch = starting_images(kind, shape, public, variation="none", blur=3, seed=context.seed)
        return batch(0, count)

    def _from_release(self, count: int) -> Tensor:
        other = load_release(Path(self.config.release))
        if tuple(other.images.shape[1:]) != tuple(self._facts.shape):
            raise InputError(f"Expected a release of images {self._facts.shape}, got {other.images.shape[1:]}.")
        rows = []
        for label in range(self._facts.classes):
            own = np.flatnonzero(other.labels == label)
            if len(own) == 0:
                raise InputError(
                    f"The release {self.config.release} has no images of {self._facts.class_names[label]}."
                )
            rows.append(np.resize(own, self.config.images_per_class))
        chosen = np.stack(rows, axis=1).flatten()[:count]  # classes in turn, as the labels are
        return torch.from_numpy(other.images[chosen]).permute(0, 3, 1, 2).float() / 255

    def _train_student(self, context: Context) -> nn.Module:
        """Equation 4.7: alpha of the loss for the soft labels, the rest for the hard ones."""
        config, samples = self.config, self._samples
        assert samples.soft_labels is not None
        student = self._network(derive_seed(context.seed, "student")).to(context.device)
        pixels = torch.from_numpy(samples.images).permute(0, 3, 1, 2).float().div(255).to(context.device)
        hard = torch.from_numpy(samples.labels).to(context.device)
        soft = torch.from_numpy(samples.soft_labels).to(context.device).clamp_min(1e-12).pow(1 / config.temperature)
        soft = soft / soft.sum(dim=1, keepdim=True)
        optimizer = torch.optim.AdamW(student.parameters(), lr=config.student_rate, weight_decay=0.02)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.student_updates)
        coins = torch_generator(context.seed, "pldk student", context.device)
        with context.progress.task("training the student", config.student_updates) as task:
            for _ in range(config.student_updates):
                rows = torch.randint(len(pixels), (128,), generator=coins, device=pixels.device)
                seen = augment(pixels[rows], MILD, coins) if config.augmented else pixels[rows]
                logits = student(seen)
                knowledge = functional.cross_entropy(logits / config.temperature, soft[rows]) * config.temperature**2
                loss = config.alpha * knowledge + (1 - config.alpha) * functional.cross_entropy(logits, hard[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                falling.step()
                task.advance()
        return student.eval()
