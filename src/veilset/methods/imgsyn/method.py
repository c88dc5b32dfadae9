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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.progress import track
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images
from veilset.methods.base import Config, Context, Method, ReleasedModel, Samples
from veilset.methods.imgsyn.alignment import AlignConfig, KeptBatches, align, in_parallel, turning_point
from veilset.methods.imgsyn.statistic import Form, LayerMoments
from veilset.methods.merf.method import Merf, MerfConfig
from veilset.methods.shared.starting_images import Batch, Start, balanced_choice, public_pictures, starting_images
from veilset.methods.shared.variations import Variation
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers import Teacher, TeacherConfig, plan_teacher, train_teacher
from veilset.teachers.config import KindOrAuto, Recipe
from veilset.training.augment import MILD, augment
from veilset.training.memory import giving_back

_TEACHER, _STATISTICS = "teacher", "statistics"

# By class, a row and its count of one are clipped as one vector; the count is this share of the row's bound.
_COUNT_SHARE = 0.25
# Temperature of soft labels of more than two classes, unless one is set; docs/imgsyn.md has its trials.
_SOFT = 4.0
# Public pictures that fix centres, scales and the bound of the statistic's rows.
_PICTURES, _AT_ONCE = 1000, 100


@dataclass(frozen=True, kw_only=True)
class ImgsynConfig(AlignConfig, Config):
    """Public settings of DP-ImgSyn, beside those of alignment (methods/imgsyn/alignment.py).

    Args:
        teacher: "scattering", "network", "pretrained" or "auto" (teachers).
        network: of a teacher that is one, e.g. resnet18 as in the paper.
        start: "public", "noise", "filtered_noise", "drawn", "merf" (a DP generator of the same vault), or "auto":
            public images where there are any, else drawn patterns.
        start_share: share of the privacy for merf.
        blur: side of the low-pass kernel of filtered noise, odd, 3 to 15.
        variation: of public images that are not aligned: "none", "turned", or "all" (methods/shared/variations.py).
        aligned_variation: of those that are.
        statistics: "code" (what a head reads), "map" (keeps positions), "channel" (the paper's), or "auto": code
            where the teacher has one, else map.
        by_class: one statistic for each class.
        statistics_share: share of the privacy for the statistic.
        aligned_share: share of the images that are aligned; the others are only varied, chosen and labelled.
        augmentation: how mild changes reach students: "images" (copies of aligned ones, each labelled anew) or "recipe"
            (no copies; certificate and card name the changes, and students change every image anew in each pass).
        copies: of each aligned image, the first as it is and the others mildly changed; each gets its own label.
        pool: how many starting images each of those others is chosen from, so that classes come out even.
        batch: images aligned together.
        label_temperature: of the soft labels; 0 is 4, or 1 where there are two classes. Softer labels say more of the
            classes that an image is not of, which is most of what a student learns from images of something else; of
            two classes there is no more to say.
    """

    teacher: KindOrAuto = "auto"
    network: str = "resnet18"
    start: Literal["auto", "public", "noise", "filtered_noise", "drawn", "merf"] = "auto"
    start_share: float = 0.4
    blur: int = 3
    variation: Variation = "all"
    aligned_variation: Variation = "none"
    statistics: Form = "auto"
    by_class: bool = True
    statistics_share: float = 0.2
    aligned_share: float = 0.3
    augmentation: Literal["images", "recipe"] = "images"
    copies: int = 4
    pool: int = 4
    batch: int = 100
    label_temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start_share", "statistics_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")
        if self.start == "merf" and self.start_share + self.statistics_share >= 1:
            raise InputError("Expected start_share + statistics_share < 1, so that the teacher gets a share, too.")
        if not 0 <= self.aligned_share <= 1:
            raise InputError(f"Expected aligned_share between 0 and 1, got {self.aligned_share}.")
        if not 3 <= self.blur <= 15 or self.blur % 2 == 0:
            raise InputError(f"Expected blur to be odd and from 3 to 15, got {self.blur}.")
        if min(self.batch, self.pool, self.copies) < 1 or not self.label_temperature >= 0:
            raise InputError(
                "Expected batch, pool and copies of at least 1 and label_temperature >= 0, "
                f"got {self.batch}, {self.pool}, {self.copies} and {self.label_temperature}."
            )
        for name, kind in (
            ("variation", Variation),
            ("aligned_variation", Variation),
            ("statistics", Form),
            ("teacher", KindOrAuto),
        ):
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"Expected {name} to be one of {', '.join(get_args(kind))}.")

    @property
    def aligns(self) -> bool:
        """Whether any image is moved."""
        return self.iterations > 0 and self.aligned_share > 0

    @property
    def needs_statistic(self) -> bool:
        """Whether images are moved towards a statistic, so that one is released and paid for."""
        return self.aligns and self.feature_weight > 0

    def certified(self, facts: PublicFacts) -> dict[str, Any]:
        """The settings, with the labels' temperature as decided, and what students do best with."""
        decided: dict[str, Any] = {"label_temperature": self.temperature_for(facts)}
        if self.augmentation == "recipe":
            decided["student_changes"] = asdict(MILD)
        if self.teacher in ("auto", "scattering"):
            decided["student_network"] = "scatternet"  # of the teacher's kind, so it can say all that the teacher says
        return super().certified(facts) | decided

    def temperature_for(self, facts: PublicFacts) -> float:
        """The temperature of soft labels."""
        return self.label_temperature or (_SOFT if facts.classes > 2 else 1.0)


class Imgsyn(Method):
    """DP-ImgSyn."""

    name = "imgsyn"
    title = "Public images aligned with private ones (DP-ImgSyn)"
    paper = "Soufleri, Ravikumar, Roy, TMLR 2024, https://openreview.net/forum?id=KleJZ9ZzYw"
    claim_of_paper = "The paper's teacher holds, its layer statistics do not: twenty layers are charged as one release."
    guarantee = "dp"
    releases = ("images", "labels", "soft_labels", "teacher")
    config_type = ImgsynConfig
    config: ImgsynConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"aligned_share": 0.2, "iterations": 5},
        "paper": {
            "teacher": "network",
            "variation": "none",
            "statistics": "channel",
            "by_class": False,
            "aligned_share": 1.0,
            "copies": 1,
            "pool": 1,
            "batch": 80,
            "learning_rate": 0.1,
            "class_weight": 1.0,
            "variation_weight": 2.5e-5,
            "label_temperature": 10.0,
        },
    }

    def requires_public(self) -> bool:
        """Only where the settings name public images."""
        return self.config.start == "public" or self.config.teacher == "pretrained"

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """The statistic and the starting images get their shares, the teacher what is left."""
        recipe, teacher = self._teacher_for(facts, budget)
        before, after = self._other_events(facts, budget)
        shown: dict[str, float | int | str] = {
            "teacher": recipe.kind if recipe.kind == "scattering" else f"{recipe.kind} {recipe.network}",
            "share of the privacy for the statistic": self.config.statistics_share if after else 0.0,
        }
        if after:
            shown["noise of a mean, in lengths of a row"] = after[0].noise_multiplier / facts.units
        return Plan(budget=budget, events=(*before, teacher, *after), facts=shown)

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Section 4.1: the teacher and the statistic. Everything after them is post-processing."""
        facts, config = session.facts, self.config
        # 0. Starting images: public ones, or those of a DP generator of the same vault.
        self._facts, self._context, self._public = facts, context, public
        self._merf: Merf | None = None
        if config.start == "merf":
            self._merf = Merf(MerfConfig())
            self._merf.fit(session, public, context)

        # 1. The teacher, by DP-SGD.
        recipe, event = self._teacher_for(facts, session.plan.budget)
        self._teacher: Teacher = train_teacher(session, recipe, event, public, context)

        # 2. One noisy sum of the moments of all layers.
        if not config.aligns:
            return
        self._moments = moments = LayerMoments(self._teacher, config.statistics, self._pictures())
        self._target: Tensor | None = None
        if not config.needs_statistic:
            return
        bound = moments.clip_norm

        def row(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 (the session places rows by class)
            layers = moments.observe(images.to(context.device).permute(0, 3, 1, 2).float() / 255)[1]
            rows = moments.rows(layers).cpu()
            return (
                torch.cat([rows, torch.full_like(rows[:, :1], _COUNT_SHARE * bound)], dim=1)
                if config.by_class
                else rows
            )

        released = session.gaussian_sum(
            row,
            label=_STATISTICS,
            clip_norm=bound * math.hypot(1, _COUNT_SHARE) if config.by_class else bound,
            noise_multiplier=session.planned(_STATISTICS).noise_multiplier,
            by_class=config.by_class,
            batch=_AT_ONCE,
        )
        means = class_means(released, _COUNT_SHARE * bound, facts) if config.by_class else released[None] / facts.units
        self._target = means.float().to(context.device)

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Sections 4.2 and 4.3: align batch after batch, store 8 bits, and label what is stored."""
        if not hasattr(self, "_teacher"):
            raise self.not_fitted()
        aligned = round(count * self.config.aligned_share) if self.config.aligns else 0
        chosen, moved = self._chosen(count - aligned, seed), self._aligned(aligned, seed)
        pictures, logits = (torch.cat(parts) for parts in zip(chosen, moved, strict=True))
        # An image and its label keep no place that tells whether it was aligned.
        order = numpy_generator(seed, "imgsyn order").permutation(count)
        soft_labels = (logits / self.config.temperature_for(self._facts)).softmax(dim=1).numpy()[order]
        stored: Images = np.ascontiguousarray(pictures.permute(0, 2, 3, 1).numpy()[order])
        return Samples(images=stored, labels=soft_labels.argmax(axis=1).astype(np.int64), soft_labels=soft_labels)

    def _aligned(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Section 4.2: `count` images moved by Algorithm 1, and mild changes of them, as 8 bits; their logits."""
        if count == 0:
            return self._empty()
        config, context = self.config, self._context
        copies = config.copies if config.augmentation == "images" else 1
        batches = math.ceil(count / (config.batch * copies))
        starts = self._starts(batches * config.batch, derive_seed(seed, "aligned"), config.aligned_variation)
        alignment = self._settled(starts)
        kept = KeptBatches(context.workspace, f"imgsyn-{count}-{seed}")

        def work(number: int) -> Tensor:
            earlier = kept.load(number)
            if earlier is not None:
                return earlier
            start = starts(number, config.batch).to(context.device)
            moved = align(start, self._aims(number), self._moments, self._target, alignment).images
            # The teacher labels each copy anew, so a student learns more from it than from changing an image itself.
            coins = torch_generator(seed, f"imgsyn copies {number}", context.device)
            changed = [augment(moved, MILD, coins) for _ in range(copies - 1)]
            return kept.save(number, _as_bytes(torch.cat([moved, *changed])))

        done = giving_back(track(in_parallel(work, batches), context.progress, "aligning images", batches))
        pictures = torch.cat(list(done))[:count]
        parts = torch.split(pictures, _AT_ONCE)
        return pictures, torch.cat(list(self._labelled(parts, "labelling images", len(parts))))

    def _chosen(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """`count` of `pool` times as many starting images, so that the teacher favours no class; and its logits."""
        if count == 0:
            return self._empty()
        size = self.config.batch
        batches = math.ceil(count * self.config.pool / size)
        starts = self._starts(batches * size, derive_seed(seed, "chosen"), self.config.variation)
        candidates = (_as_bytes(starts(number, size)) for number in range(batches))
        logits = torch.cat(list(self._labelled(candidates, "looking for images of all classes", batches)))
        rows = balanced_choice(logits.softmax(dim=1), count, numpy_generator(seed, "imgsyn choice"))
        # Made a second time instead of kept: what is chosen fits into memory, what it is chosen from may not.
        parts = [_as_bytes(starts(int(n), size))[rows[rows // size == n] % size] for n in np.unique(rows // size)]
        return torch.cat(parts), logits[torch.from_numpy(rows)]

    def _labelled(self, batches: Iterable[Tensor], what: str, total: int) -> Iterator[Tensor]:
        """Section 4.3: the teacher's logits (b, classes) of 8-bit images."""
        with torch.no_grad():
            for part in giving_back(track(batches, self._context.progress, what, total)):
                yield self._teacher(part.to(self._context.device).float() / 255).cpu()

    def _empty(self) -> tuple[Tensor, Tensor]:
        height, width, channels = self._facts.shape
        return torch.empty(0, channels, height, width, dtype=torch.uint8), torch.empty(0, self._facts.classes)

    def default_samples(self, facts: PublicFacts) -> int:
        """As many as a student can still learn from, whatever the size of the vault; fewer where images are large."""
        side = max(facts.shape[:2])
        return 60_000 if side <= 32 else 12_000 if side <= 64 else 2_000

    def models(self) -> dict[str, ReleasedModel]:
        """The private teacher."""
        if not hasattr(self, "_teacher"):
            raise self.not_fitted()
        return {"teacher": ReleasedModel(weights=self._teacher.weights(), description=dict(self._teacher.description))}

    def warnings(self) -> list[str]:
        """That images which start from merf's resemble the private ones, unlike those from public images."""
        if self.config.start != "merf":
            return []
        return [
            "The images start from a private generator and look like the private classes: the guarantee holds, but the "
            "dissimilarity that public images give is traded for accuracy."
        ]

    def _teacher_for(self, facts: PublicFacts, budget: Budget) -> tuple[Recipe, Event]:
        """Recipe and event of the teacher, with the noise that makes all events together spend the budget."""
        # Whether there are public images is known to plan_teacher as a check only, and `fit` makes it.
        wanted = TeacherConfig(kind=self.config.teacher, network=self.config.network, label=_TEACHER)
        _, alone = plan_teacher(wanted, facts, True, budget)
        before, after = self._other_events(facts, budget)
        noise = calibrate(budget, lambda noise: [*before, replace(alone, noise_multiplier=noise), *after])
        return plan_teacher(replace(wanted, noise_multiplier=noise), facts, True, budget)

    def _other_events(self, facts: PublicFacts, budget: Budget) -> tuple[list[Event], list[Event]]:
        """What is spent before and after the teacher.

        A sum with the noise of a single Gaussian at the whole budget, over the root of a share, costs that share.
        """
        config = self.config
        before = Merf(MerfConfig()).plan(facts, budget).events if config.start == "merf" else ()
        once = calibrate(budget, lambda noise: [Event(label=_STATISTICS, noise_multiplier=noise)])
        after = Event(label=_STATISTICS, noise_multiplier=once / math.sqrt(config.statistics_share))
        return (
            [replace(e, noise_multiplier=e.noise_multiplier / math.sqrt(config.start_share)) for e in before],
            [after] if config.needs_statistic else [],
        )

    def _start_kind(self) -> Start:
        config = self.config
        if config.start == "auto" or config.start == "merf":
            return "drawn" if self._public is None else "public"
        return config.start

    def _starts(self, count: int, seed: int, variation: Variation) -> Batch:
        """Batches of starting images."""
        size = self.config.batch
        if self._merf is not None:
            drawn = self._merf.sample(math.ceil(count / size) * size, derive_seed(seed, "imgsyn start")).images
            return lambda number, size: (
                torch.from_numpy(drawn[number * size : (number + 1) * size]).permute(0, 3, 1, 2).float() / 255
            )
        return starting_images(
            self._start_kind(),
            self._facts.shape,
            self._public,
            variation=variation,
            blur=self.config.blur,
            seed=derive_seed(seed, "imgsyn start"),
        )

    def _pictures(self) -> Iterator[Tensor]:
        """Public pictures for centres, scales and the bound, or what stands in for them."""
        seed, shape = self._context.seed, self._facts.shape
        if self._public is not None:
            order = numpy_generator(seed, "imgsyn pictures").permutation(len(self._public.labels))[:_PICTURES]
            for start in range(0, len(order), _AT_ONCE):
                yield public_pictures(self._public, shape, order[start : start + _AT_ONCE]).to(self._context.device)
            return
        drawn = starting_images("drawn", shape, None, variation="none", blur=3, seed=derive_seed(seed, "pictures"))
        for number in range(_PICTURES // _AT_ONCE):
            yield drawn(number, _AT_ONCE).to(self._context.device)

    def _aims(self, number: int) -> Tensor:
        """Line 2 of Algorithm 1: target labels, all classes in turn over the whole release."""
        first = number * self.config.batch
        return (torch.arange(first, first + self.config.batch) % self._facts.classes).to(self._context.device)

    def _settled(self, starts: Batch) -> AlignConfig:
        """The alignment with the number of its iterations fixed, by the first batch if it is to be found."""
        if self.config.stop == "fixed":
            return self.config
        first = starts(0, self.config.batch).to(self._context.device)
        curve = align(first, self._aims(0), self._moments, self._target, self.config).variations
        return replace(self.config, iterations=turning_point(curve))


def class_means(sums: Tensor, count_of_one: float, facts: PublicFacts) -> Tensor:
    """Mean rows from noisy sums (classes, width + 1) whose last column counts; the public total keeps it sensible."""
    counts = (sums[:, -1] / count_of_one).clamp(min=0.1 * facts.units / facts.classes)
    return sums[:, :-1] / (counts * (facts.units / counts.sum()))[:, None]


def _as_bytes(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8).cpu()
