"""How an archive is read, in public words: what people pass as `--frames`, `--burned-in` and the like."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from veilset.core.errors import InputError

Kind = Literal["images", "dicom", "nifti"]
Frames = Literal["first", "middle", "all"]
BurnedIn = Literal["refuse", "mask", "keep"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rules for reading folders. Each is the same for every file, so that a record depends on its own file alone."""

    table: Path | None = None  # the CSV of labels; labels.csv of the folder where it is None
    kind: Kind | None = None  # which files of a folder with several kinds
    frames: Frames | None = None  # which frames of a file with several
    slices: str | None = None  # which slices of a NIfTI volume: middle, all or how many
    window: tuple[float, float] | None = None  # centre and width, in the units of the scanner (CT: Hounsfield)
    burned_in: BurnedIn = "refuse"  # images that say, or in which a check finds, that text is burned in
    check_text: bool = False  # look for text in every image
    skip_bad: bool = False  # leave out files that cannot be read

    def __post_init__(self) -> None:
        _check("--kind", self.kind, get_args(Kind))
        _check("--frames", self.frames, get_args(Frames))
        _check("--burned-in", self.burned_in, get_args(BurnedIn))
        if self.slices is not None and self.slices not in ("middle", "all"):
            is_count = str(self.slices).isdecimal() and int(self.slices) > 0
            if not is_count:
                raise InputError(f"Expected --slices middle, all or a number, got {self.slices!r}.")
        if self.window is not None and not self.window[1] > 0:
            raise InputError(f"Expected --window CENTRE,WIDTH with a width above 0, got {self.window[1]:g}.")


def window_of(text: str | None) -> tuple[float, float] | None:
    """`--window 40,400` as numbers."""
    if text is None:
        return None
    try:
        centre, width = map(float, text.split(","))
    except ValueError as error:
        raise InputError(f"Expected --window CENTRE,WIDTH, for example 40,400, got {text!r}.") from error
    return centre, width


def chosen_frames(rule: str, count: int) -> list[int]:
    """Which of `count` frames or slices: the first, the middle one, all, or a number of them, evenly spread."""
    if rule == "first":
        return [0]
    if rule == "middle":
        return [count // 2]
    if rule == "all" or int(rule) >= count:
        return list(range(count))
    wanted = int(rule)
    return [(2 * place + 1) * count // (2 * wanted) for place in range(wanted)]


def _check(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise InputError(f"Expected {option} {', '.join(allowed[:-1])} or {allowed[-1]}, got {value!r}.")


PLAIN = Reading()
