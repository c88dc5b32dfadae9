"""How an archive is read, in public words: what people pass as `--frames`, `--burned-in` and the like."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from veilset.core.errors import InputError

Kind = Literal["images", "dicom", "nifti"]
Frames = Literal["first", "middle", "all"]
BurnedIn = Literal["refuse", "mask", "keep"]
Uncertain = Literal["zeros", "ones", "drop"]
FindingsAs = Literal["findings", "classes"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Rules for reading archives. Each is the same for every file, so that a record depends on its own file alone."""

    table: Path | None = None  # the CSV of labels; labels.csv of the folder where it is None
    groups_file: Path | None = None  # a CSV that says to whom each image of a folder belongs
    kind: Kind | None = None  # which files of a folder with several kinds
    frames: Frames | None = None  # which frames of a file with several
    slices: str | None = None  # which slices of a NIfTI volume: middle, all or how many
    window: tuple[float, float] | None = None  # centre and width, in the units of the scanner (CT: Hounsfield)
    burned_in: BurnedIn = "refuse"  # images that say, or in which a check finds, that text is burned in
    check_text: bool = False  # look for text in every image
    skip_bad: bool = False  # leave out files that cannot be read
    findings: tuple[str, ...] | None = None  # columns of 0 and 1, several of which may be true of an image
    uncertain: Uncertain | None = None  # what becomes of findings that are -1 or empty
    findings_as: FindingsAs = "findings"  # or each combination of them as a class

    def __post_init__(self) -> None:
        _check("--kind", self.kind, get_args(Kind))
        _check("--frames", self.frames, get_args(Frames))
        _check("--burned-in", self.burned_in, get_args(BurnedIn))
        _check("--uncertain", self.uncertain, get_args(Uncertain))
        _check("--findings-as", self.findings_as, get_args(FindingsAs))
        if self.findings is not None and (not all(self.findings) or len(set(self.findings)) < len(self.findings)):
            raise InputError(f"Expected different names for --findings, got {','.join(self.findings) or 'none'}.")
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


def names_of(text: str | None) -> tuple[str, ...] | None:
    """`--findings A,B,C` as names."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


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
