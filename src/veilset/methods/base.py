"""What a method is: a plan drawn without data, a fit that spends exactly that plan, and something to draw from.

A method is one folder. Its `config.py` declares settings and plan without torch; its `method.py` has `fit`, which reads
like the paper's algorithm and alone calls the session, whose mechanisms are the only way to private rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records
from veilset.core.registry import resolve, unknown_name
from veilset.core.settings import Settings
from veilset.privacy.budget import Budget
from veilset.privacy.events import Plan
from veilset.privacy.vault import Public, PublicFacts
from veilset.teachers.config import TeacherPlan

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from veilset.privacy.session import Session
    from veilset.release.inputs import InputRelease

SMOKE = "smoke"
"""The preset of every method that is the default in the smallest sizes: same code, seconds."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a rule chose for a setting, and why: a public fact, or a noise that follows from the budget."""

    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class MethodPlan(Plan):
    """What a method decided from public facts: its settings as they will run, and the events it will spend.

    A method's own plan adds its events by name and whatever else it decided, so that `fit` looks nothing up again.
    """

    settings: Settings
    as_published: bool = False
    decided: Mapping[str, Decision] = field(default_factory=dict)
    public_scale: int = 1
    """How many times as large as private images public ones may be, where parts are cut from them."""

    def public_weights(self) -> dict[str, str]:
        """The published weights that its teachers, and plans inside it, make features of, and their SHA-256."""
        parts = (getattr(self, field.name) for field in fields(self))
        known: dict[str, str] = {}
        for part in parts:
            if isinstance(part, TeacherPlan):
                known |= part.public_weights
            elif isinstance(part, MethodPlan):
                known |= part.public_weights()
        return known

    def certified(self) -> dict[str, Any]:
        """The settings as ledger and certificate show them: with what the rules decided, without places on a disk.

        Pretrained features add their names and the hashes of their weights.
        """
        weights = self.public_weights()
        known = self.settings.plain() | {name: found.value for name, found in self.decided.items()}
        return known | ({"public_weights": weights} if weights else {})


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where and how a fit runs. `workspace` keeps checkpoints, so that an interrupted run can go on."""

    seed: int = 0
    device: str = "cpu"
    progress: Progress = SILENT
    workspace: Path | None = None

    def kept(self, name: str) -> Path | None:
        """The place of a file that a resumed run finds again; None where nothing is kept."""
        return None if self.workspace is None else self.workspace / name


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


class Fitted(ABC):
    """What may be drawn from. It follows from noisy results alone and knows no session."""

    @abstractmethod
    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw `count` labelled images."""

    def models(self) -> dict[str, ReleasedModel]:
        """Networks to publish, by name (`generator`, `student`, `teacher`)."""
        return {}

    def warnings(self) -> list[str]:
        """What was found wrong with the images: sentences for certificate and card."""
        return []


@dataclass(frozen=True, kw_only=True)
class AuditForm:
    """How one form of a method is audited: in small, with `records` toy records, the last of them in question."""

    form: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    records: int = 2
    declared: int = 1000
    runs: int = 1000


class Method(ABC):
    """One algorithm: `configure`, then `plan`, then `fit`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Counts up when the same settings and seed give other numbers; results of another version show as stale."""
    title: ClassVar[str]
    paper: ClassVar[str]
    claim_of_paper: ClassVar[str]
    """What of the paper's own claim holds, in one or two sentences; the method's page says the same."""
    guarantee: ClassVar[str]
    needs_public: ClassVar[bool] = False
    takes_findings: ClassVar[bool] = False
    """Whether images may have several findings; other methods need one class for each image."""
    releases: ClassVar[tuple[str, ...]] = ("images", "labels")
    settings_type: ClassVar[type[Settings]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    smallest: ClassVar[Mapping[str, Any]] = {}
    """Sizes that make any preset run in seconds on toy records."""
    forms: ClassVar[tuple[AuditForm, ...]] = ()
    """The forms that `veilset audit --method` tries to contradict, on the preset `fast`."""
    also_tried: ClassVar[tuple[AuditForm, ...]] = ()
    """Further forms for the neighbour run alone: settings that change a private call and are in no other form."""
    any_number_of_images: ClassVar[bool] = True
    """Whether a fit can be drawn from without end; if not, its images are a fixed set."""
    published_reason: ClassVar[str | None] = None
    """Why the published form has no guarantee; None when `--as-published` has nothing to offer."""
    published_settings: ClassVar[Mapping[str, Any]] = {}
    """What `--as-published` sets by itself, under the preset and the settings that are asked for."""

    def __init__(self, settings: Settings | None = None, *, as_published: bool = False) -> None:
        if as_published and self.published_reason is None:
            raise InputError(
                f"{self.name} has no form as published to run, so --as-published has nothing to add. "
                f"{self.claim_of_paper} Leave it out."
            )
        self.settings: Any = self.settings_type() if settings is None else settings
        self.as_published = as_published

    @classmethod
    def configure(
        cls, preset: str = "default", settings: Mapping[str, Any] | None = None, *, as_published: bool = False
    ) -> Self:
        """Build the method from a preset and settings; unknown names and values that are not allowed raise.

        `as_published` runs the paper's own form, which has no guarantee: its plan may be empty, and its `fit` may read
        the records themselves (`Session.records_without_guarantee`).
        """
        presets = {**cls.presets, SMOKE: {**cls.presets.get("default", {}), **cls.smallest}}
        if preset not in presets:
            raise unknown_name("preset", preset, list(presets))
        names = list(cls.settings_type.model_fields)
        for name in settings or {}:
            if name not in names:
                raise unknown_name(f"setting of {cls.name}", name, names)
        chosen = {**(cls.published_settings if as_published else {}), **presets[preset], **(settings or {})}
        return cls(cls.settings_type(**chosen), as_published=as_published)

    @property
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
    def plan(self, facts: PublicFacts, budget: Budget) -> MethodPlan:
        """What will be done and what it will spend. Sees public facts only, and loads no torch."""

    @classmethod
    def fit(cls, plan: MethodPlan, session: "Session", public: Public | None, context: Context) -> Fitted:
        """Spend the plan through the session's mechanisms; everything else is post-processing.

        The work is `fit` of the method's folder, loaded here, because it needs torch and a plan does not.
        """
        fit = resolve(f"{cls.__module__.rpartition('.')[0]}.method:fit")
        fitted: Fitted = fit(plan, session, public, context)
        return fitted

    def default_samples(self, facts: PublicFacts) -> int:
        """How many images are released when the user names no number: enough for a student to learn from."""
        return min(20_000, max(facts.units, 1000))
