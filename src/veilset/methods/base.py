"""What a method is: a plan drawn without data, a fit that spends exactly that plan, and samples.

A method is one class in one file, with a frozen keyword-only config. It never holds the vault: `fit` receives a
`Session`, whose mechanisms are the only way to the rows and record what they cost.
"""

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from veilset.core.errors import InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records
from veilset.core.registry import unknown_name
from veilset.privacy.budget import Budget
from veilset.privacy.events import Plan
from veilset.privacy.vault import Public, PublicFacts

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from veilset.privacy.session import Session
    from veilset.release.inputs import InputRelease

# Rates, clip norms, weights, temperatures: what is smaller or larger than this is a slip, and rounding would eat it.
_SMALLEST, _LARGEST = 1e-9, 1e9


@dataclass(frozen=True, kw_only=True)
class Config:
    """The public settings of a method; subclasses add fields and check them in `__post_init__`."""

    def certified(self, facts: PublicFacts) -> dict[str, Any]:  # noqa: ARG002 (some settings depend on them)
        """The settings as ledger and certificate show them.

        One that is a path shows no place on the disk; one that public facts decide is shown as decided.
        """
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where and how a fit runs. `workspace` keeps checkpoints, so that an interrupted run can go on."""

    seed: int = 0
    device: str = "cpu"
    progress: Progress = SILENT
    workspace: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a release is made of. Soft labels, where there are any, are those of the 8-bit images."""

    images: Images
    labels: Labels
    soft_labels: "NDArray[np.float32] | None" = None


@dataclass(frozen=True, kw_only=True)
class ReleasedModel:
    """A network to publish beside the images: its weights, and what rebuilds it."""

    weights: "Mapping[str, torch.Tensor]"
    description: Mapping[str, Any]


class Method(ABC):
    """One algorithm: `plan`, then `fit`, then `sample`."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    claim_of_paper: ClassVar[str]
    """What of the paper's own claim holds, in one or two sentences; the method's page says the same."""
    guarantee: ClassVar[str]
    needs_public: ClassVar[bool] = False
    releases: ClassVar[tuple[str, ...]] = ("images", "labels")
    config_type: ClassVar[type[Config]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    published_reason: ClassVar[str | None] = None
    """Why the published form has no guarantee; None when `--as-published` has nothing to offer."""

    def __init__(self, config: Config, *, as_published: bool = False) -> None:
        if as_published and self.published_reason is None:
            raise InputError(
                f"{self.name} has no form as published to run, so --as-published has nothing to add. "
                f"{self.claim_of_paper} Leave it out."
            )
        _require_within_reason(config)
        self.config = config
        self.as_published = as_published

    @classmethod
    def configure(
        cls, preset: str = "default", settings: Mapping[str, str] | None = None, *, as_published: bool = False
    ) -> "Method":
        """Build the method from a preset and `key=value` settings; unknown keys and bad values raise.

        `as_published` runs the paper's own form, which has no guarantee: its plan may be empty, and its `fit` may read
        the records themselves (`Session.records_without_guarantee`).
        """
        if preset not in cls.presets:
            raise unknown_name("preset", preset, list(cls.presets))
        values = dict(cls.presets[preset])
        types = typing.get_type_hints(cls.config_type)
        names = [field.name for field in dataclasses.fields(cls.config_type)]
        for key, text in (settings or {}).items():
            if key not in names:
                raise unknown_name(f"setting of {cls.name}", key, names)
            values[key] = _parse(key, text, types[key])
        return cls(cls.config_type(**values), as_published=as_published)

    def requires_public(self) -> bool:
        """Whether a run with these settings cannot do without public images; asked before anything is reserved."""
        return self.needs_public

    def public_pictures(self) -> Records | None:
        """Public images that a file of the settings brings along; a run refuses private ones among them.

        A method that has any reads its file once, so that `fit` uses what was compared.
        """
        return None

    def inputs(self) -> "tuple[InputRelease, ...]":
        """Releases that these settings build upon, each verified; a run counts what they cost.

        Asked before anything is planned or reserved.
        """
        return ()

    @abstractmethod
    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """The events that `fit` will spend. Sees public facts only."""

    @abstractmethod
    def fit(self, session: "Session", public: Public | None, context: Context) -> None:
        """Spend the plan through the session's mechanisms; everything else is post-processing."""

    @abstractmethod
    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw `count` labelled images. Before `fit` this raises."""

    def default_samples(self, facts: PublicFacts) -> int:
        """How many images are released when the user names no number: enough for a student to learn from."""
        return min(20_000, max(facts.units, 1000))

    def models(self) -> dict[str, ReleasedModel]:
        """Networks to publish, by name (`generator`, `student`, `teacher`)."""
        return {}

    def warnings(self) -> list[str]:
        """What a fitted method found wrong with its images: sentences for certificate and card."""
        return []

    def not_fitted(self) -> VeilsetError:
        """The error for `sample` before `fit`."""
        return VeilsetError(f"{self.name} has nothing to sample from yet. Call fit first.")


def _require_within_reason(config: Config) -> None:
    """Refuse numbers that would vanish, overflow or be no number at all once they meet others."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int | float) and value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise InputError(
                f"Expected {field.name} to be 0 or of a size from {_SMALLEST:g} to {_LARGEST:g}, got {value:g}."
            )


def _parse(key: str, text: str, kind: Any) -> Any:
    """Turn the text of `--set key=value` into the type of the config field."""
    choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
    if choices:
        if text not in choices:
            raise InputError(f"Expected {key} to be one of {', '.join(map(str, choices))}, got {text!r}.")
        return text
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise InputError(f"Expected {key}=true or {key}=false, got {text!r}.")
        return text.lower() == "true"
    try:
        return kind(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected {key} to be of type {getattr(kind, '__name__', kind)}, got {text!r}.") from error
