"""What a server may propose and ask: settings within bounds that the site's custodian sets, questions of two sizes.

The server is not trusted. An invitation holds four facts and no more; none of them is an epsilon, a delta or a number
of units. Once it is accepted, the plan fixes the size of every question.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.methods.sanitized_gan.config import SanitizedGanSettings
from veilset.privacy.vault import PublicFacts

_KEYS = {"settings", "seed", "shape", "class_names"}
_LONGEST_VALUE = 64
MOST: Mapping[str, float] = {
    "critics": 5000, "most_critics": 5000, "steps": 5000, "points": 512, "clip_norm": 1e3, "critic_updates": 50,
    "warmup": 200, "critic_batch": 128, "critic_rate": 1.0, "penalty": 1e3, "hidden": 512, "code_size": 512,
    "brightness": 100.0, "pictures": 20_000, "latent_size": 1024, "width": 512, "learning_rate": 1.0,
    "ema_decay": 1.0, "teacher_share": 0.0, "teacher_weight": 100.0, "teacher_images": 1000, "image_noise": 1.0,
    "published_noise": 100.0,
}  # fmt: skip
"""The largest value that a site takes of each setting that is a number, unless its custodian says otherwise."""
_LEAST: Mapping[str, float] = {"clip_norm": 1e-6, "critic_rate": 1e-9, "learning_rate": 1e-9, "published_noise": 1e-9}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a site accepts. `most` replaces entries of `MOST`."""

    most: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.most) - set(MOST))
        if unknown:
            raise InputError(f"Unknown setting to allow: {', '.join(unknown)}. Available: {', '.join(sorted(MOST))}.")

    def check(self, settings: SanitizedGanSettings) -> None:
        """Refuse settings outside the bounds. What is `auto` follows from those and from the site's own facts."""
        if settings.scheme != "together" or settings.teacher_share:
            raise InputError(
                "A federation asks all critics together and has no classifier: leave scheme and teacher_share."
            )
        for name, usual in MOST.items():
            proposed = getattr(settings, name)
            if proposed == "auto":
                continue
            value, least, most = float(proposed), _LEAST.get(name, 0.0), self.most.get(name, usual)
            if not (math.isfinite(value) and least <= value <= most):
                raise InputError(
                    f"The server proposes {name}={value:g}; this site takes {least:g} to {most:g}. If that is meant, "
                    f"start the site with --allow {name}={value:g}."
                )


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What a server proposes. The seed fixes what is public: the codes of images, and what critics start as."""

    settings: Mapping[str, str]
    seed: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Invitation":
        """Read an invitation; anything but the four facts, or one of another type, raises."""
        settings, seed, shape, names = (facts.get(key) for key in ("settings", "seed", "shape", "class_names"))
        fits = (
            set(facts) == _KEYS
            and isinstance(settings, dict)
            and all(isinstance(text, str) and len(text) <= _LONGEST_VALUE for pair in settings.items() for text in pair)
            and type(seed) is int
            and 0 <= seed < 2**63
            and isinstance(shape, list)
            and all(type(length) is int for length in shape)
            and isinstance(names, list)
            and all(isinstance(name, str) for name in names)
        )
        if not fits:
            raise InputError(f"Expected an invitation with {', '.join(sorted(_KEYS))} alone, each of its type.")
        return cls(settings=settings, seed=seed, shape=tuple(shape), class_names=tuple(names))  # type: ignore[arg-type]

    def check(self, facts: PublicFacts) -> None:
        """Refuse other images than the site declares."""
        if (self.shape, self.class_names) != (tuple(facts.shape), tuple(facts.class_names)):
            raise InputError(
                f"The server expects images of {self.shape} and the classes {', '.join(self.class_names)}; this site "
                f"has {tuple(facts.shape)} and {', '.join(facts.class_names)}. Pass --size, --channels or --classes."
            )


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The two sizes of a question: `cold` for critics that have learnt nothing yet, and `warm`.

    Args:
        shape: of an answer: points, and the coordinates of each.
        classes: how many.
        batch: generated rows of an update.
        updates: of a warm question.
        warmup: updates that a cold one has besides.
    """

    shape: tuple[int, ...]
    classes: int
    batch: int
    updates: int
    warmup: int

    def updates_of(self, query: Mapping[str, Tensor]) -> int:
        """How many updates a question asks for; one of any other form raises, before anything is paid or read."""
        sizes = {self.updates, self.updates + self.warmup}
        fakes = query.get("fakes")
        updates = len(fakes) if fakes is not None and fakes.ndim else 0
        wanted = self._form(updates)
        fits = updates in sizes and set(query) == set(wanted)
        fits = fits and all((tuple(query[name].shape), query[name].dtype) == form for name, form in wanted.items())
        fits = fits and all(bool(torch.isfinite(query[name]).all()) for name in ("fakes", "points"))
        for name in ("labels", "fake_labels"):
            fits = fits and bool(((query[name] >= 0) & (query[name] < self.classes)).all())
        if not fits:
            raise InputError(
                f"Expected a question of {', '.join(wanted)} with points of {self.shape} and "
                f"{' or '.join(map(str, sorted(sizes)))} batches of {self.batch}. Nothing was read."
            )
        return updates

    def random(self) -> dict[str, Tensor]:
        """A warm question about nothing, for a rehearsal."""
        return {
            name: torch.rand(shape) if kind == torch.float32 else torch.randint(self.classes, shape)
            for name, (shape, kind) in self._form(self.updates).items()
        }

    def _form(self, updates: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {
            "fakes": ((updates, self.batch, *self.shape[1:]), torch.float32),
            "fake_labels": ((updates, self.batch), torch.int64),
            "points": (self.shape, torch.float32),
            "labels": (self.shape[:1], torch.int64),
        }
