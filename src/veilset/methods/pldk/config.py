"""The public settings of the method pldk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.methods.base import Config
from veilset.methods.pldk.condensation import CondensationConfig
from veilset.methods.pldk.student import StudentConfig
from veilset.methods.pldk.trajectories import MatchingConfig
from veilset.privacy.vault import PublicFacts
from veilset.release.layout import CERTIFICATE

Start = Literal["auto", "noise", "drawn", "public", "release", "real"]
Match = Literal["auto", "trajectory", "distribution", "gradient"]


@dataclass(frozen=True, kw_only=True)
class PldkConfig(Config, MatchingConfig, CondensationConfig, StudentConfig):
    """Public settings; more in `MatchingConfig`, `CondensationConfig` and `StudentConfig`.

    Args:
        matching: what images are led by: the "trajectory" of experts, or class means ("distribution") or class
            gradients ("gradient") of networks that are not trained on private images. "auto" is the trajectory as
            published, and else class means, which noise and a small machine hurt least (docs/pldk.md).
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
            "auto": public where there are any, else drawn. "real", private images, is for `--as-published` alone.
        release: folder of that other release. It is verified, and what it cost is part of this run's budget.
        release_is_of_others: declare that it is of other people, so that it costs these nothing; the certificate says
            that you did.
    """

    matching: Match = "auto"
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
    release_is_of_others: bool = False

    def __post_init__(self) -> None:
        MatchingConfig.__post_init__(self)
        CondensationConfig.__post_init__(self)
        StudentConfig.__post_init__(self)
        for name in ("images_per_class", "expert_steps", "expert_every", "expert_batch", "width"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not 1 <= self.experts <= 3:
            raise InputError(f"Expected 1 to 3 experts, got {self.experts}: each takes its part of the budget.")
        if self.matching not in get_args(Match):
            raise InputError(f"Expected matching to be one of {', '.join(get_args(Match))}, got {self.matching!r}.")
        if self.start not in get_args(Start) or (self.start == "release") != bool(self.release):
            raise InputError(
                f"Expected start to be one of {', '.join(get_args(Start))}, and a folder for release alone."
            )
        if self.release_is_of_others and not self.release:
            raise InputError("Expected a release beside release_is_of_others=true. Leave it out.")
        if not 0 < self.teacher_share < 1:
            raise InputError(f"Expected teacher_share between 0 and 1, got {self.teacher_share}.")
        for name in ("expert_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} > 0, got {getattr(self, name)}.")

    def certified(self, facts: PublicFacts) -> dict[str, Any]:
        """The settings, with the name of the other release and the SHA-256 of its certificate for its path."""
        place = Path(self.release)
        known = {"release": place.name, "release_sha256": sha256_of(place / CERTIFICATE)} if self.release else {}
        return super().certified(facts) | known
