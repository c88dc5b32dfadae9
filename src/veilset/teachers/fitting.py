"""Train the teacher that a recipe describes, spending its event and nothing else.

1. Make what is public: fixed features and their directions, or pre-trained weights. No private image is read.
2. DP-SGD on the head or on the whole network (dpsgd), through the session that pays for it.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.progress import Progress
from veilset.core.randomness import derive_seed, numpy_generator, torch_generator
from veilset.core.records import Images, Labels, Records
from veilset.data import pixels
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import to_inputs
from veilset.dpsgd import FindingsLoss, PrivateTraining, train_private
from veilset.dpsgd.trainer import GradientSession
from veilset.models import build_network
from veilset.models.descriptions import described
from veilset.models.features.base import Features
from veilset.models.features.code import Code
from veilset.privacy.events import Event
from veilset.privacy.session import PerImage
from veilset.privacy.vault import PublicFacts
from veilset.teachers.config import Recipe, TeacherPlan
from veilset.teachers.counts import Counts, make_even
from veilset.teachers.teacher import Teacher, finished, head_of, make_network
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig

# Enough pictures that a thousand directions are estimated well, few enough for seconds of work.
_PICTURES = 4000
_LARGEST_DRAWN_SIDE = 64
_AT_ONCE = 250


class Context(Protocol):
    """Where a training runs; `methods.base.Context` is one."""

    @property
    def seed(self) -> int:
        """Of all public randomness."""

    @property
    def device(self) -> str:
        """Where the network lives."""

    @property
    def progress(self) -> Progress:
        """Is told steps, never losses."""


def train_teacher(
    session: GradientSession,
    plan: TeacherPlan,
    public: Records | None,
    context: Context,
    *,
    counts: Counts | None = None,
) -> Teacher:
    """Train the teacher of `plan_teacher`'s answer. The same seeds give the same teacher.

    Several findings per image get a sigmoid each. With noisy `counts`, which were paid for before, the teacher answers
    as if all classes were alike frequent.

    Privacy: unit as in the vault (a sampled group gives one image drawn at random); relation add/remove-one;
    sensitivity `plan.recipe.clip_norm`; event `plan.event`, which must be in the session's plan; assumes that a code
    depends on its own image alone, which is tried on random images first.
    """
    facts, recipe, event = session.facts, plan.recipe, plan.event
    loss = FindingsLoss(None if counts is None else counts.weights()) if facts.findings else None
    network = make_network(
        kind=recipe.kind,
        name=recipe.network,
        shape=facts.shape,
        classes=facts.classes,
        directions=recipe.directions,
        head_only=recipe.head_only,
        features=recipe.features,
        side=recipe.side,
        seed=context.seed,
    )
    if recipe.kind == "pretrained":
        _carry_over(_pretrain(recipe, facts, public, context), network, head_only=recipe.head_only)
    network.to(context.device)
    if recipe.head_only:
        code, head = network.get_submodule("code"), network.get_submodule("head")
        assert isinstance(code, Code)
        with torch.no_grad():
            seen = [code.extractor(part.to(context.device)) for part in _pictures(facts, public, context)]
        code.learn_directions(torch.cat(seen))
        train_private(
            session,
            head,
            event,
            training_of(recipe),
            loss=loss,
            features=_code_of(code, context.device),
            seed=context.seed,
            progress=context.progress,
        )
    else:
        train_private(
            session, network, event, training_of(recipe), loss=loss, seed=context.seed, progress=context.progress
        )
    if counts is not None:
        make_even(head_of(network)[1], counts)
    return finished(network, _description(recipe, event, facts, network, is_even=counts is not None))


def training_of(recipe: Recipe) -> PrivateTraining:
    """How DP-SGD trains by this recipe."""
    return PrivateTraining(
        clip_norm=recipe.clip_norm,
        mode=recipe.clipping,
        learning_rate=recipe.learning_rate,
        momentum=recipe.momentum,
        average_from=recipe.average_from,
    )


def _code_of(code: Code, device: str) -> PerImage:
    def features(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        coded: Tensor = code(to_inputs(images).to(device))
        return coded.cpu()

    return features


def _pictures(facts: PublicFacts, public: Records | None, context: Context) -> Iterator[Tensor]:
    """Drawn pictures, half of them replaced by public images where there are any: batches (b, C, H, W)."""
    height, width, channels = facts.shape
    total = 0 if public is None else len(public.labels)
    chosen = numpy_generator(context.seed, "teacher/public").permutation(total)[: _PICTURES // 2]
    side = min(_LARGEST_DRAWN_SIDE, max(height, width))
    coins = torch_generator(context.seed, "teacher/pictures")
    for part in torch.split(drawn_patterns(_PICTURES - len(chosen), side, channels, coins), _AT_ONCE):
        alike = part.shape[-2:] == (height, width)
        yield part if alike else functional.interpolate(part, (height, width), mode="bilinear", antialias=True)
    if public is not None:
        for start in range(0, len(chosen), _AT_ONCE):
            images, _ = _brought_to(facts, public, np.sort(chosen[start : start + _AT_ONCE]))
            yield to_inputs(torch.from_numpy(images))


def _brought_to(facts: PublicFacts, public: Records, rows: np.ndarray) -> tuple[Images, Labels]:
    """Public images of these rows in the private images' shape."""
    height, width, channels = facts.shape
    images = pixels.resize(pixels.to_channels(public.read(rows), channels), height, width)
    return np.ascontiguousarray(images), public.labels[rows]


def _pretrain(recipe: Recipe, facts: PublicFacts, public: Records | None, context: Context) -> nn.Module:
    """Ordinary training on all public images and their labels."""
    if public is None or len(public.class_names) < 2:
        raise InputError("A pretrained teacher needs public images of at least two classes. Pass --public.")
    images, labels = _brought_to(facts, public, np.arange(len(public.labels)))
    network = build_network(
        recipe.network,
        shape=facts.shape,
        classes=len(public.class_names),
        seed=derive_seed(context.seed, "teacher/pretraining"),
    )
    config = TrainingConfig(epochs=recipe.pretraining_epochs or "auto")
    return train_classifier(
        network, images, labels, config=config, seed=context.seed, device=context.device, progress=context.progress
    )


def _carry_over(source: nn.Module, target: nn.Module, *, head_only: bool) -> None:
    """Copy all but the head of a pre-trained network; public classes are not the private ones."""
    head, _ = head_of(source)
    prefix = "code.extractor." if head_only else ""
    kept = {
        prefix + name: copy.deepcopy(value)
        for name, value in source.state_dict().items()
        if not name.startswith(f"{head}.")
    }
    missing, unexpected = target.load_state_dict(kept, strict=False)
    allowed = ("code.centre", "code.projection", "head.") if head_only else (f"{head}.",)
    if unexpected or any(not name.startswith(allowed) for name in missing):
        raise InputError(f"{type(source).__name__} differs in more than its head between numbers of classes.")


def _description(
    recipe: Recipe, event: Event, facts: PublicFacts, network: nn.Module, *, is_even: bool
) -> dict[str, object]:
    code = getattr(network, "code", None)
    extractor = code.extractor if isinstance(code, Code) else None
    of_features = (
        {"features": recipe.features, "side": recipe.side, "features_sha256": extractor.sha256}
        if isinstance(extractor, Features)
        else {}
    )
    return described(
        "teacher",
        kind=recipe.kind,
        name=recipe.network,
        head_only=recipe.head_only,
        **of_features,
        shape=list(facts.shape),
        classes=facts.classes,
        directions=code.directions if isinstance(code, Code) else recipe.directions,
        inputs="floats in [0, 1], (batch, channels, height, width)",
        **({"findings": True} if facts.findings else {}),
        **({"even_by_count": True} if is_even else {}),
        training={**asdict(recipe), **event.to_json()},
    )
